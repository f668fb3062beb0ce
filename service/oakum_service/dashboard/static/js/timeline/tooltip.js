// What is told of a node at a moment: the job, idle time or fragment there, for how long, and why it ended.

import { h } from "../dom.js";
import { count, duration, lately } from "../format.js";

const CAUSES = {
  preempted: "ended: a foreground job took the node",
  released: "ended: the plan gave the node away",
  cancelled: "ended: its job was cancelled",
  "time limit": "ended: its job's time limit",
  finished: "ended: the trainer finished",
  failed: "ended: it failed",
  lost: "ended: the node was lost",
  "never started": "ended: it never started",
  "never reported": "ended before it reported",
};

export class Tip {
  constructor(root) {
    this.element = h("div", { class: "tip", hidden: "" });
    root.append(this.element);
  }

  /** Shows lines at a point of the page, the first one in bold; none: nothing is shown. */
  show(lines, left, top) {
    this.element.hidden = lines.length === 0;
    if (this.element.hidden) return;
    this.element.replaceChildren(...lines.map((line, i) => h(i ? "p" : "strong", {}, line)));
    const room = document.documentElement.clientWidth - this.element.offsetWidth - 12;
    this.element.style.left = `${Math.max(8, Math.min(left, room))}px`;
    this.element.style.top = `${top}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}

/** Lines about `node` at the time `at`; none if nothing is known. `present` is up to when things are known, `{ at, name }`. */
export function linesAbout(node, at, present, bars, state) {
  const { at: now } = present;
  if (at > now) return expected(node, at, now, bars, state);
  if (!bars) return [];
  const covers = (bar) => bar.start_at <= at && (bar.end_at === null || at < bar.end_at);
  const place = bars.stretches.findIndex(covers);
  const stretch = bars.stretches[place];
  const after = bars.stretches[place + 1];
  const fragment = bars.fragments.findLast(covers);
  if (stretch?.count > 1) return [`${node}: ${count(stretch.count)} jobs and idle times`, span(stretch, present), "zoom in to see each"];
  if (stretch?.state === "foreground") return [`${node}: foreground job ${stretch.job}`, stretch.name, span(stretch, present)];
  const ending = stretch?.end_at === null ? forecast(state, now) : endOf(after);
  if (fragment) return [...about(node, fragment, at, present), ...ending];
  if (stretch?.state === "hole") return [`${node}: idle`, span(stretch, present), ...ending];
  if (!stretch) return [`${node}: nothing is known of this time`];
  return [`${node}: ${stretch.state}`, stretch.job ? `kept for job ${stretch.job}` : "", span(stretch, present)].filter(Boolean);
}

function about(node, fragment, at, present) {
  if (fragment.count > 1) return [`${node}: ${count(fragment.count)} fragments of ${fragment.trainer}`, span(fragment, present)];
  const isWarming = fragment.training_at === null || at < fragment.training_at;
  const warmUp = (fragment.training_at ?? fragment.end_at ?? present.at) - fragment.start_at;
  const title = `${node}: ${fragment.trainer} ${isWarming ? "warms up" : "trains"}`;
  const cause = fragment.end_at === null ? [] : [CAUSES[fragment.cause] ?? `ended: ${fragment.cause || "no cause is known"}`];
  return [title, span(fragment, present), `warm-up ${duration(warmUp)}`, ...cause];
}

function endOf(after) {
  if (!after) return [];
  if (after.state === "foreground") return [`then came ${after.job ? `foreground job ${after.job}` : "a foreground job"}`];
  return after.state === "hole" ? [] : [`then the node was ${after.state}`];
}

function expected(node, at, now, bars, state) {
  const announced = bars?.announced.filter((bar) => bar.start_at <= at && at < bar.end_at) ?? [];
  if (announced.length) return announced.flatMap((bar) => aboutAnnounced(node, bar, now));
  const end = state?.hole_ends_at;
  if (end === null || end === undefined) return [`${node}: nothing is known of what is to come`];
  return at < end ? [`${node}: expected to be idle for ${duration(end - now)} more`] : [`${node}: a foreground job is expected at ${lately(end, now)}`];
}

function aboutAnnounced(node, { kind, name, title, start_at: start, end_at: end }, now) {
  const what = kind === "reservation" ? `reservation ${name}` : `foreground job ${name} is announced`;
  const begin = start > now ? lately(start, now) : kind === "reservation" ? `since ${lately(start, now)}` : "any moment";
  const known = end === Infinity ? ", no end is known" : ` to ${lately(end, now)}, ${duration(end - start)}`;
  return [`${node}: ${what}`, title, begin + known].filter(Boolean);
}

function forecast(state, now) {
  const end = state?.hole_ends_at;
  if (end === null || end === undefined) return [];
  return [end > now ? `expected to last ${duration(end - now)} more` : "expected to end any moment"];
}

function span({ start_at: start, end_at: end }, { at: now, name }) {
  return `${lately(start, now)} to ${end === null ? name : lately(end, now)}, ${duration((end ?? now) - start)}`;
}
