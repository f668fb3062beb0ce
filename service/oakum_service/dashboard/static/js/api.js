// The REST API. EventSource cannot send a token, so the event stream is read through fetch.

const ANSWER_WITHIN_MS = 8000;

export class Unauthorised extends Error {}
export class Unreachable extends Error {}

export class Api {
  constructor(token) {
    this.headers = { Authorization: `Bearer ${token}` };
  }

  async get(path) {
    const answer = await this.#fetch(path, { signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
    try {
      return await answer.json();
    } catch (error) {
      throw new Unreachable(`${path}: the answer broke off (${error.message})`);
    }
  }

  /** Hands every event after `after` to `onEvent` until the stream ends; `onOpen` tells that it stands. */
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

  async #fetch(path, { headers = {}, signal }) {
    let answer;
    try {
      answer = await fetch(new URL(path, document.baseURI), {
        headers: { ...this.headers, ...headers },
        cache: "no-store",
        signal,
      });
    } catch (error) {
      throw new Unreachable(error.name === "TimeoutError" ? "it does not answer in time" : "nothing answers");
    }
    if (answer.status === 401 || answer.status === 403) throw new Unauthorised();
    if (!answer.ok) throw new Unreachable(await refusal(answer));
    return answer;
  }
}

function eventData(block) {
  return block
    .split("\n")
    .filter((line) => line.startsWith("data:"))
    .map((line) => line.slice(5).replace(/^ /, ""))
    .join("\n");
}

async function refusal(answer) {
  const problem = await answer.json().catch(() => null);
  return problem?.detail ?? `it answers ${answer.status} ${answer.statusText}`;
}
