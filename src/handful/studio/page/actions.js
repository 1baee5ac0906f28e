// What a key or a click does to the images that are selected.

import * as api from "./api.js";
import { images, toast } from "./dom.js";
import * as grid from "./grid.js";
import { NO_LABEL, store } from "./store.js";

const NEAREST = 24; // of the images that are like this one

/** The image under the pointer, if nothing is selected; only once the pointer has moved since it was last labelled. */
const pointed = () => (store.view === "grid" && !store.selection.size && store.pointed >= 0 ? [store.pointed] : []);
export function selectPointed() {
  if (pointed().length) store.select(pointed());
}

/** Label what is selected, or else the image under the pointer; a single image hands on to the next one. */
export function label(name) {
  const numbers = store.selection.size ? [...store.selection] : pointed();
  if (!numbers.length || name === "") return toast("Select an image first: click it, point at it, or move with the arrow keys.");
  store.pointed = -1;
  const many = numbers.length > 1, index = store.cursor;
  store.label(numbers, name);
  if (many) {
    const said = name === null ? "Labels taken back" : name === store.noneName ? "None of these" : name;
    toast(`${said}: ${images(numbers.length)}`, { action: { text: "Undo", act: undo } });
    store.select([]);
  } else if (name !== null && store.view === "grid" && store.order[index] === numbers[0] && index < store.order.length - 1) {
    store.moveTo(index + 1);
  }
  store.tell("labelled", { numbers, name });
}
export const none = () => label(store.noneName);
export const takeBack = () => label(null);

async function turn(send, word) {
  const done = await store.act(send);
  if (done) toast(`${word}: ${done.what}`, { seconds: 3 });
}
export const undo = () => turn(api.undo, "Undone");
export const redo = () => turn(api.redo, "Done again");

export function selectAll() {
  store.select(store.order);
}

/** Select the images that are most like the selected one, and sort by likeness to it. */
export async function like() {
  const number = store.selection.size ? [...store.selection].at(-1) : store.order[store.cursor];
  if (number === undefined) return toast("Select an image first.");
  await store.ask({ sort: "like", like: number });
  if (store.order[0] === undefined) return;
  store.cursor = store.anchor = 0;
  store.select(store.order.slice(0, NEAREST));
}

/** Turn the found labels of what is selected into given ones. */
export async function acceptSelected() {
  const numbers = [...store.selection];
  if (!numbers.length) return toast("Select images first.");
  const labels = numbers.map((number) => store.classOf[number]); // what is on the screen, whatever is found meanwhile
  const known = numbers.map((number, at) => [number, labels[at]]).filter(([, label]) => label !== NO_LABEL);
  const done = await store.act(() => api.acceptImages(known.map(([number]) => number), known.map(([, label]) => label)));
  if (!done) return;
  store.select([]);
  toast(done.count ? `Accepted: ${images(done.count)}` : "Nothing to accept: no label was found for them, or you gave it.", { action: done.count ? { text: "Undo", act: undo } : null });
}

/** Turn the found labels on the screen into given ones, but those of what is selected, and go on to the next screen. */
export async function acceptScreen() {
  const seen = store.view === "grid" && store.order.length ? grid.onScreen() : null;
  if (!seen || store.state.model.state !== "ready") return toast("There is nothing to accept: label images of two classes first.");
  const numbers = [...store.order.slice(seen.first, seen.last + 1)].filter((number) => {
    const mark = store.mark(number);
    return !store.selection.has(number) && !mark.given && !mark.sending && (mark.one || mark.none);
  });
  const labels = numbers.map((number) => store.classOf[number]), left = store.selection.size;
  store.select([]);
  grid.turnTo(seen.last + 1);
  const done = await store.act(() => api.acceptImages(numbers, labels));
  if (done) toast(done.count ? `Accepted: ${images(done.count)}${left ? `, without ${images(left)}` : ""}` : "Nothing to accept on this screen.", { action: done.count ? { text: "Undo", act: undo } : null });
}

/** Turn all found labels that are at least so sure into given ones; those that are shown, if a class is. */
export async function accept(surer) {
  const where = { show: "found", surer };
  if (store.query.class) where.class = store.query.class;
  const done = await store.act(() => api.accept(where, store.state.model.version));
  if (done) toast(`Accepted: ${images(done.count)}`, { action: { text: "Undo", act: undo } });
}
