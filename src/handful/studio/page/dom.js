// Elements without markup: names of files and classes only ever become text.

export const $ = (id) => document.getElementById(id);

/** An element. `text` is its text, `on` its listeners, `data` its data-* attributes; all else are attributes. */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [kind, act] of Object.entries(value)) node.addEventListener(kind, act);
    else if (name === "data") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Give a node other children if what they show is other; else those that are there stay, with focus and half a click. */
export function renew(node, shown, make) {
  const key = JSON.stringify(shown);
  if (node.renewed === key) return;
  node.renewed = key;
  node.replaceChildren(...make().flat(Infinity).filter(Boolean));
}

const PATHS = {
  undo: "M9 7H15a5 5 0 0 1 0 10H8M9 7 5.5 10.5M9 7 5.5 3.5",
  redo: "M15 7H9a5 5 0 0 0 0 10h7M15 7l3.5 3.5M15 7l3.5-3.5",
  export: "M12 4v11M12 15l-4-4M12 15l4-4M5 19h14",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8ZM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6 19 19M5 19l1.4-1.4M17.6 6.4 19 5",
  moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5Z",
  help: "M9 9a3 3 0 1 1 4.2 2.7c-.8.4-1.2 1-1.2 1.8v.5M12 17.5v.1",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  check: "M5 12.5 10 17l9-10",
  close: "M6 6l12 12M18 6 6 18",
  copy: "M9 9h10v10H9zM5 15V5h10",
  lasso: "M12 4c5 0 8.5 2.4 8.5 6S17 16 12 16s-8.500-2.400-8.500-6S7 4 12 4ZM8 15.500c-1.500 1.500-1 4 1 4.500",
  move: "M12 3v18M3 12h18M12 3 9.500 5.500M12 3l2.500 2.500M12 21l-2.500-2.500M12 21l2.500-2.500M3 12l2.500-2.500M3 12l2.500 2.500M21 12l-2.500-2.500M21 12l-2.500 2.500",
  fit: "M4 9V4h5M20 9V4h-5M4 15v5h5M20 15v5h-5",
  warn: "M12 4 2.500 20h19ZM12 10v4.500M12 17.300v.1",
  like: "M4 7h9M4 12h9M4 17h9M18 7v10M18 7l-2.500 2.500M18 7l2.500 2.500",
  plus: "M12 5v14M5 12h14",
  small: "M5 5h4v4H5zM15 5h4v4h-4zM5 15h4v4H5zM15 15h4v4h-4z",
  large: "M5 5h14v14H5z",
};

/** A drawn symbol, hidden from screen readers. */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

const plain = new Intl.NumberFormat("en-GB");
export const count = (value) => plain.format(value);
export const images = (value) => (value === 1 ? "1 image" : `${plain.format(value)} images`);
/** A share as a percentage, without claiming certainty that is not there. */
export const percent = (share) => `${Math.min(99, Math.floor(share * 100 + 0.5))} %`;

/** Calls of `act` within one frame become one call in the next. */
export function framed(act) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      act();
    });
  };
}

const MAC = /Mac|iP(hone|ad)/.test(navigator.platform);
export const CTRL = MAC ? "⌘" : "Ctrl";

let timer = 0;
/** A short message at the bottom; `undo` adds a button. */
export function toast(text, { kind = "", action = null, seconds = 5 } = {}) {
  const close = () => node.remove();
  const node = h("div", { class: `toast ${kind}` }, h("span", { text }));
  if (action) node.append(h("button", { text: action.text, on: { click: () => (close(), action.act()) } }));
  $("toasts").replaceChildren(node);
  clearTimeout(timer);
  timer = setTimeout(close, seconds * 1000);
}
