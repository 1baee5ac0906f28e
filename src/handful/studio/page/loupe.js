// One image of the grid, large.

import * as api from "./api.js";
import { paint } from "./colours.js";
import { h, icon, percent } from "./dom.js";
import { store } from "./store.js";

let node = null;
export const isOpen = () => node !== null;

export function open() {
  if (node || store.order[store.cursor] === undefined) return;
  const close_ = h("button", { class: "icon-button", "aria-label": "Close", title: "Close (Esc)", on: { click: close } }, icon("close"));
  node = h("div", { class: "loupe", role: "dialog", "aria-modal": "true", "aria-label": "Large image", tabindex: "-1" }, h("img", { class: "under", alt: "" }), h("img", { class: "large", alt: "" }), h("footer", {}, h("span", { class: "key" }), h("b"), h("span", { class: "muted" }), h("span", { class: "file" }), close_));
  node.addEventListener("click", (event) => event.target === node && close());
  document.body.append(node);
  node.focus();
  draw();
}
export function close() {
  node?.remove();
  node = null;
  document.getElementById("grid").focus({ preventScroll: true });
}

export function draw() {
  if (!node) return;
  const number = store.order[store.cursor];
  if (number === undefined) return close();
  const record = store.records.get(number), mark = store.mark(number);
  const [under, large, foot] = node.children;
  if (node.number !== number) {
    node.number = number;
    under.src = api.thumbnail(number, 320, record?.tag);
    large.classList.remove("loaded");
    large.onload = () => large.classList.add("loaded");
    large.src = api.preview(number, record?.tag);
  }
  large.alt = record?.name ?? "";
  foot.children[0].hidden = !mark.one && !mark.none;
  paint(foot.children[0], mark.one);
  foot.children[1].textContent = mark.one?.name ?? (mark.none ? "none of these" : "no label yet");
  foot.children[2].textContent = mark.one && !mark.given ? `${percent(mark.confidence)} sure` : mark.given ? "✓ yours" : "";
  foot.children[3].textContent = record?.name ?? "";
}

export function start() {
  store.on("cursor pending records marks state", draw);
}
