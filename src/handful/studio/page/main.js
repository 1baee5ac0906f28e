// Start: wire the parts, read the state, listen to the studio.

import * as api from "./api.js";
import * as bars from "./bars.js";
import { $, toast } from "./dom.js";
import * as grid from "./grid.js";
import * as groups from "./groups.js";
import * as keys from "./keys.js";
import * as loupe from "./loupe.js";
import * as map from "./map.js";
import * as queue from "./queue.js";
import * as side from "./side.js";
import { store } from "./store.js";

const VIEWS = ["groups", "grid", "queue", "map"];
let touched = false; // whether the user has chosen a view or selected anything

function go(view) {
  store.view = view;
  document.body.dataset.view = view;
  for (const name of VIEWS) {
    $(name).hidden = name !== view;
    const tab = $(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === view));
    tab.tabIndex = name === view ? 0 : -1;
  }
  store.tell("view");
  if (view === "grid") {
    grid.draw();
    $("grid").focus({ preventScroll: true });
  }
}

function tabs() {
  for (const name of VIEWS) $(`tab-${name}`).addEventListener("click", () => ((touched = true), go(name)));
  $("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.stopPropagation();
    const name = VIEWS[(VIEWS.indexOf(store.view) + step + VIEWS.length) % VIEWS.length];
    go(name);
    $(`tab-${name}`).focus();
  });
  store.on("go", (name) => ((touched = true), go(name)));
}

/** Where a new user begins: at the groups as soon as there are any, in the grid until then. */
function lead() {
  const { state } = store;
  if (touched || state.labelled || store.outbox.length || store.selection.size || store.view === "groups") return;
  if (state.groups.state === "ready") go("groups");
}

function heard(kind, data) {
  store.connection(null);
  if (kind === "hello") {
    store.setState(data);
    store.refreshSoon();
  } else if (kind === "model" || kind === "files") store.refreshSoon();
  else if (kind === "labels") data.revision > store.revision && store.refreshSoon(150);
  else if (kind === "problem") toast(data.error, { kind: "bad", seconds: 8 });
  else if (store.state) {
    const part = { embedding: "embedding", map: "map", groups: "groups", checked: "model" }[kind];
    store.state = { ...store.state, [part]: data, ...(kind === "embedding" ? { embedded: data.done } : {}) };
    store.tell("state");
    if (data.state === "done" || (data.state === "ready" && kind !== "checked")) store.refreshSoon(); // counts may be others
  }
}

for (const part of [bars, side, groups, queue, map, loupe, keys]) part.start();
grid.start(loupe);
if (location.search) history.replaceState(null, "", "/"); // the token is a cookie by now
tabs();
go("grid");
store.on("state", () => {
  document.body.dataset.phase = "ready";
  document.title = `${$("folder").textContent} · handful studio`;
  lead();
});
addEventListener("beforeunload", (event) => store.outbox.length && event.preventDefault());
api.listen(heard, (status) => store.connection(status));
store.refresh();
