// The grid: as many elements as are visible, whatever the number of images. Elements are kept by image, so that an image
// that moves glides to its new place without being loaded again.

import * as api from "./api.js";
import { paint } from "./colours.js";
import { $, framed, h, icon, images, percent } from "./dom.js";
import { store } from "./store.js";

const GAP = 10, PAD = 16, CAPTION = 28, HEADER = 40;
const host = $("grid");
const content = h("div", { class: "content", role: "presentation" });
const band = h("div", { class: "band", hidden: true });
const empty = h("div", { class: "empty", hidden: true });

let size = Number(localStorage.getItem("zoom")) || 150;
let columns = 1, cell = 150, left = PAD;
let sections = []; // {title, first, count, top}: runs of the order, one below the other
const cells = new Map(); // number -> element
const headers = [];
const free = [];
let speed = 0, lastTop = 0, lastTime = 0, settle = 0;

export const zoom = () => size;
export function setZoom(value) {
  const at = anchor();
  size = Math.max(72, Math.min(320, value));
  localStorage.setItem("zoom", size);
  lay();
  hold(at);
}

// -- where things are ------------------------------------------------------------------------------------------------

function lay() {
  const width = host.clientWidth - 2 * PAD;
  columns = Math.max(1, Math.floor((width + GAP) / (size + GAP)));
  cell = Math.max(40, Math.floor((width - (columns - 1) * GAP) / columns));
  left = PAD;
  host.dataset.size = cell < 100 ? "small" : "normal";
  sections = ["class", "alike", "rival"].includes(store.query.sort) ? runs() : [{ first: 0, count: store.order.length }];
  let top = PAD;
  for (const one of sections) {
    one.top = top;
    one.head = one.title ? HEADER : 0;
    top += one.head + Math.ceil(one.count / columns) * pitch() + (one.title ? 8 : 0);
  }
  content.style.height = `${top + 72}px`;
  draw();
}
const caption = () => (cell < 100 ? 0 : CAPTION);
const pitch = () => cell + caption() + GAP;

/** The order cut where the class changes. */
function runs() {
  const found = [];
  let last;
  store.order.forEach((number, index) => {
    const id = store.classOf[number];
    if (id !== last || !found.length) found.push({ first: index, count: 0, id });
    found.at(-1).count++;
    last = id;
  });
  if (found.length > 400) return [{ first: 0, count: store.order.length }];
  for (const one of found) one.title = one.id === 0 ? "None of these" : store.classWith(one.id)?.name ?? "No label yet";
  return found;
}

function sectionAt(index) {
  let low = 0, high = sections.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (sections[middle].first <= index) low = middle;
    else high = middle - 1;
  }
  return sections[low];
}
function placeAt(index) {
  const one = sectionAt(index), at = index - one.first;
  return { x: left + (at % columns) * (cell + GAP), y: one.top + one.head + Math.floor(at / columns) * pitch() };
}
/** First and last index whose rows touch the heights from `top` to `bottom`. */
function between(top, bottom) {
  let first = Infinity, last = -1;
  for (const one of sections) {
    if (!one.count) continue;
    const start = one.top + one.head, rows = Math.ceil(one.count / columns);
    if (start + rows * pitch() < top || start > bottom) continue;
    const from = Math.max(0, Math.floor((top - start) / pitch())), to = Math.min(rows - 1, Math.floor((bottom - start) / pitch()));
    if (from > to) continue;
    first = Math.min(first, one.first + from * columns);
    last = Math.max(last, one.first + Math.min(one.count, (to + 1) * columns) - 1);
  }
  return last < 0 ? null : { first, last };
}

/** What should stay where it is while the rest moves: the cursor if it can be seen, or nothing at the very top. */
function anchor() {
  const number = store.order[store.cursor];
  if (number !== undefined && sections.length) {
    const y = placeAt(store.cursor).y - host.scrollTop;
    if (y > -cell && y < host.clientHeight) return { number, y };
  }
  if (host.scrollTop < 40 || !sections.length) return null;
  const seen = between(host.scrollTop, host.scrollTop + host.clientHeight);
  return seen && { number: store.order[seen.first], y: placeAt(seen.first).y - host.scrollTop };
}
function hold(at) {
  const index = at ? store.placeOf(at.number) : -1;
  if (index >= 0) host.scrollTop = placeAt(index).y - at.y;
  draw();
}

export function reveal(index) {
  if (index < 0 || !sections.length) return;
  const { y } = placeAt(index);
  if (y < host.scrollTop + 48) host.scrollTop = y - 48;
  else if (y + pitch() > host.scrollTop + host.clientHeight - 84) host.scrollTop = y + pitch() - host.clientHeight + 84;
}
/** First and last index of the rows that are on the screen for the most part. */
export function onScreen() {
  const covered = $("hand").hidden ? 0 : host.getBoundingClientRect().bottom - $("hand").getBoundingClientRect().top;
  return between(host.scrollTop + 0.6 * pitch(), host.scrollTop + host.clientHeight - covered - 0.6 * pitch());
}
/** Scroll so that an index begins the screen; it becomes the cursor, which stays in place when others go. */
export function turnTo(index) {
  if (index >= store.order.length) return;
  store.moveTo(index, { keep: true, show: false });
  host.scrollTop = placeAt(index).y - HEADER - 4;
}
export const step = () => ({ columns, rows: Math.max(1, Math.floor(host.clientHeight / pitch()) - 1) });

// -- drawing ---------------------------------------------------------------------------------------------------------

function make() {
  const picture = h("img", { alt: "", draggable: "false", decoding: "async" });
  const node = h("div", { class: "cell", role: "option" },
    h("div", { class: "frame" }, picture, h("span", { class: "tick" }, icon("check")), h("span", { class: "twin", hidden: true }), h("span", { class: "reason", hidden: true })),
    h("div", { class: "caption" }, h("span", { class: "key" }), h("span", { class: "name" }), h("span", { class: "sure" })));
  picture.addEventListener("load", () => node.classList.add("loaded"));
  picture.addEventListener("error", () => picture.getAttribute("src") && node.classList.add("failed"));
  const parts = {};
  for (const name of ["frame", "twin", "reason", "key", "name", "sure"]) parts[name] = node.querySelector(`.${name}`);
  return Object.assign(node, { parts, picture });
}

function bind(node, number) {
  node.number = number;
  node.hidden = false;
  node.id = `image-${number}`;
  node.className = "cell";
  node.source = "";
  node.picture.removeAttribute("src");
  node.shown = "";
}

function dress(node, index) {
  const number = node.number, mark = store.mark(number), record = store.records.get(number), fresh = store.fresh.get(number);
  const chosen = store.selection.has(number), at = index === store.cursor;
  const recent = fresh && !mark.given && performance.now() - fresh.at < 3500;
  const shown = [mark.one?.id, mark.one?.name, mark.one?.key, mark.one?.colour, mark.none, mark.given, mark.doubtful, mark.confidence, mark.sending, chosen, at, recent, record?.name, record?.state, record?.duplicates.length].join("|");
  if (shown === node.shown) return;
  node.shown = shown;
  const { key, name, sure, twin, reason } = node.parts;
  const known = mark.one || mark.none;
  node.classList.toggle("given", mark.given);
  node.classList.toggle("doubtful", mark.doubtful && !mark.given);
  node.classList.toggle("none", mark.none);
  node.classList.toggle("blank", !known);
  node.classList.toggle("sending", mark.sending);
  node.classList.toggle("chosen", chosen);
  node.classList.toggle("cursor", at);
  node.classList.toggle("fresh", Boolean(recent));
  node.setAttribute("aria-selected", String(chosen));
  node.setAttribute("aria-setsize", store.order.length);
  node.setAttribute("aria-posinset", index + 1);
  key.hidden = !known;
  if (known) paint(key, mark.one);
  name.textContent = mark.one?.name ?? (mark.none ? "none of these" : "");
  sure.textContent = !known ? "" : mark.given ? "✓" : mark.doubtful ? `? ${percent(mark.confidence)}` : percent(mark.confidence);
  const was = recent ? store.classWith(fresh.was)?.name ?? (fresh.was === 0 ? "none of these" : null) : null;
  const broken = record?.state === "broken";
  node.classList.toggle("broken", Boolean(broken));
  reason.hidden = !broken;
  if (broken) reason.textContent = record.reason ?? "cannot be read";
  twin.hidden = !record?.duplicates.length;
  if (record?.duplicates.length) {
    twin.textContent = `×${record.duplicates.length + 1}`;
    twin.title = `${images(record.duplicates.length)} nearly the same`;
  }
  const said = !known ? "no label" : `${name.textContent}, ${mark.given ? "given" : mark.doubtful ? "doubtful" : "found"}`;
  node.setAttribute("aria-label", `${record?.name ?? `Image ${number}`}: ${said}`);
  node.title = `${record?.name ?? ""}${was ? `\nwas ${was}` : ""}`;
}

const pixels = () => { const want = cell * Math.min(2, devicePixelRatio); return want <= 110 ? 96 : want <= 220 ? 192 : 320; };

function load(node, index) {
  const record = store.records.get(node.number);
  if ((!record && !store.answered(index)) || record?.state === "broken") return;
  const source = api.thumbnail(node.number, pixels(), record?.tag);
  if (node.source === source) return;
  if (speed > 6) return; // flying past: pictures come when the movement slows down
  node.source = source;
  node.classList.remove("failed");
  node.picture.src = source;
}

export const draw = framed(() => {
  if (host.hidden) return;
  const top = host.scrollTop, height = host.clientHeight, ahead = speed > 6 ? 0 : pitch();
  const seen = store.order.length ? between(top - ahead, top + height + ahead) : null;
  const wanted = new Set();
  if (seen) {
    for (let index = seen.first; index <= seen.last; index++) wanted.add(store.order[index]);
    if (speed <= 6) store.need(seen.first, seen.last);
  }
  for (const [number, node] of cells) {
    if (wanted.has(number)) continue;
    cells.delete(number);
    node.picture.removeAttribute("src");
    node.hidden = true;
    node.className = "cell";
    node.number = -1;
    node.removeAttribute("id");
    free.push(node);
  }
  if (seen) {
    for (let index = seen.first; index <= seen.last; index++) {
      const number = store.order[index];
      let node = cells.get(number);
      if (!node) {
        node = free.pop() ?? content.appendChild(make());
        bind(node, number);
        cells.set(number, node);
      }
      const { x, y } = placeAt(index);
      node.style.transform = `translate(${x}px, ${y}px)`;
      if (node.wide !== cell) {
        node.style.width = `${cell}px`;
        node.style.height = `${cell + caption()}px`;
        node.wide = cell;
      }
      dress(node, index);
      load(node, index);
    }
  }
  drawHeaders(top, height);
  const current = store.order[store.cursor];
  if (current !== undefined && cells.has(current)) host.setAttribute("aria-activedescendant", `image-${current}`);
  else host.removeAttribute("aria-activedescendant");
});

function drawHeaders(top, height) {
  const seen = sections.filter((one) => one.title && one.top < top + height && one.top + one.head + Math.ceil(one.count / columns) * pitch() > top);
  while (headers.length < seen.length) headers.push(content.appendChild(h("div", { class: "run" }, h("span", { class: "key" }), h("b"), h("span", { class: "many" }))));
  headers.forEach((node, at) => {
    const one = seen[at];
    node.hidden = !one;
    if (!one) return;
    const known = store.classWith(one.id);
    node.style.transform = `translate(0, ${Math.max(one.top, Math.min(top - 1, one.top + Math.ceil(one.count / columns) * pitch() - HEADER))}px)`;
    node.children[0].hidden = !known && one.id !== 0;
    if (known || one.id === 0) paint(node.children[0], known);
    node.children[1].textContent = one.title;
    node.children[2].textContent = images(one.count);
  });
}

// -- pointer ---------------------------------------------------------------------------------------------------------

function indexOf(target) {
  const node = target.closest?.(".cell");
  return node && node.number >= 0 ? store.placeOf(node.number) : -1;
}
const point = (event) => {
  const box = host.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top + host.scrollTop };
};

function inBox(a, b) {
  const [x0, x1] = [Math.min(a.x, b.x), Math.max(a.x, b.x)], [y0, y1] = [Math.min(a.y, b.y), Math.max(a.y, b.y)];
  const seen = store.order.length ? between(y0, y1) : null;
  const found = [];
  for (let index = seen?.first ?? 0; seen && index <= seen.last; index++) {
    const { x, y } = placeAt(index);
    if (x < x1 && x + cell > x0 && y < y1 && y + cell + caption() > y0) found.push(store.order[index]);
  }
  return found;
}

/** All images from one to another, as text is marked; back and forth. */
function through(index, target, { x, y }) {
  let last = indexOf(target);
  if (last < 0) { // between two images, or beyond a row: the last one before this place
    const seen = between(y - pitch(), y);
    for (let at = seen?.first ?? 0; seen && at <= seen.last; at++) {
      const place = placeAt(at);
      if (place.y <= y && (place.y + pitch() <= y || place.x <= x)) last = at;
    }
  }
  return last < 0 ? [] : store.order.slice(Math.min(index, last), Math.max(index, last) + 1);
}

function press(event) {
  if (event.button !== 0 || event.target === host && event.offsetX > host.clientWidth) return;
  const start = point(event), index = indexOf(event.target), add = event.ctrlKey || event.metaKey;
  const before = add ? new Set(store.selection) : new Set();
  let boxing = false, last = event, timer = 0;
  const sweep = () => {
    const now = point(last), box = host.getBoundingClientRect();
    band.style.transform = `translate(${Math.min(start.x, now.x)}px, ${Math.min(start.y, now.y)}px)`;
    band.style.width = `${Math.abs(now.x - start.x)}px`;
    band.style.height = `${Math.abs(now.y - start.y)}px`;
    const found = index < 0 ? inBox(start, now) : through(index, document.elementFromPoint(last.clientX, last.clientY) ?? host, now);
    store.select([...before, ...found]);
    const edge = last.clientY < box.top + 24 ? -1 : last.clientY > box.bottom - 24 ? 1 : 0;
    if (edge) host.scrollTop += edge * 18;
    timer = edge ? requestAnimationFrame(sweep) : 0;
  };
  const move = (moved) => {
    if (moved.pointerId !== event.pointerId) return;
    last = moved;
    if (!boxing && Math.hypot(moved.clientX - event.clientX, moved.clientY - event.clientY) > 6 && event.pointerType !== "touch") {
      boxing = store.dragging = true;
      band.hidden = index >= 0;
      host.setPointerCapture(event.pointerId);
    }
    if (boxing && !timer) sweep();
  };
  const over = new AbortController();
  const up = (ended) => {
    over.abort();
    cancelAnimationFrame(timer);
    store.dragging = false;
    band.hidden = true;
    if (boxing || ended.type === "pointercancel") {
      if (store.selection.size === 1) store.cursor = store.anchor = store.placeOf([...store.selection][0]);
      return store.tell("selection");
    }
    if (index < 0) return store.select([]);
    if (event.shiftKey) return store.moveTo(index, { extend: true, show: false });
    if (add || event.pointerType === "touch") {
      store.moveTo(index, { keep: true, show: false });
      return store.toggle(store.order[index]);
    }
    store.moveTo(index, { show: false });
  };
  const { signal } = over;
  host.addEventListener("pointermove", move, { signal });
  addEventListener("pointerup", up, { signal }); // also outside of the grid
  addEventListener("pointercancel", up, { signal });
}

// -- starting --------------------------------------------------------------------------------------------------------

function scrolled() {
  const now = performance.now(), time = Math.max(1, now - lastTime);
  speed = Math.abs(host.scrollTop - lastTop) / time; // pixels a millisecond
  if (now - lastTime > 200) speed = 0;
  lastTop = host.scrollTop;
  lastTime = now;
  clearTimeout(settle);
  settle = setTimeout(() => ((speed = 0), draw()), 60);
  draw();
}

function say() {
  const none = store.ordered && !store.order.length;
  empty.hidden = !none;
  if (!none) return;
  const text = { doubtful: "No label is doubtful.", given: "You have not labelled any image yet.", none: "No image looks foreign to all classes.",
    changed: "The last labels changed nothing else.", unlabelled: "Every image has a label of yours.", found: "No labels have been found yet. Label images of two classes first." }[store.query.show];
  empty.replaceChildren(h("p", { text: store.query.text ? "No name contains this text." : text ?? "There is no image here." }),
    h("button", { class: "quiet", text: "Show all images", on: { click: () => store.ask({ show: "all", class: null, like: null, group: null, text: "", sort: store.query.sort === "like" ? "name" : store.query.sort }) } }));
}

export function start({ open }) {
  host.append(content, empty);
  content.append(band);
  host.addEventListener("pointerdown", press);
  const point = (event) => (store.pointed = event.pointerType === "mouse" ? event.target.closest?.(".cell")?.number ?? -1 : -1);
  host.addEventListener("pointermove", point);
  host.addEventListener("pointerleave", () => (store.pointed = -1));
  host.addEventListener("dblclick", (event) => indexOf(event.target) >= 0 && open());
  host.addEventListener("scroll", scrolled, { passive: true });
  new ResizeObserver(lay).observe(host);
  let at = null;
  store.on("before-order", () => (at = anchor()));
  store.on("order", () => {
    content.classList.add("gliding");
    setTimeout(() => content.classList.remove("gliding"), 320);
    lay();
    hold(at);
    say();
  });
  store.on("top", () => (host.scrollTop = 0));
  store.on("cursor", (show) => show && reveal(store.cursor));
  store.on("cursor selection pending records state", draw);
  store.on("marks", () => {
    draw();
    setTimeout(draw, 3600); // the marks of what changed go
  });
  host.addEventListener("visible", lay);
}
