// The REST API, signed in by a cookie. The event stream is read through fetch, which can tell why it was refused.

import { setClock } from "./time.js";

const ANSWER_WITHIN_MS = 8000;
const READ_WITHIN_MS = 30_000;
/** A header that pages of other origins cannot send. It has the page's half of the session; the cookie has the other. */
const GUARD = "X-Oakum-Dashboard";
/** Characters that turn round what stands beside them. */
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g;

/** The half of no session. */
export const NO_KEY = "1";

export class Unauthorised extends Error {}
export class Unreachable extends Error {}

/** The service understood the request and will not carry it out; `errors` has a line for each thing to change. */
export class Refused extends Error {
  constructor(message, errors, status) {
    super(message);
    this.errors = errors;
    this.status = status;
  }
}

export class Api {
  /** The page's half of its session; the cookie may be another's by now, set in another tab. */
  key = NO_KEY;

  #asked = new Map();

  /** Asks at once for documents that `get` is soon to be asked for, in place of those asked for so before. */
  ahead(paths) {
    this.#asked = new Map(paths.map((path) => [path, this.#read(path)]));
    for (const answer of this.#asked.values()) answer.catch(() => {}); // It is told to whom it is given.
  }

  /** The document at `path`. Throws `Unauthorised`, `Refused` or `Unreachable`. */
  async get(path) {
    const asked = this.#asked.get(path);
    this.#asked.delete(path);
    return asked ?? this.#read(path);
  }

  async #read(path) {
    const answer = await this.#fetch(path, { signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
    return parsed(path, answer);
  }

  /** Who comes with this key beside the cookie, or with this token. Throws as `get` does. */
  async whoIs({ key = NO_KEY, token = null }) {
    const headers = { [GUARD]: key, ...(token === null ? {} : { Authorization: `Bearer ${token}` }) };
    const answer = await this.#fetch("v1/session", { headers, signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
    return parsed("v1/session", answer);
  }

  /** What `send` has to be given so that it changes only what is at `path` now. Throws as `get` does. */
  async etagOf(path) {
    const answer = await this.#fetch(path, { signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
    return answer.headers.get("ETag");
  }

  /**
   * Sends a change and returns the document that answers it, null if there is none. With an `etag`, nothing is done if
   * what is changed is another by now. Throws as `get` does.
   */
  async send(method, path, body = undefined, etag = null) {
    const headers = { "Content-Type": "application/json", ...(etag === null ? {} : { "If-Match": etag }) };
    const signal = AbortSignal.timeout(READ_WITHIN_MS);
    const answer = await this.#fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
    return answer.status === 204 ? null : parsed(path, answer);
  }

  /** Calls `onEvent` with every event after `after` until the stream ends; calls `onOpen` when it is connected. */
  async stream(after, { onOpen, onEvent, signal }) {
    const headers = { Accept: "text/event-stream" };
    if (after !== null) headers["Last-Event-ID"] = String(after);
    const answer = await this.#fetch("v1/events", { headers, signal });
    onOpen();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = eventData(block);
        if (data) onEvent(JSON.parse(data));
      }
    }
  }

  async #fetch(path, { headers = {}, ...options }) {
    let answer;
    try {
      answer = await fetch(new URL(path, document.baseURI), { ...options, headers: { [GUARD]: this.key, ...headers }, cache: "no-store" });
    } catch (error) {
      throw new Unreachable(error.name === "TimeoutError" ? "it does not answer in time" : "nothing answers");
    }
    setClock(answer.headers.get("Date"));
    if (answer.ok) return answer;
    const problem = await answer.json().catch(() => null);
    if (answer.status === 401) throw new Unauthorised(problem?.detail);
    const told = problem?.detail ?? `it answers ${answer.status} ${answer.statusText}`;
    if (answer.status >= 500) throw new Unreachable(told);
    throw new Refused(told, problem?.errors ?? [], answer.status);
  }
}

async function parsed(path, answer) {
  try {
    return JSON.parse((await answer.text()).replaceAll(TURNING, "\ufffd"));
  } catch (error) {
    throw new Unreachable(`${path}: the answer broke off (${error.message})`);
  }
}

function eventData(block) {
  return block
    .split("\n")
    .filter((line) => line.startsWith("data:"))
    .map((line) => line.slice(5).replace(/^ /, ""))
    .join("\n");
}
