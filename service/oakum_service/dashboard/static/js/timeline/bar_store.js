// What nodes did, as far as it was asked for: asks for the rows in view only, and then for what has changed.

import { LONGEST_S } from "./time_window.js";

const MOST_NODES = 300;
/** Seconds before the last answer from which changes are asked for again: some are written with an earlier time. */
const OVERLAP_S = 60;
/** Seconds before now from which on what happened may be unknown without a word: the next refresh tells it. */
const LATE_S = 15;
/** Share of the window that is asked for on either side of it, so that moving it shows something at once. */
const MARGIN = 0.25;

export class BarStore {
  #nodes = new Map();
  #loaded = null;
  #keptFrom = null;
  #soonest = null;
  #leftOut = 0;

  /** Since when stretches are kept, in Unix seconds; null before the first answer. */
  get keptFrom() {
    return this.#keptFrom;
  }

  /** From when on all is there that is known of what nodes did, in Unix seconds; Infinity before the first answer. */
  get completeFrom() {
    return Math.max(this.#loaded?.from ?? Infinity, this.#keptFrom ?? -Infinity);
  }

  /** When the first thing begins that the scheduler announces for any node, in Unix seconds; null for nothing. */
  get soonest() {
    return this.#soonest;
  }

  /** How many announced jobs and reservations begin later than those that the service keeps. */
  get leftOut() {
    return this.#leftOut;
  }

  /** Of which kinds the announcements are that are known. */
  get announcedKinds() {
    return new Set([...this.#nodes.values()].flatMap(({ announced }) => announced.map(({ kind }) => kind)));
  }

  /** A node's `{ stretches, fragments, announced }`, in the order of time; null if it was not asked for. */
  of(name) {
    return this.#nodes.get(name) ?? null;
  }

  /** Whether not all is known yet that the named nodes did in the window. */
  lacks(names, { from, to }, now) {
    const wanted = names.slice(0, MOST_NODES);
    if (this.#loaded === null) return wanted.length > 0;
    return from < this.#loaded.from || Math.min(to, now) > this.#loaded.until + LATE_S || wanted.some((name) => !this.#nodes.has(name));
  }

  /** Gets what is missing of the named nodes in the window, where a pixel is `resolution` seconds wide. */
  async load(api, names, { from, to }, resolution, now) {
    const wanted = names.slice(0, MOST_NODES);
    if (!wanted.length) return;
    if (!this.#covers(from, to, resolution, now)) {
      const margin = Math.min(MARGIN * (to - from), Math.max(0, LONGEST_S - (to - from)) / 2);
      const loaded = { from: from - margin, to: to + margin, resolution, until: 0 };
      const answer = await this.#ask(api, wanted, loaded, now);
      this.#nodes.clear();
      this.#loaded = { ...loaded, until: answer.to_at };
      this.#keep(answer);
      return;
    }
    const known = wanted.filter((name) => this.#nodes.has(name));
    const missing = wanted.filter((name) => !this.#nodes.has(name));
    const loaded = this.#loaded;
    const isLive = loaded.to >= loaded.until;
    const after = loaded.until - OVERLAP_S;
    const answers = await Promise.all([
      missing.length ? this.#ask(api, missing, loaded, now) : null,
      known.length && isLive ? this.#ask(api, known, { ...loaded, after }, now) : null,
    ]);
    if (loaded !== this.#loaded) return;
    for (const answer of answers.filter(Boolean)) this.#keep(answer);
    // Only what was asked for again is known up to now.
    if (answers[1]) {
      loaded.until = answers[1].to_at;
      for (const name of this.#nodes.keys()) if (!wanted.includes(name)) this.#nodes.delete(name);
    }
  }

  #covers(from, to, resolution, now) {
    const loaded = this.#loaded;
    if (loaded === null || resolution < loaded.resolution / 2 || resolution > loaded.resolution * 4) return false;
    return from >= loaded.from && (to <= loaded.to || (loaded.to >= loaded.until && to - now <= loaded.to - loaded.until + 1));
  }

  async #ask(api, names, { from, to, resolution, after }, now) {
    // Up to the present with all that is announced, however far ahead: the window moves on.
    const until = after !== undefined || to >= now ? now + LONGEST_S : Math.max(to, from + 2);
    const asked = new URLSearchParams({ from_at: from.toFixed(1), to_at: until.toFixed(1), resolution_s: resolution.toFixed(2) });
    if (after !== undefined) asked.set("changed_after", after.toFixed(1));
    for (const name of names) asked.append("node", name);
    return api.get(`v1/timeline/rows?${asked}`);
  }

  #keep(answer) {
    this.#keptFrom = answer.kept_from;
    this.#soonest = answer.announced_from_at;
    this.#leftOut = answer.announced_left_out;
    const at = (seconds) => (seconds === null ? null : answer.from_at + seconds);
    if (!answer.is_difference) for (const name of answer.nodes) this.#nodes.set(name, { stretches: [], fragments: [], announced: [] });
    const { stretches, fragments, announced } = answer;
    stretches.node.forEach((node, i) =>
      put(this.#nodes.get(answer.nodes[node])?.stretches, {
        start_at: at(stretches.start_s[i]),
        end_at: at(stretches.end_s[i]),
        state: stretches.state[i],
        job: stretches.job[i],
        name: stretches.name[i],
        count: stretches.count[i],
      }),
    );
    fragments.node.forEach((node, i) =>
      put(this.#nodes.get(answer.nodes[node])?.fragments, {
        start_at: at(fragments.start_s[i]),
        training_at: at(fragments.training_s[i]),
        end_at: at(fragments.end_s[i]),
        trainer: answer.trainers[fragments.trainer[i]],
        cause: fragments.cause[i],
        count: fragments.count[i],
      }),
    );
    for (const known of answer.nodes.map((name) => this.#nodes.get(name)).filter(Boolean)) known.announced = [];
    announced.node.forEach((node, i) =>
      this.#nodes.get(answer.nodes[node])?.announced.push({
        start_at: at(announced.start_s[i]),
        end_at: at(announced.end_s[i]) ?? Infinity,
        kind: announced.kind[i],
        name: announced.name[i],
        title: announced.title[i],
      }),
    );
  }
}

/** Adds a bar in the order of time, in place of the one that began at the same time or that it is a part of. */
function put(bars, bar) {
  if (!bars) return;
  let place = bars.length;
  while (place > 0 && bars[place - 1].start_at > bar.start_at - 0.02) place--;
  const there = bars[place];
  if (there && Math.abs(there.start_at - bar.start_at) < 0.02) bars[place] = bar;
  else if (!(place > 0 && bars[place - 1].count > 1 && bars[place - 1].end_at >= bar.start_at + 0.02)) bars.splice(place, 0, bar);
}
