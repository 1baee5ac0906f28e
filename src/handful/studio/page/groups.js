// Images grouped by likeness, to be named a group at a time: how to begin when there is no label yet.

import * as api from "./api.js";
import { $, h, icon, images, count, renew, toast } from "./dom.js";
import { undo } from "./actions.js";
import { naming } from "./naming.js";
import { store } from "./store.js";

const SHOWN = 12;
const host = $("groups");
let version = -1, asked = 0, drawn = "", named = new Map(); // group -> name given here

/** As many of the examples as are shown, spread like them: labels of the most typical alone would say little of the rest. */
function spread({ examples }) {
  const many = Math.min(SHOWN, examples.length);
  return Array.from({ length: many }, (_, at) => examples[Math.floor(((at + 0.5) * examples.length) / many)]);
}

function card(group, examples) {
  const left = new Set();
  const said = h("span", { class: "muted" });
  const say = () => (said.textContent = left.size ? `labels ${images(examples.length - left.size)}` : `labels these ${count(examples.length)}; the other ${count(Math.max(0, group.size - examples.length))} are guessed`);
  const pictures = examples.map((number) => {
    const picture = h("img", { alt: "", src: api.thumbnail(number, 192), loading: "lazy", decoding: "async", draggable: "false" });
    const node = h("button", { class: "example", "aria-pressed": "true", title: "Click to leave this one out", "aria-label": `Image ${number} belongs to the group`, on: { click: () => {
      if (!left.delete(number)) left.add(number);
      node.setAttribute("aria-pressed", String(!left.has(number)));
      say();
    } } }, picture, icon("close"));
    picture.addEventListener("load", () => node.classList.add("loaded"));
    return node;
  });
  const name = (label) => {
    const numbers = examples.filter((number) => !left.has(number));
    if (!numbers.length) return toast("Every image of this group is left out.");
    store.label(numbers, label);
    named.set(group.group, label);
    toast(`${label === store.noneName ? "None of these" : label}: ${images(numbers.length)}`, { action: { text: "Undo", act: () => (named.delete(group.group), node.classList.remove("done"), undo()) } });
    node.classList.add("done");
    node.dataset.name = label === store.noneName ? "none of these" : label;
    done.textContent = node.dataset.name;
    const next = node.nextElementSibling;
    next?.scrollIntoView({ block: "nearest", behavior: "smooth" });
    host.querySelector(".group:not(.done) input")?.focus({ preventScroll: true });
  };
  const done = h("b", { class: "named" });
  const node = h("article", { class: "group", "aria-label": `Group of ${images(group.size)}` },
    h("div", { class: "strip" }, pictures),
    h("div", { class: "ask" },
      naming({ placeholder: "What are these?", label: `Name the group of ${images(group.size)}`, done: name }),
      h("button", { class: "quiet small", text: "None of these", title: "They belong to no class of yours", on: { click: () => name(store.noneName) } }),
      h("button", { class: "quiet small", text: "Mixed: show", title: "Show the group in the grid", on: { click: () => (store.tell("go", "grid"), store.ask({ group: group.group, show: "all", class: null, sort: "group" })) } }),
      done, said));
  say();
  if (named.has(group.group)) {
    node.classList.add("done");
    done.textContent = named.get(group.group);
  }
  return node;
}

/** Whether somebody is at work here: then new groups wait until the view is opened again. */
const busy = () => named.size > 0 || [...host.querySelectorAll("input")].some((field) => field.value) || host.querySelector("[aria-pressed=false]") !== null;

async function draw(opened) {
  const { groups, embedding } = store.state;
  if (groups.state !== "ready") {
    if (version >= 0) return invite();
    const share = embedding.total ? embedding.done / embedding.total : 0;
    const meter = h("progress", { max: 1, value: share, "aria-label": "Progress" });
    host.replaceChildren(h("div", { class: "hello" }, h("h1", { text: "Sorting the images into groups" }), h("p", { text: `${count(embedding.done)} of ${count(embedding.total)} images have been looked at. You need not wait: label in the grid.` }), meter, h("button", { class: "main", text: "Go to the grid", on: { click: () => store.tell("go", "grid") } })));
    return;
  }
  if (groups.version === version || (version >= 0 && !opened && busy())) return invite();
  const mine = ++asked, { groups: found, version: newest } = await api.groups();
  if (mine !== asked || (version >= 0 && !opened && busy())) return invite(); // asked again, or begun meanwhile
  const same = JSON.stringify(found.map((one) => [one.size, one.examples]));
  version = newest;
  if (same === drawn && !opened) return invite();
  drawn = same;
  named = new Map();
  const fresh = found.filter((one) => one.labelled < Math.min(one.size, SHOWN));
  const shown = fresh.length ? fresh : found;
  host.replaceChildren(
    h("div", { class: "hello" }, h("h1", { text: store.state.labelled ? "Groups of likeness" : "What are these?" }),
      h("p", { text: "Images that look alike are put together. Type a name and press Enter; click an image that does not belong to leave it out. A few groups are enough: all other images are labelled from them." })),
    ...shown.map((group) => card(group, spread(group))), onward);
  invite();
  if (store.view === "groups") host.querySelector(".group:not(.done) input")?.focus({ preventScroll: true });
}

const onward = h("div", { class: "onward", hidden: true });
/** As soon as the other images are labelled too: where to see them. */
function invite() {
  const { model, unlabelled } = store.state;
  onward.hidden = model.state !== "ready" || !named.size;
  if (onward.hidden) return;
  renew(onward, unlabelled, () => [h("span", { text: `The other ${images(unlabelled)} are labelled by now.` }), h("button", { class: "main", text: "See them", on: { click: () => (store.tell("go", "grid"), store.ask({ sort: "class", show: "all", class: null, group: null })) } })]);
}

export function start() {
  const update = (opened) => store.view === "groups" && store.state && draw(opened).catch((problem) => toast(problem.message, { kind: "bad" }));
  store.on("state", () => update(false));
  store.on("view", () => update(true));
}
