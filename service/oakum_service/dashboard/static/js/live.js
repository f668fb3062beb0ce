// Keeps the page current: events ask for a refresh, at most one a second runs, and a poll asks where they stay out.

import { Unauthorised } from "./api.js";

const SHORTEST_GAP_MS = 1000;
const POLL_MS = 2000;
const RECONNECT_MS = [500, 1000, 2000, 4000];

/** Runs `refresh` soon after each request, never twice at once, never more often than once a second. */
export class Refresher {
  #refresh;
  #startedAt = -Infinity;
  #running = false;
  #timer = null;
  #wanted = false;
  #poll;

  constructor(refresh) {
    this.#refresh = refresh;
    this.#poll = setInterval(() => {
      if (!document.hidden && performance.now() - this.#startedAt >= POLL_MS - 50) this.request();
    }, POLL_MS);
    document.addEventListener("visibilitychange", this.#onVisible);
    this.request();
  }

  request() {
    this.#wanted = true;
    if (this.#running || this.#timer !== null) return;
    const wait = Math.max(0, this.#startedAt + SHORTEST_GAP_MS - performance.now());
    this.#timer = setTimeout(() => this.#run(), wait);
  }

  /** Refreshes without the wait, for what the user has just asked for. */
  now() {
    this.#startedAt = -Infinity;
    clearTimeout(this.#timer);
    this.#timer = null;
    this.request();
  }

  stop() {
    clearInterval(this.#poll);
    clearTimeout(this.#timer);
    document.removeEventListener("visibilitychange", this.#onVisible);
    this.#running = true;
  }

  async #run() {
    this.#timer = null;
    this.#running = true;
    this.#wanted = false;
    this.#startedAt = performance.now();
    try {
      await this.#refresh();
    } finally {
      this.#running = false;
    }
    if (this.#wanted) this.request();
  }

  #onVisible = () => {
    if (!document.hidden) this.request();
  };
}

/** Follows the event stream and takes it up again where it broke. Ends when `signal` aborts or the token is refused. */
export async function follow(api, after, { onEvent, onState, signal }) {
  let newest = after;
  let failures = 0;
  while (!signal.aborted) {
    try {
      await api.stream(newest, {
        signal,
        onOpen: () => onState(true),
        onEvent: (event) => {
          failures = 0;
          newest = event.id;
          onEvent(event);
        },
      });
    } catch (error) {
      if (error instanceof Unauthorised) return;
    }
    if (signal.aborted) return;
    onState(false);
    await new Promise((resolve) => setTimeout(resolve, RECONNECT_MS[Math.min(failures++, RECONNECT_MS.length - 1)]));
  }
}
