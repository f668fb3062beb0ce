// The bars of a node's row, one after the other: what the keys move between. Pure: bars and times in, bars and times out.

/**
 * In the order of time, without parts of holes that are shorter than `least` seconds; of what is announced, what is not
 * over at `now` and begins before `to`.
 */
export function barsIn({ stretches, fragments, announced }, least, now, to) {
  const told = stretches.flatMap((stretch) => (stretch.state === "hole" ? idleParts(stretch, fragments, least) : [stretch]));
  return [...told, ...fragments, ...toCome(announced, now, to)].sort((a, b) => a.start_at - b.start_at);
}

/** What is announced right of now, up to `to`; what has begun, or ought to have, begins at now. */
export function toCome(announced, now, to) {
  const isThere = (bar) => bar.start_at < to && bar.end_at > now;
  return announced.filter(isThere).map(({ start_at: start, end_at, kind, name, title }) => ({ start_at: Math.max(start, now), end_at, kind, name, title }));
}

/** The parts of the time from `from` to `to`, longer than `least` seconds, in which none of the stretches was: of them nothing is known. */
export function unknownParts(stretches, from, to, least) {
  const parts = [];
  let known = from;
  for (const { start_at: start, end_at: end } of stretches) {
    if (start >= to) break;
    parts.push({ start_at: known, end_at: start });
    known = Math.max(known, end ?? to);
  }
  parts.push({ start_at: known, end_at: to });
  return parts.filter(({ start_at: start, end_at: end }) => end - start > least);
}

/** The parts of a hole on which no fragment was. */
function idleParts(hole, fragments, least) {
  const parts = [];
  let begin = hole.start_at;
  for (const fragment of fragments) {
    if (endOf(fragment, Infinity) <= begin || fragment.start_at >= endOf(hole, Infinity)) continue;
    parts.push({ ...hole, start_at: begin, end_at: fragment.start_at });
    begin = endOf(fragment, Infinity);
  }
  parts.push({ ...hole, start_at: begin });
  return parts.filter((part) => endOf(part, Infinity) - part.start_at >= least);
}

/** The place of the bar at a time, else of the nearest one; -1 where there is none. */
export function placeAt(bars, at) {
  const covering = bars.findLastIndex((bar) => bar.start_at <= at && at < endOf(bar, Infinity));
  if (covering >= 0) return covering;
  const apart = (bar) => (at < bar.start_at ? bar.start_at - at : at - bar.end_at);
  return bars.reduce((best, bar, i) => (best < 0 || apart(bar) < apart(bars[best]) ? i : best), -1);
}

/** A time in the bar: the middle of its part in the window, or a time near its beginning where none is. */
export function middleOf(bar, { from, to }, now) {
  const end = endOf(bar, Math.max(now, bar.start_at));
  const [first, last] = [Math.max(bar.start_at, from), Math.min(end, to)];
  return first < last ? (first + last) / 2 : bar.start_at + Math.min(end - bar.start_at, to - from) / 2;
}

/** When the last of the fragments that were there as a job began has left: until then they cover its bar. */
export function leftAt(fragments, job, now) {
  const leaving = fragments.filter((fragment) => fragment.start_at <= job.start_at && endOf(fragment, now) > job.start_at);
  return leaving.reduce((latest, fragment) => Math.max(latest, endOf(fragment, now)), job.start_at);
}

function endOf({ end_at: end }, lasting) {
  return end ?? lasting;
}
