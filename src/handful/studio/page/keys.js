// The keyboard. Letters and digits are classes; Shift and a letter goes somewhere.

import * as actions from "./actions.js";
import { name as nameSelection, zoomBy } from "./bars.js";
import { exporting, help } from "./dialogs.js";
import { reveal, step } from "./grid.js";
import * as loupe from "./loupe.js";
import * as map from "./map.js";
import * as queue from "./queue.js";
import { store } from "./store.js";

const WAYS = { G: "grid", Q: "queue", M: "map", O: "groups" };

function move(event) {
  const { columns, rows } = step(), at = store.cursor;
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - columns, ArrowDown: at + columns, Home: 0, End: store.order.length - 1, PageUp: at - columns * rows, PageDown: at + columns * rows }[event.key];
  if (to === undefined) return false;
  if ((event.key === "ArrowUp" && to < 0) || (event.key === "ArrowDown" && to >= store.order.length && at >= 0)) return true;
  store.moveTo(at < 0 && event.key !== "End" ? 0 : to, { extend: event.shiftKey });
  reveal(store.cursor);
  return true;
}

function withControl(event) {
  const key = event.key.toLowerCase();
  if (key === "z") event.shiftKey ? actions.redo() : actions.undo();
  else if (key === "y") actions.redo();
  else if (key === "a" && store.view !== "queue") actions.selectAll();
  else return false;
  return true;
}

function inQueue(event) {
  const act = { ArrowLeft: () => queue.likely(0), ArrowRight: () => queue.likely(1), " ": queue.skip, ArrowDown: queue.skip, Backspace: queue.back, ArrowUp: queue.back, Delete: queue.back }[event.key];
  if (act) act();
  return Boolean(act);
}

function inGrid(event) {
  if (event.key === "Backspace" || event.key === "Delete") actions.takeBack();
  else if (event.key === "Enter") loupe.isOpen() ? loupe.close() : loupe.open();
  else if (event.key === " " && event.shiftKey) actions.acceptScreen();
  else if (event.key === " ") store.order[store.cursor] !== undefined && store.toggle(store.order[store.cursor]);
  else return move(event);
  return true;
}

function inMap(event) {
  if (event.key === "Backspace" || event.key === "Delete") actions.takeBack();
  else if (event.key.startsWith("Arrow")) map.pan({ ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0, { ArrowUp: -1, ArrowDown: 1 }[event.key] ?? 0);
  else return false;
  return true;
}

/** A letter or digit: the class of that key, none of these, or the beginning of a name. */
function letter(event) {
  const key = event.key.toLowerCase(), inLine = store.view === "queue";
  const one = store.classForKey(key);
  if (one) inLine ? queue.label(one.name) : actions.label(one.name);
  else if (key === "0" || key === "n") inLine ? queue.none() : actions.none();
  else if (/^\p{L}$/u.test(key)) inLine ? queue.name(event.key) : (actions.selectPointed(), nameSelection(event.key)) || actions.label("");
  else return false;
  return true;
}

function handle(event) {
  if (event.ctrlKey || event.metaKey) return !event.altKey && withControl(event);
  if (event.altKey || event.isComposing) return false;
  if (event.key === "?") return help(), true;
  if (event.key === "Escape") return loupe.isOpen() ? loupe.close() : store.select([]), true;
  if (event.key === "/") return store.view === "queue" ? queue.name() : nameSelection(), true;
  if (event.key === "+" || event.key === "=" || event.key === "-") {
    const factor = event.key === "-" ? 1 / 1.25 : 1.25;
    return store.view === "map" ? map.zoomBy(factor) : zoomBy(factor), true;
  }
  if (event.shiftKey && /^[A-Z]$/.test(event.key)) {
    if (WAYS[event.key]) store.tell("go", WAYS[event.key]);
    else if (event.key === "L") actions.like();
    else if (event.key === "A") actions.acceptSelected();
    else if (event.key === "E") exporting();
    else return false;
    return true;
  }
  if (store.view === "groups") return false;
  const special = { queue: inQueue, grid: inGrid, map: inMap }[store.view];
  return special(event) || (event.key.length === 1 && letter(event));
}

export function start() {
  addEventListener("keydown", (event) => {
    const { target } = event;
    if (!store.state || document.querySelector("dialog[open]")) return;
    if (target.matches("input:not([type=range], [type=checkbox], [type=radio]), select, textarea")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    const onControl = target.matches("button, a, input");
    if (onControl && (event.key === "Enter" || event.key === " " || event.key.startsWith("Arrow"))) return;
    if (handle(event)) event.preventDefault();
  });
}
