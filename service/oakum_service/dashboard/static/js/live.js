// Keeps the page current: each event requests a refresh, at most one runs per second, and a poll covers missed events.

import { Unauthorised } from "./api.js";

const SHORTEST_GAP_MS = 1000;
const LONGEST_GAP_MS = 6000;
/** Traffic of a page that stays open; after a refresh that took more, the next one waits. */
const MOST_BYTES_PER_S = 8000;
const POLL_MS = 2000;
const RECONNECT_MS = [500, 1000, 2000, 4000];

/** Runs `refresh` soon after each request, never more often than once a second, and never twice at once but for `anew`. */
export class Refresher {
  #refresh;
  #startedAt = -Infinity;
  #running = false;
  #runs = 0;
  #timer = null;
  #wanted = false;
  #isStopped = false;
  #poll;
  #gap = SHORTEST_GAP_MS;

  constructor(refresh) {
    this.#refresh = refresh;
    this.#poll = setInterval(() => {
      if (!document.hidden && performance.now() - this.#startedAt >= Math.max(POLL_MS, this.#gap) - 50) this.request();
    }, POLL_MS);
    document.addEventListener("visibilitychange", this.#onVisible);
    this.request();
  }

  request() {
    this.#wanted = true;
    if (this.#isStopped || this.#running || this.#timer !== null) return;
    const wait = Math.max(0, this.#startedAt + this.#gap - performance.now());
    this.#timer = setTimeout(() => this.#run(), wait);
  }

  /** Refreshes at once, after an action of the user. */
  now() {
    this.#startedAt = -Infinity;
    clearTimeout(this.#timer);
    this.#timer = null;
    this.request();
  }

  /** Refreshes at once, although what is asked for already may have no answer yet: that was for another view, or hangs. */
  anew() {
    this.#running = false;
    this.now();
  }

  stop() {
    this.#isStopped = true;
    clearInterval(this.#poll);
    clearTimeout(this.#timer);
    document.removeEventListener("visibilitychange", this.#onVisible);
  }

  async #run() {
    const run = ++this.#runs;
    this.#timer = null;
    this.#running = true;
    this.#wanted = false;
    this.#startedAt = performance.now();
    try {
      await this.#refresh();
    } finally {
      if (run === this.#runs) this.#running = false;
    }
    if (run !== this.#runs) return;
    this.#gap = Math.min(LONGEST_GAP_MS, Math.max(SHORTEST_GAP_MS, (1000 * received()) / MOST_BYTES_PER_S));
    if (this.#wanted) this.request();
  }

  #onVisible = () => {
    if (!document.hidden) this.request();
  };
}

/** Bytes that the page's requests have received since the last call. */
function received() {
  const entries = performance.getEntriesByType("resource").filter((entry) => entry.initiatorType === "fetch");
  performance.clearResourceTimings();
  return entries.reduce((sum, entry) => sum + entry.transferSize, 0);
}

/**
 * Follows the event stream and resumes it where it broke. Ends when `signal` aborts or the token is refused.
 *
 * Only a page that is looked at has a stream: a browser keeps six connections to a host for all its tabs, and keeps those
 * of pages that were left or reloaded for a minute. A seventh page would never load.
 */
export async function follow(api, after, { onEvent, onState, signal }) {
  let newest = after;
  let failures = 0;
  while (!signal.aborted) {
    await untilVisible(signal);
    const looking = lookingAt(signal);
    try {
      await api.stream(newest, {
        signal: looking.signal,
        onOpen: () => onState(true),
        onEvent: (event) => {
          failures = 0;
          newest = event.id;
          onEvent(event);
        },
      });
    } catch (error) {
      if (error instanceof Unauthorised) return;
    } finally {
      looking.end();
    }
    if (signal.aborted) return;
    onState(false);
    if (looking.signal.aborted) continue;
    await new Promise((resolve) => setTimeout(resolve, RECONNECT_MS[Math.min(failures++, RECONNECT_MS.length - 1)]));
  }
}

/** Whether the page is being left, or was put aside for the browser's back button. */
let away = false;
addEventListener("pagehide", () => (away = true));
addEventListener("pageshow", () => (away = false));
const isLookedAt = () => !away && !document.hidden;

/** A signal that aborts when `signal` does, and when the page is hidden or left; `end` stops watching. */
function lookingAt(signal) {
  const looking = new AbortController();
  const stop = () => looking.abort();
  const onVisible = () => {
    if (!isLookedAt()) stop();
  };
  signal.addEventListener("abort", stop);
  document.addEventListener("visibilitychange", onVisible);
  addEventListener("pagehide", stop);
  const end = () => {
    signal.removeEventListener("abort", stop);
    document.removeEventListener("visibilitychange", onVisible);
    removeEventListener("pagehide", stop);
  };
  if (signal.aborted) stop();
  return { signal: looking.signal, end };
}

/** Waits until the page is looked at or `signal` aborts. */
function untilVisible(signal) {
  return new Promise((resolve) => {
    const events = [
      [document, "visibilitychange"],
      [globalThis, "pageshow"],
      [signal, "abort"],
    ];
    const look = () => {
      if (!isLookedAt() && !signal.aborted) return;
      for (const [target, name] of events) target.removeEventListener(name, look);
      resolve();
    };
    for (const [target, name] of events) target.addEventListener(name, look);
    look();
  });
}
