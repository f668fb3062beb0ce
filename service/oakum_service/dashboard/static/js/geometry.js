// Computes positions in the picture of nodes over time. Pure: numbers in, numbers out.

const ROW_HEIGHTS = [[12, 24], [24, 19], [64, 13], [256, 8], [Infinity, 5]];
const TICK_STEPS_S = [5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 2 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400];
const CHARACTER_PX = 6.6;
const LABEL_GAP_PX = 24;

export function rowHeight(numNodes) {
  return ROW_HEIGHTS.find(([most]) => numNodes <= most)[1];
}

/** Round points in time for the axis, far enough apart for their labels, which have seconds where points are less than a minute apart. */
export function ticks(from, to, widthPx) {
  const room = (step) => (step * widthPx) / (to - from) - LABEL_GAP_PX;
  const step = TICK_STEPS_S.find((candidate) => room(candidate) >= labelWidth(candidate < 60 ? "00:00:00" : "00:00")) ?? TICK_STEPS_S.at(-1);
  const moments = [];
  for (let at = Math.ceil(from / step) * step; at <= to + step; at += step) moments.push(at);
  return { step, moments };
}

/** As much of a label as fits into `widthPx`; nothing where that would say too little. */
export function fit(text, widthPx) {
  const room = Math.floor((widthPx - 10) / CHARACTER_PX);
  if (text.length <= room) return text;
  return room >= 4 ? `${text.slice(0, room - 1)}…` : "";
}

/** Pixels that a label takes. */
export function labelWidth(text) {
  return text.length * CHARACTER_PX;
}

/** Shortens a node's name at its beginning, because names differ at the end. */
export function fitEnd(text, widthPx) {
  const room = Math.floor(widthPx / CHARACTER_PX);
  return text.length <= room ? text : `…${text.slice(1 - room)}`;
}

/**
 * One block for each run of neighbouring rows that a job takes at the same time: a job on eight nodes is one shape
 * with one name.
 */
export function blocks(intervals, rowOf) {
  const runs = new Map();
  const sorted = intervals.filter((i) => rowOf.has(i.node)).sort((a, b) => rowOf.get(a.node) - rowOf.get(b.node));
  const made = [];
  for (const interval of sorted) {
    const row = rowOf.get(interval.node);
    const key = `${interval.job || row} ${Math.round(interval.start_at)} ${interval.end_at === null ? "" : Math.round(interval.end_at)}`;
    const run = runs.get(key);
    if (run && run.last === row - 1) {
      run.last = row;
    } else {
      const fresh = { interval, first: row, last: row };
      runs.set(key, fresh);
      made.push(fresh);
    }
  }
  return made;
}
