// The left side: which images to show, and the classes with their counts.

import * as api from "./api.js";
import { paint } from "./colours.js";
import * as actions from "./actions.js";
import { $, count, h, icon, images, renew } from "./dom.js";
import { confirm, prompt } from "./dialogs.js";
import { store } from "./store.js";

const SHOWS = [
  ["all", "All images", (state) => state.images],
  ["given", "Labelled by you", (state) => state.labelled],
  ["unlabelled", "Not by you", (state) => state.unlabelled],
  ["found", "Found", (state) => state.classes.reduce((sum, one) => sum + one.found, 0) + state.none.found],
  ["doubtful", "Doubtful", (state) => state.doubtful],
  ["none", "None of these", (state) => state.none.given + state.none.found],
  ["changed", "Just changed", (state) => state.changed],
  ["duplicates", "Near-duplicates", (state) => state.duplicates],
  ["broken", "Cannot be read", (state) => state.broken],
];
const HIDDEN_WHEN_ZERO = new Set(["duplicates", "broken"]);
const rows = new Map(); // id -> element
const buttons = new Map();

function shows() {
  const waiting = [...store.waiting.values()].reduce((sum, one) => sum + one, 0);
  for (const [show, , number] of SHOWS) {
    const button = buttons.get(show), some = number(store.state) + (show === "given" ? waiting : show === "unlabelled" ? -waiting : 0);
    button.lastChild.textContent = count(some);
    button.hidden = HIDDEN_WHEN_ZERO.has(show) && !some;
    button.setAttribute("aria-pressed", String(store.query.show === show && !store.query.class));
    button.classList.toggle("zero", !some);
  }
}

function row(one) {
  const badge = h("button", { class: "key", tabindex: "-1" });
  const name = h("span", { class: "name" }), numbers = h("span", { class: "numbers" });
  const bar = h("span", { class: "share", "aria-hidden": "true" }, h("i", { class: "given" }), h("i", { class: "found" }), h("i", { class: "doubtful" }));
  const total = h("span", { class: "total" });
  const open = h("button", { class: "open" }, h("span", { class: "line" }, name, total), bar, numbers);
  const more = h("button", { class: "more", title: "Rename, merge, delete", "aria-haspopup": "menu" }, icon("more"));
  const node = h("li", {}, badge, open, more);
  badge.addEventListener("click", () => (store.selection.size ? actions.label(node.one.name) : choose(node.one)));
  open.addEventListener("click", () => choose(node.one));
  more.addEventListener("click", () => menu(node.one, more));
  return Object.assign(node, { badge, open, name, numbers, bar, total, more, one });
}

/** Ask for other images, and show them in the grid. */
function look(change) {
  if (store.view !== "grid") store.tell("go", "grid");
  return store.ask(change);
}
const choose = (one) => one.id > 0 && look(store.query.class === one.id ? { class: null } : { class: one.id, show: "all", group: null });

function classes() {
  const list = $("classes"), seen = new Set(), kept = [], waiting = store.waiting;
  for (const one of store.classes) {
    const id = one.name;
    seen.add(id);
    let node = rows.get(id);
    if (!node) {
      node = row(one);
      rows.set(id, node);
    }
    node.one = one;
    const given = one.given + (waiting.get(one.name) ?? 0), sure = Math.max(0, one.found - one.doubtful), all = Math.max(1, given + one.found);
    paint(node.badge, one);
    node.badge.title = store.selection.size ? `Label the selection ${one.name}` : one.name;
    node.badge.setAttribute("aria-label", `Label the selection ${one.name}, key ${one.key ?? "none"}`);
    node.name.textContent = one.name;
    node.name.title = one.name;
    node.total.textContent = count(given + one.found);
    node.numbers.textContent = `${count(given)} given · ${count(one.found)} found${one.doubtful ? ` · ${count(one.doubtful)} ?` : ""}`;
    node.open.title = `${images(given)} labelled by you, ${count(one.found)} found, ${count(one.doubtful)} of them doubtful`;
    node.open.setAttribute("aria-label", `${one.name}: ${node.open.title}`);
    node.open.setAttribute("aria-pressed", String(store.query.class === one.id));
    node.more.setAttribute("aria-label", `Change the class ${one.name}`);
    [given, sure, Math.min(one.found, one.doubtful)].forEach((part, at) => (node.bar.children[at].style.width = `${(100 * part) / all}%`));
    node.bar.style.setProperty("--colour", node.badge.style.getPropertyValue("--colour"));
    kept.push(node);
  }
  for (const [id, node] of rows) {
    if (seen.has(id)) continue;
    node.remove();
    rows.delete(id);
  }
  // A row that is moved loses the focus, and the click that is being made on it.
  kept.forEach((node, at) => list.children[at] !== node && list.insertBefore(node, list.children[at] ?? null));
}

let shut = null;
function menu(one, from) {
  shut?.();
  const others = store.classes.filter((each) => each.id !== one.id && each.id > 0);
  const item = (text, act, kind = "") => h("button", { class: kind, role: "menuitem", text, on: { click: () => (close(), act()) } });
  const node = h("div", { class: "menu", role: "menu", "aria-label": `Change the class ${one.name}` },
    item("Rename…", async () => {
      const name = await prompt({ title: "Rename the class", text: "Its labels stay.", value: one.name, button: "Rename" });
      if (name && name !== one.name) store.act(() => api.changeClass(one.id, { name }));
    }),
    item("Change its key…", async () => {
      const key = await prompt({ title: `A key for ${one.name}`, text: "One letter or a digit from 1 to 9. A class that has it loses it.", value: one.key ?? "", button: "Set", length: 1 });
      if (key) store.act(() => api.changeClass(one.id, { key: key.toLowerCase() }));
    }),
    others.length ? item("Merge into…", async () => {
      const into = await prompt({ title: `Merge ${one.name} into another class`, text: `Its ${images(one.given)} will be labelled as the other class.`, options: others.map((each) => [each.id, each.name]), button: "Merge" });
      if (into) store.act(() => api.mergeClass(one.id, Number(into)));
    }) : null,
    item("Delete…", async () => {
      if (one.given === 0 || await confirm({ title: `Delete ${one.name}?`, text: `The labels of ${images(one.given)} are taken back. You can undo this.`, button: "Delete" })) store.act(() => api.deleteClass(one.id));
    }, "danger"));
  const close = () => {
    node.remove();
    document.removeEventListener("pointerdown", away, true);
    shut = null;
    from.focus();
  };
  const away = (event) => node.contains(event.target) || close();
  node.addEventListener("keydown", (event) => {
    event.stopPropagation();
    const items = [...node.children], at = items.indexOf(document.activeElement);
    if (event.key === "Escape") close();
    else if (event.key === "ArrowDown") items[(at + 1) % items.length].focus();
    else if (event.key === "ArrowUp") items[(at + items.length - 1) % items.length].focus();
    else return;
    event.preventDefault();
  });
  const box = from.getBoundingClientRect();
  document.body.append(node);
  node.style.left = `${box.left}px`;
  node.style.top = `${Math.min(box.bottom + 4, innerHeight - node.offsetHeight - 8)}px`;
  shut = close;
  document.addEventListener("pointerdown", away, true);
  node.firstChild.focus();
}

function progress() {
  const node = $("progress"), { embedding } = store.state;
  node.hidden = embedding.state === "done";
  if (node.hidden) return;
  const failed = embedding.state === "failed";
  const meter = h("progress", { max: Math.max(1, embedding.total), value: embedding.done, "aria-label": embedding.what });
  node.classList.toggle("bad", failed);
  node.replaceChildren(h("p", { text: failed ? embedding.problem : embedding.state === "looking" ? "Looking for images…" : `Looking at the images: ${count(embedding.done)} of ${count(embedding.total)}` }));
  if (!failed) node.append(meter, h("small", { text: "You can label already." }));
}

const seen = new Set(); // notices that were put away
function notices() {
  const list = (store.state.notices ?? []).filter((text) => !seen.has(text));
  renew($("notices"), list, () => list.map((text) => h("p", { class: "notice" }, h("span", { text }), h("button", { class: "icon-button", "aria-label": "Put away", on: { click: () => (seen.add(text), notices()) } }, icon("close")))));
}

export function start() {
  for (const [show, text] of SHOWS) {
    const button = h("button", { data: { show }, "aria-pressed": "false", on: { click: () => look({ show, class: null, group: null, ...(store.query.sort === "like" ? { sort: "name", like: null } : {}) }) } }, h("span", { text }), h("span", { class: "number" }));
    buttons.set(show, button);
    $("shows").append(button);
  }
  const field = h("input", { type: "text", placeholder: "Add a class", "aria-label": "Add a class, or several with commas between them", title: "Or several with commas between them, or a list that is pasted", spellcheck: "false" });
  field.addEventListener("paste", (event) => {
    const lines = event.clipboardData.getData("text").split(/[\n\r\t;,]+/).map((name) => name.trim()).filter(Boolean);
    if (lines.length < 2) return;
    event.preventDefault();
    field.value = [field.value.trim(), ...lines].filter(Boolean).join(", "); // a field has one line only
  });
  $("add").append(icon("plus"), field);
  $("add").addEventListener("submit", (event) => {
    event.preventDefault();
    const names = field.value.split(",").map((name) => name.trim()).filter(Boolean);
    field.value = "";
    for (const name of new Set(names)) if (!store.classNamed(name)) store.act(() => api.addClass(name));
  });
  const all = () => store.state && (shows(), classes(), progress(), notices());
  store.on("state pending query", all);
  store.on("selection", () => store.state && document.body.classList.toggle("has-selection", store.selection.size > 0));
}
