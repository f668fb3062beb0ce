// The cluster in five figures.

import { h, setChildren } from "./dom.js";
import { count, duration, nodeTime, nodeTimeUnit, percent, rate } from "./format.js";

export function showSummary(element, cluster, trainers) {
  const tiles = [training(cluster), idle(cluster), share(cluster), delay(cluster), throughput(trainers)];
  setChildren(element, tiles, () =>
    tiles.map(({ title, value, unit, note }) =>
      h(
        "div",
        { class: "tile" },
        h("dt", {}, title),
        h("dd", { class: "figure" }, value, unit ? h("span", { class: "unit" }, unit) : null),
        h("dd", { class: "note" }, note),
      ),
    ),
  );
}

function training(cluster) {
  return {
    title: "Training nodes",
    value: count(cluster.num_training),
    unit: cluster.num_training === 1 ? "node" : "nodes",
    note: `of ${count(cluster.num_holes)} idle`,
  };
}

function idle(cluster) {
  const others = cluster.num_nodes - cluster.num_foreground - cluster.num_holes;
  const unavailable = others > 0 ? `, ${count(others)} unavailable` : "";
  return {
    title: "Idle nodes",
    value: count(cluster.num_holes),
    unit: cluster.num_holes === 1 ? "node" : "nodes",
    note: `of ${count(cluster.num_nodes)}; ${count(cluster.num_foreground)} run foreground jobs${unavailable}`,
  };
}

function share(cluster) {
  const unit = nodeTimeUnit(cluster.idle_node_s);
  const [used] = nodeTime(cluster.used_node_s, unit);
  const [whole] = nodeTime(cluster.idle_node_s, unit);
  return {
    title: "Idle node-time used",
    value: cluster.idle_node_s > 0 ? percent(cluster.used_node_s / cluster.idle_node_s) : "–",
    note: `${used} of ${whole} ${unit}`,
  };
}

function delay(cluster) {
  const known = cluster.foreground_delay_p99_s !== null;
  const starts = `${count(cluster.foreground_jobs_started)} ${cluster.foreground_jobs_started === 1 ? "start" : "starts"}`;
  return {
    title: "Foreground start delay, p99",
    value: known ? duration(cluster.foreground_delay_p99_s) : "–",
    note: known
      ? `at most ${duration(cluster.foreground_delay_max_s)} in ${starts}`
      : `${starts} so far, none delayed`,
  };
}

function throughput(trainers) {
  const running = trainers.filter((trainer) => trainer.state === "running");
  const waiting = trainers.filter((trainer) => trainer.state === "waiting" || trainer.state === "starting").length;
  const total = running.reduce((sum, trainer) => sum + (trainer.samples_per_s ?? 0), 0);
  return {
    title: "Throughput, all trainers",
    value: rate(total),
    unit: "samples/s",
    note: `${count(running.length)} running, ${count(waiting)} waiting`,
  };
}
