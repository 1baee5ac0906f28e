// The top bar, the bar above the grid and the bar of the selection.

import * as actions from "./actions.js";
import { colourOf, inkOn, paint } from "./colours.js";
import { $, CTRL, count, framed, h, icon, images, percent, renew } from "./dom.js";
import { broken, exporting, help } from "./dialogs.js";
import * as grid from "./grid.js";
import { naming } from "./naming.js";
import { DOUBTFUL, GIVEN, NO_LABEL, store } from "./store.js";

// -- top -------------------------------------------------------------------------------------------------------------

const button = (name, title, act) => h("button", { class: "icon-button", title, "aria-label": title, on: { click: act } }, icon(name));
let undo, redo, theme;

const dark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
function turn() {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
  themed();
}
function themed() {
  theme.replaceChildren(icon(dark() ? "sun" : "moon"));
  theme.title = dark() ? "Light" : "Dark";
  theme.setAttribute("aria-label", theme.title);
  store.tell("theme");
}

/** How good it is by now, and what more labels would bring, in one line. */
function standing({ expected, gain, stop, advice: all }) {
  if (!expected) return all;
  const points = gain && gain.accuracy * 100;
  const more = !gain ? "" : points < 0.5 ? ` ${count(gain.labels)} more labels would bring less than half a point.` : ` ${count(gain.labels)} more labels would bring about ${points.toFixed(points < 3 ? 1 : 0)} points.`;
  return `About ${percent(expected.accuracy)} right (${percent(expected.low)} to ${percent(expected.high)}).${more}${stop ? " You can stop." : ""}`;
}

function advice() {
  const { model, labelled, embedding } = store.state, node = $("advice");
  const expected = model.expected;
  const gauge = h("span", { class: "gauge", "aria-hidden": "true" }, h("i"), h("b"));
  if (expected) {
    gauge.children[0].style.left = `${expected.low * 100}%`;
    gauge.children[0].style.width = `${(expected.high - expected.low) * 100}%`;
    gauge.children[1].style.left = `${expected.accuracy * 100}%`;
  }
  const short = model.state === "ready" ? standing(model)
    : model.state === "no-labels" ? (store.view === "groups" ? "Name a few groups: the rest follows." : "Click an image and type what it is: the rest follows.")
      : model.state === "one-class" ? `${labelled === 1 ? "One label" : `${count(labelled)} labels`}. Now label an image of another class: then the rest follows.`
        : embedding.state === "done" ? model.advice : "The rest follows as soon as all images have been looked at.";
  node.replaceChildren(...(expected ? [gauge] : []), h("span", { class: "words", text: model.problem ?? short, title: model.advice }));
  node.classList.toggle("old", model.busy || (model.state === "ready" && !model.checked));
  node.classList.toggle("stop", model.stop);
}

function top() {
  const { state } = store;
  $("folder").textContent = state.folder.split(/[\\/]/).filter(Boolean).at(-1) ?? state.folder;
  $("folder").title = state.folder;
  undo.disabled = !state.undo && !store.outbox.length;
  redo.disabled = !state.redo;
  undo.title = state.undo ? `Undo: ${state.undo} (${CTRL} Z)` : "Nothing to undo";
  redo.title = state.redo ? `Redo: ${state.redo} (${CTRL} Shift Z)` : "Nothing to redo";
  advice();
}

// -- above the grid --------------------------------------------------------------------------------------------------

const SORTS = [["name", "Name"], ["class", "Class"], ["alike", "Class, alike together"], ["rival", "Class, likely wrong first"], ["doubt", "Doubt, most first"], ["sure", "Sureness, most first"], ["none", "Foreign first"], ["group", "Groups of likeness"], ["changed", "Changed first"], ["duplicates", "Near-duplicates"], ["like", "Likeness to the selected"]];
let sort, shown, accepting, slider, sure, range, text;

function bar() {
  const { query } = store;
  sort.value = query.sort;
  const one = store.classWith(query.class);
  const many = store.ordered ? images(store.order.length) : "";
  const part = one || query.like !== null || query.group !== null || query.show !== "all", { stale } = store;
  renew(shown, [many, one?.name, part, query, stale], () => [
    h("b", { text: many }),
    one && [h("span", { text: "of" }), h("span", { class: "chip", text: one.name })],
    query.sort === "like" && query.like !== null && h("span", { text: "by likeness" }),
    part && h("button", { class: "link", text: "Show all", on: { click: () => store.ask({ class: null, show: "all", group: null, text: "", like: null, sort: query.sort === "like" ? "name" : query.sort }) } }),
    query.show === "broken" && h("button", { class: "link", text: "Reasons", on: { click: broken } }),
    stale && h("button", { class: "link", text: "New order ready", on: { click: () => store.select([]) } }),
  ]);
  surer();
}

/** How many found labels are at least so sure, among all or those of the class that is shown. */
function surer() {
  accepting.hidden = store.state?.model.state !== "ready";
  if (accepting.hidden) return;
  const least = Number(slider.value) / 100, id = store.query.class;
  let many = 0;
  for (let n = 0; n < store.classOf.length; n++) {
    if (store.classOf[n] === NO_LABEL || store.flags[n] & GIVEN || (id && store.classOf[n] !== id)) continue;
    if (store.confidence[n] / 255 >= least) many++;
  }
  sure.replaceChildren(h("b", { text: count(many) }), ` surer than ${percent(least)}`);
  accepting.querySelector("button").disabled = !many;
}

function makeBar() {
  sort = h("select", { "aria-label": "Sort by", on: { change: () => {
    if (sort.value !== "like") return store.ask({ sort: sort.value, like: null });
    const number = [...store.selection].at(-1) ?? store.order[Math.max(0, store.cursor)];
    store.ask({ sort: "like", like: number ?? 0 });
  } } }, SORTS.map(([value, name]) => h("option", { value, text: name })));
  shown = h("span", { class: "shown", "aria-live": "polite" });
  text = h("input", { type: "search", class: "find", placeholder: "Find a name", "aria-label": "Find a name", spellcheck: "false" });
  let wait = 0;
  text.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(() => store.ask({ text: text.value.trim() }), 200);
  });
  slider = h("input", { type: "range", min: 50, max: 99, value: 90, "aria-label": "Accept labels surer than", on: { input: surer } });
  sure = h("span", { class: "sure" });
  accepting = h("div", { class: "accepting", hidden: true }, slider, sure, h("button", { class: "quiet small", text: "Accept", title: "Turn these found labels into yours", on: { click: () => actions.accept(Number(slider.value) / 100) } }),
    h("button", { class: "quiet small", text: "Accept screen", title: "Turn the found labels on the screen into yours, but those of what is selected, and go on (Shift Space)", on: { click: actions.acceptScreen } }));
  range = h("input", { type: "range", min: 72, max: 320, value: grid.zoom(), "aria-label": "Size of the images", on: { input: () => grid.setZoom(Number(range.value)) } });
  $("bar").append(shown, h("span", { class: "grow" }), accepting, text, h("label", { class: "sorting" }, h("span", { text: "Sort" }), sort), h("span", { class: "zoom" }, icon("small"), range, icon("large")));
}
export function zoomBy(factor) {
  grid.setZoom(grid.zoom() * factor);
  range.value = grid.zoom();
}

// -- selection -------------------------------------------------------------------------------------------------------

let field, chips, said;
function makeChosen() {
  field = naming({ placeholder: "What is it? Type a name", label: "Name the selection", done: (name) => (actions.label(name), back()), left: back });
  chips = h("div", { class: "chips" });
  said = h("span", { class: "said" });
  $("hand").append(said, field, chips,
    h("div", { class: "acts" },
      h("button", { class: "quiet small", title: "Accept the found labels (Shift A)", text: "Accept", on: { click: actions.acceptSelected } }),
      h("button", { class: "quiet small", title: "Select the images that are most like this one (Shift L)", text: "Like this", on: { click: actions.like } }),
      h("button", { class: "quiet small", title: "Take the label back (Backspace)", text: "Take back", on: { click: actions.takeBack } }),
      button("close", "Select nothing (Esc)", () => store.select([]))));
}
const back = () => $(store.view)?.focus({ preventScroll: true });

/** Start naming the selection, with a letter that was typed. */
export function name(letter = "") {
  if (!store.selection.size) return false;
  chosen();
  field.open(letter);
  return true;
}

let drawn = "";
function chosen() {
  const some = store.selection.size, node = $("hand");
  node.hidden = !some || !["grid", "map"].includes(store.view);
  document.body.classList.toggle("choosing", !node.hidden);
  if (node.hidden) return;
  said.textContent = some === 1 ? "1 selected" : `${count(some)} selected`;
  const classes = store.classes, key = classes.map((one) => `${one.name}\n${one.key}\n${one.colour}`).join("\n\n");
  if (key === drawn && chips.children.length) return;
  drawn = key;
  chips.replaceChildren(...classes.map((one) => chip(one, () => actions.label(one.name))), ...(classes.length ? [chip(null, actions.none)] : []));
}
export function chip(one, act) {
  const badge = h("span", { class: "key" });
  paint(badge, one);
  const node = h("button", { class: "chip-button", title: one?.name ?? "None of these", on: { click: act } }, badge, h("span", { text: one?.name ?? "none of these" }));
  node.style.setProperty("--colour", colourOf(one));
  node.style.setProperty("--ink", inkOn(colourOf(one)));
  return node;
}

// -- starting --------------------------------------------------------------------------------------------------------

function banner() {
  const node = $("banner"), { status, online } = store;
  node.hidden = online;
  document.body.classList.toggle("offline", !online);
  if (online) return;
  const waiting = store.pending.size;
  node.replaceChildren(icon("warn"), h("div", {}, h("b", { text: status === 401 ? "The studio was started anew, with another address." : "The studio does not answer." }),
    h("span", { text: status === 401 ? "Open the address that it printed; all labels that were ticked are there." : `Start it again with the same command: this page goes on by itself. ${waiting ? `${images(waiting)} will be sent then; what is ticked is on disk.` : "All your labels are on disk."}` })));
}

export function start() {
  const saved = localStorage.getItem("theme");
  if (saved) document.documentElement.dataset.theme = saved;
  undo = button("undo", "Undo", actions.undo);
  redo = button("redo", "Redo", actions.redo);
  theme = button("moon", "Dark", turn);
  $("tools").append(undo, redo, button("help", "Keys (?)", help), theme, h("button", { class: "main", title: "Export (Shift E)", on: { click: exporting } }, icon("export"), h("span", { text: "Export" })));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
  makeBar();
  makeChosen();
  themed();
  const soon = framed(() => store.state && (bar(), chosen()));
  store.on("state pending view", () => store.state && top());
  store.on("state order marks query selection pending view", soon);
  store.on("connection pending", banner);
}
export { DOUBTFUL };
