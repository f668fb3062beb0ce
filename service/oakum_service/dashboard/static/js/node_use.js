// CPU, memory and GPUs of a trainer's nodes as their agents see them: of all nodes together, or of one.

import { Charts } from "./charts.js";
import { h, setChildren } from "./dom.js";
import { notLoaded } from "./faults.js";
import { bytes, count, duration, percent } from "./format.js";
import { serviceNow } from "./time.js";
import { tone } from "./tones.js";

const POINTS = 300;
/** Agents tell no more often. */
const EVERY_MS = 10_000;
const OLD_S = 60;
const ALL = "";
const MOMENT_S = 1e-3;

/**
 * The age of the newest numbers, where none of the `nodes` that the trainer has now has told any for a while; empty
 * otherwise.
 */
export function ageOf({ latest, nodes }) {
  const present = nodes.filter(({ is_present: isPresent }) => isPresent).map(({ at }) => at);
  const isNew = serviceNow() - Math.max(...present) <= OLD_S;
  const ageS = latest ? Math.round(serviceNow() - latest.at) : 0;
  return latest && !isNew ? `${duration(Math.max(0, ageS))} ago` : "";
}

const mean = (name) => (point) => point[name]?.mean ?? null;
const between = (name) => (point) => [point[name]?.least ?? null, point[name]?.greatest ?? null];

function chart(name, share, own, sizeOf, isOptional = false) {
  const whole = { of: mean(share), between: between(share), write: (value) => `node ${percent(value)}` };
  const part = own && { of: mean(own), dash: "dot", write: (value) => `this trainer ${percent(value)}` };
  return {
    name,
    of: whole.of,
    lines: part ? [whole, part] : [whole],
    stale: ageOf,
    say: ({ latest, node }) => percent(latest ? whole.of(latest) : null) + (node === null ? "" : sizeOf(node)),
    ticks: ".0%",
    range: [0, 1.02],
    isOptional,
  };
}

const ofBytes = (size) => (size === null ? "" : ` of ${bytes(size)}`);
const NODE_CHARTS = [
  chart("CPU", "cpu", "own_cpu", ({ cores }) => (cores === null ? "" : ` of ${count(cores)} cores`)),
  chart("Memory", "memory", "own_memory", ({ memory_bytes: size }) => ofBytes(size)),
  chart("GPU", "gpu", null, ({ gpus }) => (gpus === null ? "" : ` of ${count(gpus)} ${gpus === 1 ? "GPU" : "GPUs"}`), true),
  chart("GPU memory", "gpu_memory", null, ({ gpu_memory_bytes: size }) => ofBytes(size), true),
];

export class NodeUse {
  #chosen = ALL;
  #asked = null;
  #askedAt = -Infinity;
  /** The newest point, the nodes that it is of, and the one if it is of one; null before the first answer. */
  #latest = null;

  /** `get` asks the service; `axis` is that of the trainer's other charts. */
  constructor(get, path, axis) {
    this.get = get;
    this.path = path;
    this.axis = axis;
    this.charts = new Charts({ charts: NODE_CHARTS, axis, zoomable: true, nothing: "Nothing is known of its nodes here: their agents tell from some seconds after their start on." });
    this.choice = h("select", { id: "node-choice" }, h("option", { value: ALL }, "All its nodes"));
    this.choice.addEventListener("change", () => {
      this.#chosen = this.choice.value;
      this.showAgain();
    });
    this.element = h(
      "section",
      { class: "panel part node-use" },
      h("h3", {}, "Its nodes, as their agents see them"),
      h("p", { class: "node-choice" }, h("label", { for: "node-choice" }, "Show"), this.choice, h("span", { class: "hint" }, "dotted: this trainer’s own part")),
      this.charts.element,
    );
  }

  /** Asks anew where the charts are in view and there can be news; `view` is the trainer's document. */
  async refresh(view) {
    this.view = view;
    this.element.classList.add(tone(view.name));
    if (this.#latest !== null) this.#showNow();
    if (!this.charts.inView) return;
    const asked = JSON.stringify([this.#chosen, this.axis.seconds, view.ended_at]);
    const isSettled = view.ended_at !== null || performance.now() - this.#askedAt < EVERY_MS;
    if (asked === this.#asked && isSettled) return;
    this.#asked = asked;
    this.#askedAt = performance.now();
    try {
      const series = await this.get(`${this.path}/node-use?${this.#query()}`);
      if (asked === this.#asked) this.#show(series);
    } catch (error) {
      if (asked !== this.#asked) return;
      this.#asked = null;
      this.charts.showFault(notLoaded(error.message), () => this.showAgain());
    }
  }

  #showNow() {
    const { latest, nodes, node } = this.#latest;
    this.charts.showNow({ name: this.view.name, latest, nodes: this.view.nodes.length ? nodes : [], node });
  }

  /** Another node, or another range of time, is wanted. */
  showAgain() {
    this.#asked = null;
    if (this.view) this.refresh(this.view);
  }

  #query() {
    const [from, to] = this.axis.seconds ?? [];
    const asked = { limit: POINTS, node: this.#chosen || null, from_at: from, to_at: to };
    return new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== null && value !== undefined));
  }

  #show({ nodes, points }) {
    const names = nodes.map(({ node }) => node);
    if (this.#chosen && !names.includes(this.#chosen)) names.unshift(this.#chosen);
    setChildren(this.choice, names, () => [h("option", { value: ALL }, names.length === 1 ? "Its node" : "All its nodes"), ...names.map((name) => h("option", { value: name }, name))]);
    this.choice.value = this.#chosen;
    const several = this.#chosen === ALL && names.length > 1;
    this.charts.showSeries({ points: points.flatMap((point) => drawn(point, several)), key: this.#chosen });
    const shown = nodes.filter((one) => this.#chosen === ALL || one.node === this.#chosen);
    this.#latest = { latest: points.at(-1), nodes: shown, node: several ? null : (shown[0] ?? null) };
    this.#showNow();
  }
}

/** The point as charts take it; nothing is drawn to it from before a time in which the trainer was not there. */
function drawn({ after_gap: isAfterGap, ...point }, several) {
  const shown = { ...point, reports: several ? 2 : 1 };
  return isAfterGap ? [{ at: point.at - MOMENT_S }, shown] : [shown];
}
