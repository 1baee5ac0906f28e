// "Label next": one large image at a time, those first that teach most, with the two likeliest classes as large keys.

import * as api from "./api.js";
import { chip } from "./bars.js";
import { colourOf, inkOn } from "./colours.js";
import { $, count, h, percent, renew, toast } from "./dom.js";
import { naming } from "./naming.js";
import { store } from "./store.js";

const AHEAD = 12;
const host = $("queue");
let line = [], past = [], skipped = [], done = 0, version = -1, asking = null, stage = null;

const current = () => line[0] ?? null;

async function fill(again = false) {
  if (asking) return asking;
  const skip = () => [...skipped, ...past.map((one) => one.number)].slice(-1200);
  asking = api.next(AHEAD, skip()).then((answer) => {
    store.learn(answer.images);
    version = answer.version;
    const gone = new Set(skip()), kept = again ? line.slice(0, 1) : line; // what is being looked at stays
    const here = new Set(kept.map((one) => one.number));
    line = [...kept, ...answer.images.filter((one) => !here.has(one.number) && !gone.has(one.number) && !store.pending.has(one.number))];
    const newest = new Map(answer.images.map((one) => [one.number, one]));
    // The two large keys of an image that is being looked at stay what they are: a finger may be on its way to one.
    if (line[0] && !line[0].likely.length && newest.has(line[0].number)) line[0] = newest.get(line[0].number);
    for (const one of line.slice(1, 5)) new Image().src = api.preview(one.number, one.tag);
    draw();
  }, (problem) => problem.status && toast(problem.message, { kind: "bad" }));
  await asking;
  asking = null;
}

function advance() {
  line.shift();
  if (line.length < 5) fill();
  draw();
}

export function label(name) {
  const one = current();
  if (!one) return;
  store.label([one.number], name);
  past.push(one);
  done++;
  store.select([]);
  advance();
}
export const none = () => label(store.noneName);
export function skip() {
  const one = current();
  if (!one) return;
  skipped.push(one.number);
  advance();
}
/** The image before, with its label taken back. */
export function back() {
  const one = past.pop();
  if (!one) return toast("This is the first one.");
  store.label([one.number], null);
  done--;
  line.unshift(one);
  draw();
}
/** Label with the likeliest (0) or the second likeliest (1) class. */
export function likely(rank) {
  const one = current() && likeliest(current())[rank];
  if (one) label(one.one.name);
}
export const name = (letter = "") => stage?.field.open(letter);

function likeliest(record) {
  const found = record.likely.map((each) => ({ one: store.classWith(each.class), probability: each.probability })).filter((each) => each.one);
  return found.length ? found : store.classes.filter((one) => one.id > 0).slice(0, 2).map((one) => ({ one, probability: null }));
}

function bigKey(each, arrow) {
  const key = h("span", { class: "big-letter", text: (each.one.key ?? arrow).toUpperCase() });
  const node = h("button", { class: "big-key", on: { click: () => label(each.one.name) } }, key, h("span", { class: "big-name", text: each.one.name }), h("span", { class: "big-sure", text: each.probability === null ? "" : percent(each.probability) }), h("kbd", { text: arrow }));
  node.style.setProperty("--colour", colourOf(each.one));
  node.style.setProperty("--ink", inkOn(colourOf(each.one)));
  return node;
}

function build() {
  const picture = h("img", { alt: "", class: "large" }), title = h("p", { class: "file" }), under = h("img", { alt: "", class: "under" });
  picture.addEventListener("load", () => picture.classList.add("loaded"));
  picture.addEventListener("error", () => picture.getAttribute("src") && skip());
  const field = naming({ placeholder: "Another class: type its name", label: "Name this image", done: (name) => (label(name), host.focus()), left: () => host.focus() });
  stage = {
    picture, under, title, field,
    keys: h("div", { class: "big-keys" }), rest: h("div", { class: "chips" }), line: h("div", { class: "coming" }), tally: h("span", { class: "muted" }),
  };
  host.replaceChildren(
    h("div", { class: "easel" }, under, picture),
    h("div", { class: "panel" }, h("h2", { text: "What is this?" }), stage.keys, stage.field, stage.rest,
      h("div", { class: "acts" }, h("button", { class: "quiet small", text: "Skip", title: "Space", on: { click: skip } }), h("button", { class: "quiet small", text: "Back", title: "Backspace", on: { click: back } }), stage.tally),
      title, stage.line));
}

function draw() {
  if (store.view !== "queue") return;
  const one = current();
  if (!one) {
    stage = null;
    if (asking) return host.replaceChildren(h("div", { class: "hello" }, h("p", { text: "Choosing images…" })));
    return host.replaceChildren(h("div", { class: "hello" }, h("h1", { text: "Nothing left to ask" }), h("p", { text: store.state.unlabelled ? "No image would teach more at the moment." : "Every image has a label of yours." }), h("button", { class: "main", text: "Start over", on: { click: () => ((skipped = []), fill()) } })));
  }
  if (!stage) build();
  const best = likeliest(one).slice(0, 2), shown = new Set(best.map((each) => each.one.id));
  stage.tally.textContent = done ? `${count(done)} labelled here` : "";
  if (stage.number !== one.number) {
    stage.number = one.number;
    stage.under.src = api.thumbnail(one.number, 320, one.tag); // small and at once, until the large one is there
    stage.picture.classList.remove("loaded");
    stage.picture.src = api.preview(one.number, one.tag);
    stage.picture.alt = one.name;
  }
  stage.title.textContent = one.name;
  renew(stage.keys, best.map((each) => [each.one.id, each.one.name, each.one.key, each.one.colour, each.probability]), () => best.map((each, at) => bigKey(each, at ? "→" : "←")));
  const others = store.classes.filter((each) => !shown.has(each.id));
  renew(stage.rest, others.map((each) => [each.name, each.key, each.colour]), () => [...others.map((each) => chip(each, () => label(each.name))), chip(null, none)]);
  const coming = line.slice(1, 7);
  renew(stage.line, coming.map((each) => each.number), () => coming.map((each) => h("img", { alt: "", src: api.thumbnail(each.number, 96, each.tag) })));
}

export function start() {
  host.tabIndex = -1;
  store.on("view", () => {
    if (store.view !== "queue") return;
    fill(true);
    draw();
    host.focus({ preventScroll: true });
  });
  store.on("state", () => {
    if (store.view !== "queue") return;
    if (store.state.model.version !== version) fill(true);
    draw();
  });
}
