// A field for the name of a class, with the classes there are.

import { paint } from "./colours.js";
import { h } from "./dom.js";
import { store } from "./store.js";

let serial = 0;

/** A combobox; `done(name)` on Enter or a click, `left()` on Escape. */
export function naming({ placeholder, done, left = () => {}, label = placeholder }) {
  const id = `names-${++serial}`;
  const list = h("ul", { class: "names", role: "listbox", id, "aria-label": "Names of classes", hidden: true });
  const input = h("input", { class: "name-field", type: "text", placeholder, "aria-label": label, role: "combobox", "aria-expanded": "false", "aria-controls": id, "aria-autocomplete": "list", maxlength: 80, autocomplete: "off", spellcheck: "false", enterkeyhint: "done" });
  const node = h("div", { class: "naming" }, input, list);
  let at = -1, found = [];

  const close = () => {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
    at = -1;
  };
  const finish = (name) => {
    close();
    input.value = "";
    if (name) done(name);
  };
  /** The class whose key was typed, if no name begins with it. */
  const keyed = (typed) => typed.length === 1 && !store.classes.some((one) => one.name.toLowerCase().startsWith(typed.toLowerCase())) ? store.classForKey(typed.toLowerCase()) : null;
  const look = () => {
    const text = input.value.trim().toLowerCase();
    const all = store.classes;
    found = [...all.filter((one) => one.name.toLowerCase().startsWith(text)), ...all.filter((one) => !one.name.toLowerCase().startsWith(text) && one.name.toLowerCase().includes(text))].slice(0, 8);
    if (keyed(text) && !found.includes(keyed(text))) found.unshift(keyed(text));
    list.replaceChildren(...found.map((one, index) => {
      const badge = h("span", { class: "key" });
      paint(badge, one);
      return h("li", { role: "option", id: `${id}-${index}`, "aria-selected": String(index === at), on: { pointerdown: (event) => (event.preventDefault(), finish(one.name)) } }, badge, h("span", { text: one.name }));
    }));
    const exact = keyed(text) || all.some((one) => one.name.toLowerCase() === text);
    if (text && !exact) list.append(h("li", { class: "new", role: "option", on: { pointerdown: (event) => (event.preventDefault(), finish(input.value.trim())) } }, h("span", { class: "key", text: "+" }), h("span", { text: `New class “${input.value.trim()}”` })));
    list.hidden = !list.children.length || document.activeElement !== input || (!text && at < 0);
    const box = input.getBoundingClientRect();
    list.classList.toggle("above", box.bottom + 40 + 31 * list.children.length > innerHeight);
    input.setAttribute("aria-expanded", String(!list.hidden));
    if (at >= 0) input.setAttribute("aria-activedescendant", `${id}-${at}`);
    else input.removeAttribute("aria-activedescendant");
  };
  input.addEventListener("input", () => ((at = -1), look()));
  input.addEventListener("focus", look);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (!found.length) return;
      event.preventDefault();
      at = (at + (event.key === "ArrowDown" ? 1 : found.length)) % found.length;
      look();
    } else if (event.key === "Enter") {
      event.preventDefault();
      const typed = input.value.trim();
      const same = store.classes.find((one) => one.name.toLowerCase() === typed.toLowerCase());
      finish(at >= 0 ? found[at].name : same?.name ?? keyed(typed)?.name ?? typed);
    } else if (event.key === "Escape") {
      event.preventDefault();
      input.value = "";
      close();
      input.blur();
      left();
    }
  });
  return Object.assign(node, {
    open(text = "") {
      input.value = text;
      input.focus();
      look();
    },
    input,
  });
}
