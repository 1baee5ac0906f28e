// The map: every image a point, near those that look like it. Zoom, move, select with a lasso.

import * as api from "./api.js";
import { colourOf, NONE, parts, UNKNOWN } from "./colours.js";
import { $, count, framed, h, icon, toast } from "./dom.js";
import { Plot, within } from "./plot.js";
import { DOUBTFUL, GIVEN, NO_LABEL, store } from "./store.js";

const host = $("map");
const canvas = h("canvas", { class: "points", "aria-hidden": "true" }), ink = h("canvas", { class: "ink", role: "img", "aria-label": "Map of the images. Select with a lasso; the grid shows the same images for the keyboard." });
const hover = h("figure", { class: "hover", hidden: true }, h("img", { alt: "" }), h("figcaption"));
const waiting = h("div", { class: "hello", hidden: true });
const strip = h("div", { class: "map-strip", hidden: true });
const legend = h("div", { class: "legend" });
const plot = new Plot(canvas);
let xy = new Float32Array(0), version = -1, scale = 1, dx = 0, dy = 0, tool = "lasso", width = 0, height = 0, lasso = null;
let asked = 0, moved = false; // by the user: then a better map keeps the part that is looked at

/** A colour of the theme, as a canvas takes it. */
function shade(name) {
  hover.style.color = `var(--${name})`;
  const found = getComputedStyle(hover).color;
  hover.style.color = "";
  return found;
}

const toScreen = (n) => [xy[2 * n] * scale + dx, xy[2 * n + 1] * scale + dy];

function fit() {
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
  for (let n = 0; n < xy.length / 2; n++) {
    if (Number.isNaN(xy[2 * n])) continue;
    x0 = Math.min(x0, xy[2 * n]); x1 = Math.max(x1, xy[2 * n]); y0 = Math.min(y0, xy[2 * n + 1]); y1 = Math.max(y1, xy[2 * n + 1]);
  }
  if (x0 > x1) return;
  scale = 0.9 * Math.min(width / (x1 - x0 || 1), (height - 40) / (y1 - y0 || 1));
  dx = width / 2 - (scale * (x0 + x1)) / 2;
  dy = height / 2 - (scale * (y0 + y1)) / 2;
}
function zoomAt(factor, x, y) {
  factor = Math.max(20, Math.min(200000, scale * factor)) / scale;
  dx = x - (x - dx) * factor;
  dy = y - (y - dy) * factor;
  scale *= factor;
  moved = true;
  draw();
}
export const zoomBy = (factor) => zoomAt(factor, width / 2, height / 2);
export function pan(x, y) {
  dx -= x * 60;
  dy -= y * 60;
  moved = true;
  draw();
}

function styleOf() {
  const look = new Map([[0, { colour: parts(NONE), shape: 6 }], [NO_LABEL, { colour: parts(UNKNOWN), shape: 0 }]]);
  store.state.classes.forEach((one) => look.set(one.id, { colour: parts(colourOf(one)), shape: one.colour % 6 }));
  return look;
}

const draw = framed(() => {
  if (store.view !== "map" || !xy.length || !store.state) return;
  plot.clear();
  const look = styleOf(), total = xy.length / 2;
  const base = total > 30000 ? 1.4 : total > 5000 ? 2.2 : 3.4, r = Math.min(9, base * Math.max(1, (scale / Math.min(width, height)) ** 0.35));
  const { flags, classOf, selection, pending } = store, some = selection.size > 0, unknown = look.get(NO_LABEL);
  const late = []; // given labels and the selection are drawn on top
  for (let n = 0; n < total; n++) {
    const x = xy[2 * n] * scale + dx, y = xy[2 * n + 1] * scale + dy;
    if (!(x > -20 && y > -20 && x < width + 20 && y < height + 20)) continue;
    if (flags[n] & GIVEN || (pending.size && pending.has(n)) || (some && selection.has(n))) {
      late.push(n);
      continue;
    }
    const { colour, shape } = look.get(classOf[n]) ?? unknown;
    plot.point(x, y, r, shape, colour, some ? 0.28 : flags[n] & DOUBTFUL ? 0.4 : 0.75);
  }
  for (const n of late) {
    const wait = pending.get(n);
    const id = wait ? store.classNamed(wait.name)?.id ?? (wait.name === store.noneName ? 0 : NO_LABEL) : classOf[n];
    const { colour, shape } = look.get(id) ?? unknown;
    plot.point(...toScreen(n), r + 1.2, shape, colour, some && !selection.has(n) ? 0.28 : 1);
  }
  plot.show();
  drawInk();
});

function drawInk() {
  const context = ink.getContext("2d"), ratio = plot.ratio, style = getComputedStyle(document.documentElement);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  if (lasso) {
    context.beginPath();
    lasso.forEach(([x, y], at) => (at ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.fillStyle = shade("accent-soft");
    context.fill();
    context.strokeStyle = shade("accent");
    context.lineWidth = 1.5;
    context.stroke();
  }
  names(context, style);
}

let middles = null; // id -> [x, y]; made again when the labels change
function findMiddles() {
  const all = new Map();
  for (let n = 0; n < xy.length / 2; n++) {
    const id = store.classOf[n];
    if (id === NO_LABEL || id === 0 || Number.isNaN(xy[2 * n])) continue;
    if (!all.has(id)) all.set(id, [[], []]);
    if (all.get(id)[0].length < 2000) all.get(id)[0].push(xy[2 * n]), all.get(id)[1].push(xy[2 * n + 1]);
  }
  for (const [id, both] of all) all.set(id, both.map((list) => list.sort((a, b) => a - b)[list.length >> 1]));
  return all;
}

/** The name of each class at the middle of its images. */
function names(context, style) {
  middles ??= findMiddles();
  context.font = `600 12px ${style.fontFamily || "sans-serif"}`;
  context.textBaseline = "middle";
  const taken = [];
  for (const [id, [x, y]] of middles) {
    const one = store.classWith(id);
    if (!one) continue;
    const text = one.name.length > 24 ? `${one.name.slice(0, 23)}…` : one.name, wide = context.measureText(text).width + 16;
    const left = x * scale + dx - wide / 2;
    let top = y * scale + dy - 10;
    while (taken.some((box) => left < box[0] + box[2] && left + wide > box[0] && top < box[1] + 22 && top + 22 > box[1])) top += 22;
    taken.push([left, top, wide]);
    context.fillStyle = shade("raised");
    context.strokeStyle = colourOf(one);
    context.lineWidth = 2;
    context.beginPath();
    context.roundRect(left, top, wide, 20, 10);
    context.fill();
    context.stroke();
    context.fillStyle = shade("text");
    context.fillText(text, left + 8, top + 10.5);
  }
}

function nearest(x, y, reach = 12) {
  let best = -1, least = reach * reach;
  for (let n = 0; n < xy.length / 2; n++) {
    const a = xy[2 * n] * scale + dx - x, b = xy[2 * n + 1] * scale + dy - y, far = a * a + b * b;
    if (far < least) [best, least] = [n, far];
  }
  return best;
}

async function peek(number, x, y) {
  hover.hidden = number < 0;
  if (number < 0) return;
  if (hover.number !== number) {
    hover.number = number;
    hover.firstChild.src = api.thumbnail(number, 192, store.records.get(number)?.tag);
    const mark = store.mark(number);
    hover.lastChild.textContent = mark.one ? `${mark.one.name}${mark.given ? " ✓" : ""}` : mark.none ? "none of these" : "no label yet";
  }
  hover.style.transform = `translate(${Math.min(x + 18, width - 190)}px, ${Math.max(8, Math.min(y - 60, height - 220))}px)`;
}

function showStrip() {
  const numbers = [...store.selection].slice(0, 40);
  strip.hidden = !numbers.length || store.view !== "map";
  if (strip.hidden) return;
  const more = store.selection.size - numbers.length;
  strip.replaceChildren(...numbers.map((number) => h("img", { alt: "", loading: "lazy", src: api.thumbnail(number, 96, store.records.get(number)?.tag) })), ...(more > 0 ? [h("span", { class: "muted", text: `and ${count(more)} more` })] : []));
}

function pointer() {
  const fingers = new Map();
  const at = (event) => {
    const box = host.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  ink.addEventListener("pointerdown", (event) => {
    ink.setPointerCapture(event.pointerId);
    host.focus({ preventScroll: true });
    fingers.set(event.pointerId, at(event));
    const moving = tool === "move" || event.button === 1 || event.button === 2 || event.altKey || fingers.size > 1;
    lasso = moving ? null : [at(event)];
    ink.dataset.moving = moving ? "yes" : "no";
    hover.hidden = true;
    store.dragging = true;
  });
  ink.addEventListener("pointermove", (event) => {
    const now = at(event);
    if (!fingers.has(event.pointerId)) return peek(nearest(...now), ...now);
    const before = fingers.get(event.pointerId);
    if (fingers.size === 2) {
      const other = [...fingers.entries()].find(([id]) => id !== event.pointerId)[1];
      const was = Math.hypot(before[0] - other[0], before[1] - other[1]), is = Math.hypot(now[0] - other[0], now[1] - other[1]);
      if (was > 0) zoomAt(is / was, other[0], other[1]);
    } else if (lasso) {
      lasso.push(now);
      drawInk();
    } else {
      dx += now[0] - before[0];
      dy += now[1] - before[1];
      moved = true;
      draw();
    }
    fingers.set(event.pointerId, now);
  });
  const up = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    store.dragging = false;
    ink.dataset.moving = "no";
    const drawn = lasso;
    lasso = null;
    if (drawn) {
      const add = event.shiftKey || event.ctrlKey || event.metaKey;
      if (drawn.length > 3 && Math.max(...drawn.map(([x]) => x)) - Math.min(...drawn.map(([x]) => x)) + Math.max(...drawn.map(([, y]) => y)) - Math.min(...drawn.map(([, y]) => y)) > 8) {
        const found = [];
        for (let n = 0; n < xy.length / 2; n++) if (within(...toScreen(n), drawn)) found.push(n);
        store.select(found, { add });
      } else {
        const one = nearest(...drawn[0]);
        store.select(one < 0 ? [] : [one], { add: add && one >= 0 });
      }
    }
    draw();
  };
  ink.addEventListener("pointerup", up);
  ink.addEventListener("pointercancel", up);
  ink.addEventListener("pointerleave", () => (hover.hidden = true));
  ink.addEventListener("contextmenu", (event) => event.preventDefault());
  ink.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoomAt(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0016)), ...at(event));
  }, { passive: false });
}

function size() {
  const box = host.getBoundingClientRect();
  if (!box.width) return;
  const first = !width;
  [width, height] = [box.width, box.height];
  const ratio = Math.min(2, devicePixelRatio);
  plot.resize(width, height, ratio);
  ink.width = Math.round(width * ratio);
  ink.height = Math.round(height * ratio);
  if (first || !moved) fit();
  draw();
}

async function read() {
  const { map, embedding } = store.state;
  waiting.hidden = version >= 0 || map.state === "ready";
  if (!waiting.hidden) waiting.replaceChildren(h("h1", { text: "The map is being drawn" }), h("p", { text: embedding.state === "done" ? "A few seconds." : `It comes when all images have been looked at: ${count(embedding.done)} of ${count(embedding.total)}.` }));
  if (map.version === version || map.state !== "ready") return;
  const mine = ++asked, answer = await api.map();
  if (mine !== asked) return; // the newest counts
  version = answer.version;
  xy = new Float32Array(answer.bytes);
  middles = null;
  waiting.hidden = true;
  if (!moved) fit();
  draw();
  host.dataset.version = version;
}

export function start() {
  const tools = [["lasso", "Select with a lasso"], ["move", "Move the map"]].map(([name, title]) => h("button", { class: "icon-button", title, "aria-label": title, "aria-pressed": String(name === tool), on: { click: () => choose(name) } }, icon(name)));
  const choose = (name) => {
    tool = name;
    tools.forEach((one, at) => one.setAttribute("aria-pressed", String(["lasso", "move"][at] === name)));
    ink.dataset.tool = name;
  };
  host.tabIndex = 0;
  $("hand").prepend(strip);
  host.append(canvas, ink, hover, waiting, h("div", { class: "map-tools" }, ...tools, h("button", { class: "icon-button", title: "Show everything", "aria-label": "Show everything", on: { click: () => ((moved = false), fit(), draw()) } }, icon("fit"))), legend);
  legend.append(h("span", { text: "Larger: yours. Pale: doubtful. Wheel: zoom. Right drag: move." }));
  pointer();
  new ResizeObserver(size).observe(host);
  const see = () => store.view === "map" && store.state && (read().catch((problem) => toast(problem.message, { kind: "bad" })), draw());
  store.on("view", () => store.view === "map" && (size(), see()));
  store.on("state", see);
  store.on("marks", () => ((middles = null), draw()));
  store.on("pending theme", draw);
  store.on("selection view", () => (draw(), showStrip()));
}
