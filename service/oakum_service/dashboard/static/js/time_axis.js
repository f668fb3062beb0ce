// The one axis of time of several groups of charts: what all of them show, and the range that is chosen in one of them.

export class TimeAxis {
  #spans = new Map();
  #followers = [];
  /** The chosen range as Plotly writes it, [from, to]; null for the whole time. */
  range = null;

  /** `onRange` is told of a range that is chosen, [from, to] in Unix seconds, or null. */
  constructor(onRange = () => {}) {
    this.onRange = onRange;
  }

  /** `draw` is called when the axis has changed. */
  follow(draw) {
    this.#followers.push(draw);
  }

  /** The whole time, from the first point of all charts to the last: [from, to] as Plotly writes it. */
  get whole() {
    const spans = [...this.#spans.values()];
    const [from, to] = [Math.min(...spans.map(([first]) => first)), Math.max(...spans.map(([, last]) => last))];
    return [written(from), written(Math.max(to, from + 1))];
  }

  /** The chosen range in Unix seconds, or null. */
  get seconds() {
    return this.range?.map(read) ?? null;
  }

  /** Points of one group of charts have come. Those of a range are no news of the whole time. */
  include(charts, points) {
    if (this.range !== null && this.#spans.has(charts)) return;
    const span = [points[0].at, points.at(-1).at];
    const before = this.#spans.get(charts);
    this.#spans.set(charts, span);
    if (before?.join() !== span.join()) this.#tell();
  }

  choose(range) {
    if (range?.join() === this.range?.join()) return;
    this.range = range;
    this.onRange(this.seconds);
    this.#tell();
  }

  #tell() {
    for (const draw of this.#followers) draw();
  }
}

/** Plotly shows dates as they are written, so they are written in UTC. */
export function written(at) {
  return new Date(at * 1000).toISOString().slice(0, -1);
}

/** Unix seconds of a date that Plotly has written; one without a time of day is UTC by itself. */
function read(date) {
  return Date.parse(date.includes(":") ? `${date.replace(" ", "T")}Z` : date) / 1000;
}
