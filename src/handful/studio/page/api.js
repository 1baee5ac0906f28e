// The routes of docs/studio-api.json, one function each.

export class Refused extends Error {
  /** `status` 0: the studio did not answer. */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function ask(method, path, body) {
  const options = { method, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Refused("The studio does not answer.", 0);
  }
  if (answer.ok) return answer;
  let message = `The studio answered with status ${answer.status}.`;
  try {
    message = (await answer.json()).error ?? message;
  } catch {
    // An answer that is not JSON has nothing to add.
  }
  throw new Refused(message, answer.status);
}

const json = async (method, path, body) => (await ask(method, path, body)).json();

async function binary(path) {
  const answer = await ask("GET", path);
  return {
    bytes: await answer.arrayBuffer(),
    revision: Number(answer.headers.get("X-Revision") ?? 0),
    version: Number(answer.headers.get("X-Version") ?? 0),
  };
}

const words = (query) => new URLSearchParams(Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== ""));
const tagged = (tag) => (tag ? `&tag=${encodeURIComponent(tag)}` : "");

export const state = () => json("GET", "/api/state");
export const order = (query) => binary(`/api/order?${words(query)}`);
export const marks = () => binary("/api/marks");
export const map = () => binary("/api/map");
export const images = (query, offset, limit) => json("GET", `/api/images?${words({ ...query, offset, limit })}`);
export const image = (number) => json("GET", `/api/images/${number}`);
export const next = (count, skip) => json("GET", `/api/next?${words({ count, skip: skip.join(",") })}`);
export const groups = () => json("GET", "/api/groups");
export const broken = () => json("GET", "/api/broken");

export const label = (numbers, name) => json("POST", "/api/labels", { images: numbers, label: name });
export const accept = (where, version) => json("POST", "/api/accept", { where, version });
export const acceptImages = (images, labels) => json("POST", "/api/accept", { images, labels });
export const undo = () => json("POST", "/api/undo");
export const redo = () => json("POST", "/api/redo");
export const addClass = (name) => json("POST", "/api/classes", { name });
export const changeClass = (id, change) => json("PATCH", `/api/classes/${id}`, change);
export const deleteClass = (id) => json("DELETE", `/api/classes/${id}`);
export const mergeClass = (id, into) => json("POST", `/api/classes/${id}/merge`, { into });
export const write = (format, given) => json("POST", "/api/export", { format, given });

export const exportUrl = (format, given) => `/api/export?${words({ format, given: given ? "true" : null })}`;
export const thumbnail = (number, size, tag) => `/api/thumbnail/${number}?size=${size}${tagged(tag)}`;
export const preview = (number, tag) => `/api/preview/${number}?size=1280${tagged(tag)}`;

const KINDS = ["hello", "embedding", "labels", "model", "checked", "map", "groups", "files", "problem"];

/**
 * Listen to what happens; `heard(kind, data)` for each event, `lost(status)` when the line breaks
 * (null: the studio answers all the same). Connects again by itself.
 */
export function listen(heard, lost) {
  const source = new EventSource("/api/events");
  for (const kind of KINDS) source.addEventListener(kind, (event) => heard(kind, JSON.parse(event.data)));
  source.onerror = async () => {
    source.close();
    let status = null;
    try {
      await state();
    } catch (problem) {
      status = problem.status;
    }
    lost(status);
    setTimeout(() => listen(heard, lost), status === 401 ? 5000 : 700);
  };
  return source;
}
