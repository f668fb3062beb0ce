// The stretch of time that the picture shows: either up to now, moving on with it, or fixed. Pure: numbers in, numbers out.

export const SHORTEST_S = 60;
export const LONGEST_S = 30 * 86400;
/** Share of a window that follows now which lies to the right of now, for what is expected. */
const AHEAD = 0.1;
/** The share where something is announced there. */
const FAR_AHEAD = 0.3;

export class TimeWindow {
  #span;
  #to = null;
  #ahead = AHEAD;

  constructor(span) {
    this.#span = bounded(span);
  }

  get span() {
    return this.#span;
  }

  get follows() {
    return this.#to === null;
  }

  at(now) {
    const to = this.#to ?? now + this.#ahead * this.#span;
    return { from: to - this.#span, to };
  }

  /** Has the window reach further ahead where what is announced first, at `soonest`, is then seen; null: nothing is. */
  foresee(soonest, now) {
    this.#ahead = soonest !== null && soonest < now + FAR_AHEAD * this.#span ? FAR_AHEAD : AHEAD;
  }

  follow(span = this.#span) {
    this.#span = bounded(span);
    this.#to = null;
  }

  /** Shows what is between two points in time, at least a minute. A window that ends at now or later follows it. */
  show(from, to, now) {
    this.#span = bounded(to - from);
    this.#to = to >= now ? null : Math.max(to, now - LONGEST_S + this.#span);
  }

  /** Makes the window longer (`factor` above 1) or shorter; what is at `at` stays where it is. */
  zoom(factor, at, now) {
    const { from, to } = this.at(now);
    const span = bounded(this.#span * factor);
    const share = Math.min(1, Math.max(0, (at - from) / (to - from)));
    if (this.follows && at >= now) {
      this.#span = span;
      return;
    }
    const end = at + (1 - share) * span;
    this.show(end - span, end, now);
  }

  /** Moves the window by `seconds`: a negative number shows what was before. */
  pan(seconds, now) {
    const { from, to } = this.at(now);
    const end = Math.min(to + seconds, now + this.#ahead * this.#span);
    const begin = Math.max(end - this.#span, now - LONGEST_S);
    if (seconds < 0 || !this.follows) this.#to = seconds > 0 && to + seconds >= now + this.#ahead * this.#span ? null : begin + this.#span;
    return from !== begin;
  }
}

function bounded(span) {
  return Math.min(Math.max(span, SHORTEST_S), LONGEST_S);
}
