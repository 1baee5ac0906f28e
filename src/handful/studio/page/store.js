// What the page knows: the state, a mark for every image, the order of those shown, the selection.
// A label is shown at once (`pending`), sent in turn, and kept until the studio has it on disk.

import * as api from "./api.js";
import { toast } from "./dom.js";

export const GIVEN = 1, DOUBTFUL = 2, CHANGED = 4, TWIN = 8, BROKEN = 16, EMBEDDED = 32;
export const NO_LABEL = 65535;
const PAGE = 200; // images per window of /api/images

class Store extends EventTarget {
  state = null;
  revision = 0; // of the labels, as last acknowledged
  version = -1; // of the model whose marks are shown
  query = { sort: "name", show: "all", class: null, like: null, group: null, text: "" };
  view = "grid";
  online = true;
  classOf = new Uint16Array(0);
  flags = new Uint8Array(0);
  confidence = new Uint8Array(0);
  order = new Uint32Array(0);
  places = null; // number -> index in order, made when asked for
  ordered = false; // whether an order has arrived
  records = new Map();
  selection = new Set();
  cursor = -1; // index in order
  anchor = -1;
  pointed = -1; // number of the image under the pointer
  pending = new Map(); // number -> {name, op}
  outbox = [];
  fresh = new Map(); // number -> {at, was}: changed by the newest model
  #windows = new Set(); // asked for
  #answered = new Set();
  #sending = false;
  #refreshing = null;
  #again = false;
  #timer = 0;

  tell(kind, detail) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }
  on(kinds, act) {
    for (const kind of kinds.split(" ")) this.addEventListener(kind, (event) => act(event.detail));
  }

  // -- classes ---------------------------------------------------------------------------------------------------

  /** The classes to show, those included that are still being sent. */
  get classes() {
    const all = [...(this.state?.classes ?? [])];
    const used = new Set(all.map((one) => one.key)), colours = new Set(all.map((one) => one.colour));
    for (const op of this.outbox) {
      if (!op.name || op.name === this.noneName || all.some((one) => one.name === op.name)) continue;
      const key = [...(this.state?.keys ?? "")].find((each) => !used.has(each)) ?? null;
      let colour = 0; // key and colour as the studio will choose them
      while (colours.has(colour)) colour++;
      used.add(key);
      colours.add(colour);
      all.push({ id: -all.length - 1, name: op.name, key, colour, given: 0, found: 0, doubtful: 0 });
    }
    return all;
  }
  get noneName() {
    return this.state?.none.name ?? "none-of-these";
  }
  classNamed(name) {
    return this.classes.find((one) => one.name === name) ?? null;
  }
  classWith(id) {
    return this.state?.classes.find((one) => one.id === id) ?? null;
  }
  classForKey(key) {
    return this.classes.find((one) => one.key === key) ?? null;
  }

  /** Counts of given labels that are shown but not yet acknowledged, by name. */
  get waiting() {
    const more = new Map();
    for (const [number, { name }] of this.pending) {
      if (name !== null) more.set(name, (more.get(name) ?? 0) + 1);
      const before = this.flags[number] & GIVEN ? this.#nameOf(this.classOf[number]) : null;
      if (before !== null) more.set(before, (more.get(before) ?? 0) - 1);
    }
    return more;
  }
  #nameOf(id) {
    return id === 0 ? this.noneName : this.classWith(id)?.name ?? null;
  }

  /** What is said of an image: {one: class or null, none, given, doubtful, changed, confidence, sending}. */
  mark(number) {
    const wait = this.pending.get(number);
    if (wait) {
      const none = wait.name === this.noneName;
      const one = wait.name === null || none ? null : this.classNamed(wait.name);
      return { one, none, given: wait.name !== null, doubtful: false, changed: false, confidence: 1, sending: true };
    }
    const id = this.classOf[number] ?? NO_LABEL, flags = this.flags[number] ?? 0;
    return {
      one: id === NO_LABEL || id === 0 ? null : this.classWith(id),
      none: id === 0,
      given: Boolean(flags & GIVEN),
      doubtful: Boolean(flags & DOUBTFUL),
      changed: Boolean(flags & CHANGED),
      confidence: (this.confidence[number] ?? 0) / 255,
      sending: false,
    };
  }

  // -- reading ---------------------------------------------------------------------------------------------------

  setState(state) {
    if (this.state && state.revision < this.state.revision) return;
    this.state = state;
    this.revision = Math.max(this.revision, state.revision);
    this.tell("state");
  }

  /** Read state, marks and order again, soon; several calls become one. */
  refreshSoon(after = 0) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.refresh(), after);
  }
  async refresh() {
    clearTimeout(this.#timer);
    if (this.#refreshing) {
      this.#again = true;
      return this.#refreshing;
    }
    this.#refreshing = this.#read();
    try {
      await this.#refreshing;
    } catch (problem) {
      if (problem.status) toast(problem.message, { kind: "bad" });
    } finally {
      this.#refreshing = null;
    }
    if (this.#again) {
      this.#again = false;
      this.refreshSoon();
    }
  }
  async #read() {
    const holding = this.holding;
    const query = { ...this.query };
    const [state, marks, order] = await Promise.all([api.state(), api.marks(), holding ? null : api.order(query)]);
    if (marks.revision < this.revision) {
      this.#again = true; // an answer from before the last label: ask again, show nothing old
      return;
    }
    this.setState(state);
    this.#takeMarks(new Uint8Array(marks.bytes));
    this.#forget();
    if (this.holding) this.stale = true; // by now, perhaps, and not when it was asked
    else if (order && this.sameQuery(query)) this.#takeOrder(new Uint32Array(order.bytes));
    else if (holding) this.#again = true;
    this.tell("marks");
    if (marks.version === this.version) return;
    this.version = marks.version;
    requestAnimationFrame(() => performance.mark("relabelled", { detail: marks.version })); // for measurements
  }
  #forget() {
    this.#windows.clear();
    this.#answered.clear();
  }
  sameQuery(query) {
    return Object.keys(this.query).every((key) => this.query[key] === query[key]);
  }

  #takeMarks(bytes) {
    const total = bytes.length / 4, before = this.classOf, now = performance.now();
    const classOf = new Uint16Array(total), flags = new Uint8Array(total), confidence = new Uint8Array(total);
    for (let n = 0, at = 0; n < total; n++, at += 4) {
      classOf[n] = bytes[at] | (bytes[at + 1] << 8);
      flags[n] = bytes[at + 2];
      confidence[n] = bytes[at + 3];
    }
    if (before.length === total) {
      for (const [number, one] of this.fresh) if (now - one.at > 4000) this.fresh.delete(number);
      for (let n = 0; n < total; n++) {
        if (before[n] !== classOf[n] && before[n] !== NO_LABEL && !(flags[n] & GIVEN)) this.fresh.set(n, { at: now, was: before[n] });
      }
    }
    Object.assign(this, { classOf, flags, confidence });
  }

  #takeOrder(order) {
    const number = this.order[this.cursor], began = this.order[this.anchor];
    this.tell("before-order");
    this.order = order;
    this.places = null;
    this.ordered = true;
    this.stale = false;
    if (number !== undefined) {
      const at = this.placeOf(number);
      if (at >= 0) this.cursor = at;
      else {
        this.cursor = Math.min(this.cursor, order.length - 1);
        if (this.selection.delete(number)) this.tell("selection");
      }
    }
    this.anchor = began === undefined ? this.cursor : this.placeOf(began);
    if (this.anchor < 0) this.anchor = this.cursor;
    this.tell("order");
  }
  placeOf(number) {
    if (!this.places) {
      this.places = new Int32Array(this.classOf.length).fill(-1);
      this.order.forEach((each, index) => (this.places[each] = index));
    }
    return this.places[number] ?? -1;
  }

  /** The order stays while somebody chooses several images: nothing moves under the pointer. */
  get holding() {
    return this.dragging || this.selection.size > 1;
  }

  async ask(change) {
    Object.assign(this.query, change);
    this.select([]); // what is not shown must not be labelled
    this.tell("query");
    const query = { ...this.query };
    try {
      const order = await api.order(query);
      if (!this.sameQuery(query)) return;
      this.#forget();
      this.cursor = this.anchor = -1;
      this.#takeOrder(new Uint32Array(order.bytes));
      this.select([]); // what was selected since then was selected in the former order
      this.tell("top");
    } catch (problem) {
      toast(problem.message, { kind: "bad" });
    }
  }

  /** Fetch what is not in the marks (names, duplicates, ...) of the images at these indices, a window at a time. */
  need(first, last) {
    for (let page = Math.floor(first / PAGE); page <= Math.floor(last / PAGE); page++) {
      if (this.#windows.has(page)) continue;
      this.#windows.add(page);
      api.images({ ...this.query }, page * PAGE, PAGE).then(
        (answer) => {
          this.#answered.add(page);
          this.learn(answer.images);
        },
        () => this.#windows.delete(page),
      );
    }
  }
  /** Whether the window of an index has come; its images may be others if the order has changed since. */
  answered(index) {
    return this.#answered.has(Math.floor(index / PAGE));
  }
  learn(images) {
    for (const one of images) this.records.set(one.number, one);
    if (this.records.size > 20000) for (const number of [...this.records.keys()].slice(0, 10000)) this.records.delete(number);
    this.tell("records", images);
  }

  // -- selecting -------------------------------------------------------------------------------------------------

  select(numbers, { add = false } = {}) {
    if (!add) this.selection.clear();
    for (const number of numbers) this.selection.add(number);
    this.#chosen();
  }
  toggle(number) {
    if (!this.selection.delete(number)) this.selection.add(number);
    this.#chosen();
  }
  #chosen() {
    this.tell("selection");
    if (this.stale && !this.holding) this.refreshSoon();
  }
  /** Move to an index; `extend` selects all from where the movement began. */
  moveTo(index, { extend = false, keep = false, show = true } = {}) {
    if (!this.order.length) return;
    this.cursor = Math.max(0, Math.min(this.order.length - 1, index));
    if (!extend || this.anchor < 0) this.anchor = this.cursor;
    if (!keep) this.select(this.order.slice(Math.min(this.anchor, this.cursor), Math.max(this.anchor, this.cursor) + 1));
    this.tell("cursor", show);
  }

  // -- writing ---------------------------------------------------------------------------------------------------

  /** Label images, at once on the screen; null takes labels back. */
  label(numbers, name) {
    const op = { name, numbers: [...numbers], send: () => api.label(op.numbers, name) };
    this.outbox.push(op);
    for (const number of op.numbers) this.pending.set(number, { name, op });
    this.tell("pending", op.numbers);
    this.#send();
  }
  /** Any other action: sent after the labels before it, and its answer waited for. */
  act(send) {
    return new Promise((resolve) => {
      this.outbox.push({ numbers: [], send, resolve, once: true });
      this.tell("pending", []);
      this.#send();
    });
  }

  async #send() {
    if (this.#sending) return;
    this.#sending = true;
    while (this.outbox.length) {
      const op = this.outbox[0];
      try {
        const done = await op.send();
        this.#landed(op, done);
      } catch (problem) {
        // Labels may be sent twice without harm: they are kept until the studio is back.
        if (!op.once && (problem.status === 0 || problem.status === 401)) {
          this.connection(problem.status);
          await new Promise((resume) => setTimeout(resume, 700));
          continue;
        }
        this.#failed(op, problem);
      }
    }
    this.#sending = false;
    this.tell("sent");
  }
  #landed(op, done) {
    this.outbox.shift();
    this.connection(null);
    this.revision = Math.max(this.revision, done.revision ?? 0);
    if (done.state) this.setState(done.state);
    const id = op.name === undefined || op.name === null ? NO_LABEL
      : op.name === this.noneName ? 0 : this.classNamed(op.name)?.id ?? NO_LABEL;
    for (const number of op.numbers) {
      if (this.pending.get(number)?.op !== op) continue;
      this.pending.delete(number);
      this.classOf[number] = id;
      this.flags[number] = (this.flags[number] & ~(GIVEN | DOUBTFUL | CHANGED)) | (op.name === null ? 0 : GIVEN);
      this.confidence[number] = 255;
    }
    this.tell("pending", op.numbers);
    op.resolve?.(done);
    // A new model brings everything anyway; without one, the order may still depend on the label.
    this.refreshSoon(!op.numbers.length ? 0 : this.state?.model.state === "ready" ? 4000 : 400);
  }
  #failed(op, problem) {
    this.outbox.shift();
    for (const number of op.numbers) if (this.pending.get(number)?.op === op) this.pending.delete(number);
    this.tell("pending", op.numbers);
    toast(problem.message, { kind: "bad", seconds: 8 });
    if (problem.status === 0) this.connection(0);
    op.resolve?.(null);
    this.refreshSoon();
  }

  /** null: the studio answers; 0: it does not; 401: it has another token by now. */
  connection(status) {
    const online = status === null;
    if (online === this.online && status === this.status) return;
    this.online = online;
    this.status = status;
    this.tell("connection");
  }
}

export const store = new Store();
