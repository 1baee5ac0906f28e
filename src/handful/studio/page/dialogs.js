// Dialogs: questions, help, export, images that cannot be read.

import * as api from "./api.js";
import { CTRL, h, icon, images, toast } from "./dom.js";
import { store } from "./store.js";

function show(title, ...children) {
  const close = h("button", { class: "icon-button", type: "button", "aria-label": "Close", on: { click: () => node.close() } }, icon("close"));
  const node = h("dialog", { "aria-label": title }, h("header", {}, h("h2", { text: title }), close), ...children);
  node.addEventListener("click", (event) => event.target === node && node.close());
  node.addEventListener("keydown", (event) => event.stopPropagation());
  node.addEventListener("close", () => node.remove());
  document.body.append(node);
  node.showModal();
  return node;
}

function question(title, text, button, field, danger) {
  return new Promise((resolve) => {
    let answer = null;
    const form = h("form", { method: "dialog" }, h("p", { text }), field,
      h("footer", {}, h("button", { class: "quiet", type: "button", text: "Cancel", on: { click: () => node.close() } }), h("button", { class: danger ? "main danger" : "main", text: button })));
    form.addEventListener("submit", () => (answer = field ? field.value.trim() : true));
    const node = show(title, form);
    node.addEventListener("close", () => resolve(answer));
    field?.focus();
    field?.select?.();
  });
}
export const confirm = ({ title, text, button }) => question(title, text, button, null, true);
export const prompt = ({ title, text, value = "", options, button, length = 80 }) =>
  question(title, text, button, options ? h("select", { "aria-label": title }, options.map(([id, name]) => h("option", { value: id, text: name }))) : h("input", { type: "text", value, maxlength: length, "aria-label": title, spellcheck: "false" }));

// -- help ------------------------------------------------------------------------------------------------------------

const KEYS = [
  ["Label", [["1 … 9, a … z", "label what is selected with the class of that key"], ["0 or n", "none of these"], ["Type a name, Enter", "label with a class by its name, or with a new one (press / first if letters are keys)"], ["Backspace", "take the label back"], ["Shift A", "accept the found labels of what is selected"], ["Shift Space", "accept what is on the screen, but what is selected, and go on to the next screen"], [`${CTRL} Z, ${CTRL} Shift Z`, "undo, redo, without end"]]],
  ["Select", [["Point at it", "one, if nothing is selected: the key of a class labels it"], ["Arrows", "move; with Shift, extend"], ["Click, Shift click", "one; a range"], [`${CTRL} click`, "add or remove one"], ["Drag from an image", "all up to another one"], ["Drag from between", "all in the box"], [`${CTRL} A`, "all that are shown"], ["Shift L", "those that are most like this one"], ["Esc", "nothing"]]],
  ["Look", [["Enter, double click", "large"], ["Space", "in Label next: skip"], ["← →", "in Label next: the likeliest class, the second likeliest"], ["+ −", "larger, smaller"], ["Shift O · G · Q · M", "groups, grid, label next, map"], ["Shift E", "export"], ["?", "this help"]]],
];
export function help() {
  show("Keys", h("div", { class: "keys" }, KEYS.map(([title, list]) => h("section", {}, h("h3", { text: title }), h("dl", {}, list.map(([key, what]) => [h("dt", { text: key }), h("dd", { text: what })]))))),
    h("p", { class: "muted", text: "Every label is on disk before it is ticked. After every label the other images are labelled again: ✓ is yours, a percentage is found, ? is doubtful." }));
}

// -- export ----------------------------------------------------------------------------------------------------------

const FORMATS = [
  ["csv", "Table", "predictions.csv: label, confidence and more for every image"],
  ["jsonl", "JSON lines", "predictions.jsonl: the same for programs"],
  ["labels", "Your labels", "labels.csv: only what you labelled, for handful label --labels"],
  ["folders", "Folders by class", "a zip with the images, one folder for each class"],
  ["yolo", "YOLO classification", "a zip with train and val folders"],
  ["metadata", "Hugging Face", "metadata.csv for an image folder"],
  ["label-studio", "Label Studio", "tasks as JSON"],
  ["model", "Model", "a file that handful predict applies to new images"],
];
const ONLY_WRITTEN = ["folders-link", "Folders of links", "one folder for each class, with links to the images"];

export function exporting() {
  const choices = h("div", { class: "formats", role: "radiogroup", "aria-label": "Format" }, [...FORMATS, ONLY_WRITTEN].map(([format, name, what], at) =>
    h("label", {}, h("input", { type: "radio", name: "format", value: format, checked: at === 0 }), h("span", {}, h("b", { text: name }), h("small", { text: what })))));
  const given = h("input", { type: "checkbox", id: "given-only" });
  const said = h("p", { class: "said", role: "status" });
  const download = h("button", { class: "main", type: "button", text: "Download" });
  const write = h("button", { class: "quiet", type: "button", text: "Write to disk", title: store.state.out });
  const chosen = () => choices.querySelector("input:checked").value;
  const update = () => {
    download.disabled = chosen() === ONLY_WRITTEN[0];
    said.textContent = `“Write to disk” puts it into ${store.state.out}.`;
    said.classList.remove("bad");
  };
  const busy = async (button, act) => {
    button.disabled = true;
    said.classList.remove("bad");
    said.textContent = "Working…";
    try {
      said.textContent = await act();
    } catch (problem) {
      said.textContent = problem.message;
      said.classList.add("bad");
    }
    button.disabled = false;
  };
  download.addEventListener("click", () => busy(download, async () => {
    const answer = await fetch(api.exportUrl(chosen(), given.checked), { credentials: "same-origin" }).catch(() => null);
    if (!answer) throw new Error("The studio does not answer.");
    if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? `The studio answered with status ${answer.status}.`);
    const name = /filename="?([^";]+)/.exec(answer.headers.get("Content-Disposition") ?? "")?.[1] ?? `handful-${chosen()}`;
    const url = URL.createObjectURL(await answer.blob());
    h("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
    return `Downloaded as ${name}.`;
  }));
  write.addEventListener("click", () => busy(write, async () => {
    const done = await api.write(chosen(), given.checked);
    return `Written to ${done.path} (${images(done.images)}).`;
  }));
  choices.addEventListener("change", update);
  show("Export", choices, h("label", { class: "check", for: "given-only" }, given, h("span", { text: "Only labels that you gave" })), said, h("footer", {}, write, download));
  update();
}

// -- images that cannot be read --------------------------------------------------------------------------------------

export async function broken() {
  try {
    const found = await api.broken();
    show("Images that cannot be read", h("p", { class: "muted", text: `${images(found.images.length)}. They are left out; nothing else is affected.` }),
      h("ul", { class: "broken-list" }, found.images.map((one) => h("li", {}, h("b", { text: one.name }), h("span", { text: one.reason })))));
  } catch (problem) {
    toast(problem.message, { kind: "bad" });
  }
}
