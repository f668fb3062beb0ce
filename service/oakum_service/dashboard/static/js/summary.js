// The cluster in five figures.

import { h, setChildren } from "./dom.js";
import { count, duration, nodeTime, nodeTimeUnit, percent, rate } from "./format.js";

export function showSummary(element, cluster, trainers) {
  const tiles = [training(cluster), unused(cluster, trainers), share(cluster), delay(cluster), throughput(trainers)];
  setChildren(element, tiles, () =>
    tiles.map(({ title, value, unit, note, isExceeded = false }) =>
      h(
        "div",
        { class: `tile${isExceeded ? " exceeded" : ""}` },
        h("dt", {}, title),
        h("dd", { class: "figure" }, value, unit ? h("span", { class: "unit" }, unit) : null),
        h("dd", { class: "note" }, note),
      ),
    ),
  );
}

function training(cluster) {
  return {
    title: "Nodes that train",
    value: count(cluster.num_training),
    unit: cluster.num_training === 1 ? "node" : "nodes",
    note: `of ${count(cluster.num_holes)} without a foreground job`,
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
    note: `${free ? `${whyUnused(cluster, trainers)}; ` : ""}${count(cluster.num_foreground)} of ${count(cluster.num_nodes)} run foreground jobs${unavailable}`,
  };
}

/** Why free nodes train nothing at this moment. */
function whyUnused(cluster, trainers) {
  const live = trainers.filter(({ ended_at: ended }) => ended === null);
  const warming = live.reduce((sum, trainer) => sum + trainer.warming.length, 0);
  if (cluster.held) return "the service is held";
  if (cluster.dry_run) return "this is a dry run";
  if (live.length === 0) return "no trainer is there";
  if (warming) return `${count(warming)} ${warming === 1 ? "warms" : "warm"} up`;
  if (live.every(({ status }) => status === "paused")) return "all trainers are paused";
  return live.every((trainer) => trainer.nodes.length >= trainer.spec.max_nodes) ? "every trainer has its maximum" : "the plan gives them to nobody";
}

function share(cluster) {
  const unit = nodeTimeUnit(cluster.idle_node_s);
  const [used] = nodeTime(cluster.used_node_s, unit);
  const [whole] = nodeTime(cluster.idle_node_s, unit);
  return {
    title: "Idle node-time used",
    value: cluster.idle_node_s > 0 ? percent(cluster.used_node_s / cluster.idle_node_s) : "–",
    note: `${used} of ${whole} ${unit} in 7 days${lost(cluster)}`,
    isExceeded: cluster.exceeds_lost_share,
  };
}

/** What of the lent time brought nothing, and the limit of that share. */
function lost({ lost_share: part, limit_lost_share: limit, exceeds_lost_share: isExceeded }) {
  return part === null ? "" : `; ${percent(part, 1)} of the node-time lent this month was lost${limitOf(limit, isExceeded, (value) => percent(value, 1))}`;
}

/** A limit in words, which also say whether it is exceeded: colours alone would not do. */
function limitOf(limit, isExceeded, write) {
  return limit === null ? "" : `, ${isExceeded ? "over" : "within"} the limit of ${write(limit)}`;
}

function delay(cluster) {
  const known = cluster.foreground_delay_p99_s !== null;
  const starts = `${count(cluster.foreground_jobs_started)} ${cluster.foreground_jobs_started === 1 ? "start" : "starts"}`;
  return {
    title: h("a", { href: "#/delays" }, "Foreground start delay, p99 of 7 days"),
    value: known ? duration(cluster.foreground_delay_p99_s) : "–",
    note: (known ? `at most ${duration(cluster.foreground_delay_max_s)} in ${starts}` : `${starts} so far, none delayed`) + limitOf(cluster.limit_delay_p99_s, cluster.exceeds_delay_p99, duration),
    isExceeded: cluster.exceeds_delay_p99,
  };
}

function throughput(trainers) {
  const running = trainers.filter((trainer) => trainer.state === "running");
  const known = running.filter((trainer) => trainer.samples_per_s !== null);
  const total = known.reduce((sum, trainer) => sum + trainer.samples_per_s, 0);
  const counts = ["running", "waiting", "starting", "held", "paused"]
    .map((status) => [status, trainers.filter((trainer) => trainer.status === status).length])
    .filter(([status, number]) => number || status === "running");
  return {
    title: "Throughput, sum over all models",
    value: known.length || !running.length ? rate(total) : rate(null),
    unit: "samples/s",
    note: [
      ...counts.map(([status, number]) => `${count(number)} ${status}`),
      ...(known.length < running.length ? [`${count(running.length - known.length)} not measured yet`] : []),
    ].join(", "),
  };
}
