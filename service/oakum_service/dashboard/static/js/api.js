// The REST API, signed in by a cookie. The event stream is read through fetch, which can tell why it was refused.

const ANSWER_WITHIN_MS = 8000;
const READ_WITHIN_MS = 30_000;
const CLOCKS_AGREE_S = 3;
/** A header that pages of other origins cannot send; without it a cookie changes nothing. */
const GUARD = { "X-Oakum-Dashboard": "1" };

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
  /** Seconds by which the service's clock is ahead of the browser's; differences of a few seconds count as none. */
  skewS = 0;

  /** The document at `path`. Throws `Unauthorised`, `Refused` or `Unreachable`. */
  async get(path) {
    const answer = await this.#fetch(path, { signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
    return parsed(path, answer);
  }

  /** Sends a change and returns the document that answers it, null if there is none. Throws as `get` does. */
  async send(method, path, body = undefined) {
    const headers = { "Content-Type": "application/json" };
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

  #keepSkew(answer) {
    const told = Date.parse(answer.headers.get("Date") ?? "");
    const skewS = Number.isNaN(told) ? 0 : (told - Date.now()) / 1000;
    this.skewS = Math.abs(skewS) > CLOCKS_AGREE_S ? skewS : 0;
  }

  async #fetch(path, { headers = {}, ...options }) {
    let answer;
    try {
      answer = await fetch(new URL(path, document.baseURI), { ...options, headers: { ...GUARD, ...headers }, cache: "no-store" });
    } catch (error) {
      throw new Unreachable(error.name === "TimeoutError" ? "it does not answer in time" : "nothing answers");
    }
    this.#keepSkew(answer);
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
    return await answer.json();
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
