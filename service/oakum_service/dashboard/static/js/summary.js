// The cluster in five figures.

import { h, setChildren } from "./dom.js";
import { count, duration, moment, nodeTime, nodeTimes, percent, rate } from "./format.js";
import { serviceNow } from "./time.js";

/** `isAdmin`: whether the reader may do what is named for administrators. */
export function showSummary(element, cluster, trainers, isAdmin) {
  const tiles = [training(cluster), unused(cluster, trainers), share(cluster, isAdmin), delay(cluster), throughput(trainers)];
  setChildren(element, tiles, () =>
    tiles.map(({ title, value, unit, note, causes = "", command = "", isExceeded = false }) =>
      h(
        "div",
        { class: `tile${isExceeded ? " exceeded" : ""}` },
        h("dt", {}, title),
        h("dd", { class: "figure" }, value, unit ? h("span", { class: "unit" }, unit) : null),
        h("dd", { class: "note" }, note),
        causes && h("dd", { class: "note causes" }, causes),
        command && h("dd", { class: "note" }, h("code", {}, command), " compares it with what could have been."),
      ),
    ),
  );
}

function training(cluster) {
  const leaving = cluster.num_training - cluster.num_holes;
  return {
    title: "Nodes that train",
    value: count(cluster.num_training),
    unit: cluster.num_training === 1 ? "node" : "nodes",
    note: leaving > 0 ? `${count(leaving)} of them ${leaving === 1 ? "leaves" : "leave"} for a foreground job` : `of ${count(cluster.num_holes)} without a foreground job`,
  };
}

function unused(cluster, trainers) {
  const free = Math.max(0, cluster.num_holes - cluster.num_training);
  const others = cluster.num_nodes - cluster.num_foreground - cluster.num_holes;
  const unavailable = others > 0 ? `, ${count(others)} unavailable` : "";
  return {
    title: "Unused nodes",
    value: count(free),
    unit: free === 1 ? "node" : "nodes",
    note: `${free ? `${whyUnused(cluster, trainers, free)}; ` : ""}${count(cluster.num_foreground)} of ${count(cluster.num_nodes)} run foreground jobs${unavailable}`,
  };
}

/** Why free nodes train nothing at this moment. */
function whyUnused(cluster, trainers, free) {
  const live = trainers.filter(({ ended_at: ended }) => ended === null);
  const warming = Math.min(live.reduce((sum, trainer) => sum + trainer.warming.length, 0), free); // others' nodes are being taken away
  if (cluster.held) return "the service is held";
  if (cluster.dry_run) return "this is a dry run";
  if (live.length === 0) return trainers.length ? "all trainers have ended" : "no trainer is there";
  if (warming) return `${count(warming)} ${warming === 1 ? "warms" : "warm"} up`;
  const granted = live.reduce((sum, trainer) => sum + trainer.granted.filter((node) => !trainer.nodes.includes(node)).length, 0);
  if (granted) return `${count(Math.min(granted, free))} granted, and about to be launched on`;
  if (live.every(({ status }) => status === "paused")) return "all trainers are paused";
  return live.every((trainer) => trainer.nodes.length >= trainer.spec.max_nodes) ? "every trainer has its maximum" : "the plan gives them to nobody";
}

const CAUSES = [
  ["trained", "trained"],
  ["stalled", "stood still or repeated steps"],
  ["start_up", "started up"],
  ["late", "found late"],
  ["unwanted", "wanted by nobody"],
];

/** Where the idle node-time went, in `unit`: what trained, and the rest by cause. */
function causesOf({ idle_time: went }, unit) {
  if (!went?.idle_node_s) return "";
  const times = nodeTimes(CAUSES.map(([name]) => went[`${name}_node_s`]), unit);
  const parts = CAUSES.map(([, words], i) => `${times[i]} ${words}`);
  const since = isWhole(went) ? "" : ` since ${moment(went.since, false)}`;
  return `Used${since}, in ${unit}: ${parts.slice(0, 2).join(", ")}. Not used: ${parts.slice(2).join(", ")}.`;
}

/** Whether all of the seven days is counted by cause. */
const isWhole = ({ since }) => serviceNow() - since > 7 * 86400 - 3600;

/** The one percentage is that of the headline: parts of other wholes beside it would be taken for parts of this one. */
function share(cluster, isAdmin) {
  const [whole, unit] = nodeTime(cluster.idle_node_s);
  return {
    title: "Idle node-time used",
    value: cluster.idle_node_s > 0 ? percent(cluster.used_node_s / cluster.idle_node_s) : "–",
    note: `of the ${whole} ${unit} that were idle in 7 days${lost(cluster)}`,
    causes: causesOf(cluster, unit),
    command: isAdmin && cluster.idle_node_s > 0 ? "oakum replay own" : "",
    isExceeded: cluster.exceeds_lost_share,
  };
}

/** What of the lent time brought nothing, where that is above its limit. */
function lost({ lost_share: part, limit_lost_share: limit, exceeds_lost_share: isExceeded }) {
  return isExceeded ? `. Of the node-time lent this month ${percent(part, 1)} was lost, over the limit of ${percent(limit, 1)}` : "";
}

/** A limit in words, which also say whether it is exceeded: colours alone would not do. */
function limitOf(limit, isExceeded) {
  return limit === null ? "" : `, ${isExceeded ? "over" : "within"} the limit of ${duration(limit)}`;
}

function delay(cluster) {
  const known = cluster.foreground_delay_p99_s !== null;
  const starts = `${count(cluster.foreground_jobs_started)} ${cluster.foreground_jobs_started === 1 ? "start" : "starts"}`;
  return {
    title: h("a", { href: "#/delays" }, "Foreground start delay, p99"),
    value: known ? duration(cluster.foreground_delay_p99_s) : "–",
    note: (known ? `at most ${duration(cluster.foreground_delay_max_s)} in ${starts} of 7 days` : `${starts} so far, none delayed`) + limitOf(cluster.limit_delay_p99_s, cluster.exceeds_delay_p99),
    isExceeded: cluster.exceeds_delay_p99,
  };
}

function throughput(trainers) {
  const running = trainers.filter((trainer) => trainer.state === "running");
  const known = running.filter((trainer) => trainer.samples_per_s !== null);
  const total = known.reduce((sum, trainer) => sum + trainer.samples_per_s, 0);
  const unmeasured = known.length < running.length ? ` (${count(running.length - known.length)} not measured yet)` : "";
  const counts = ["running", "waiting", "starting", "held", "paused", "failed", "diverged"]
    .map((status) => [status, trainers.filter((trainer) => trainer.status === status).length])
    .filter(([status, number]) => number || status === "running");
  return {
    title: "Throughput of all models",
    value: known.length || !running.length ? rate(total) : rate(null),
    unit: "samples/s",
    note: counts.map(([status, number]) => `${count(number)} ${status}${status === "running" ? unmeasured : ""}`).join(", "),
  };
}
