// A card for each live trainer and for those that ended most recently; a table for the others.

import { Unauthorised } from "./api.js";
import { Charts } from "./charts.js";
import { link } from "./controls.js";
import { CARDS, byId, h, setChildren, setText, table } from "./dom.js";
import { notLoaded } from "./faults.js";
import { count, decimal, decimals, duration, lately, metric, metricName, nodes, percent, prose } from "./format.js";
import { address } from "./router.js";
import { chips, tagsOf } from "./tags.js";
import { serviceNow } from "./time.js";
import { Times } from "./times.js";
import { tone } from "./tones.js";

export const ENDED = new Set(["finished", "failed", "diverged", "cancelled"]);
const LIVE_CARDS = 12;
const ENDED_CARDS = 2;
const MOST_NAMES = 8;
const IDLE_MS = 5000;
const MOST_POINTS = 1200;
const ENDED_COLUMNS = [
  ["Trainer", ""],
  ["State", ""],
  ["Ended", ""],
  ["Steps", "number"],
  ["Loss", "number"],
  ["Message", "sentence"],
];

export class Trainers {
  #cards = new Map();

  constructor(root, ended) {
    this.root = root;
    this.ended = ended;
  }

  /** `retryOf` makes the buttons that let a trainer that has ended go on. */
  show(trainers, retryOf) {
    const live = trainers.filter((trainer) => !ENDED.has(trainer.state)).sort((a, b) => a.submitted_at - b.submitted_at);
    const past = trainers.filter((trainer) => ENDED.has(trainer.state)).sort((a, b) => (b.ended_at ?? 0) - (a.ended_at ?? 0));
    const shown = new Set(live.toSorted((a, b) => Number(b.nodes.length > 0) - Number(a.nodes.length > 0)).slice(0, LIVE_CARDS));
    this.#showCards([...live.filter((view) => shown.has(view)), ...past.slice(0, ENDED_CARDS)], retryOf);
    byId("more-trainers").hidden = live.length <= LIVE_CARDS;
    setText(byId("more-trainers").firstChild, `All ${count(live.length)} live trainers as a table; here are ${LIVE_CARDS}`);
    this.#showTable(past.slice(ENDED_CARDS));
  }

  /** Fetches points for the charts in view; for an ended trainer only once. */
  async showSeries(api) {
    const wanted = [...this.#cards.values()].filter((card) => card.wantsSeries);
    await Promise.all(wanted.map((card) => this.#showSeriesOf(api, card)));
  }

  /** One card's charts that do not come are told there, and keep no other from being drawn. */
  async #showSeriesOf(api, card) {
    try {
      card.showSeries(await seriesOf(api, card));
    } catch (error) {
      if (error instanceof Unauthorised) throw error;
      card.charts.showFault(notLoaded(error.message), () => this.#showSeriesOf(api, card));
    }
  }

  #showCards(views, retryOf) {
    for (const [id, card] of this.#cards) {
      if (!views.some((view) => view.id === id)) {
        card.element.remove();
        this.#cards.delete(id);
      }
    }
    this.root.querySelector(".empty")?.remove();
    if (views.length === 0) this.root.append(noTrainers());
    views.forEach((view, i) => {
      const card = this.#cards.get(view.id) ?? new Card(view);
      this.#cards.set(view.id, card);
      card.show(view, retryOf(view));
      if (this.root.children[i] !== card.element) this.root.insertBefore(card.element, this.root.children[i] ?? null);
    });
  }

  #showTable(views) {
    this.ended.hidden = views.length === 0;
    setText(byId("ended-summary"), `${count(views.length)} more ended`);
    const losses = decimals(views.map(({ loss }) => loss));
    const rows = views.map((view, i) => [
      link(view.name, address(["trainers", view.id])),
      view.state,
      view.ended_at === null ? "–" : lately(view.ended_at, serviceNow()),
      count(view.step),
      losses[i],
      view.message,
    ]);
    setChildren(byId("ended-table"), views.map(({ id, state }) => [id, state]), () => [table("Ended trainers", ENDED_COLUMNS, rows, CARDS)]);
  }
}

/** All that a trainer's document tells, and its charts. */
export class Card {
  #seriesOf = null;

  constructor(view, charts = new Charts()) {
    this.view = view;
    this.name = link("", address(["trainers", view.id]));
    this.badge = h("span", { class: "badge" });
    this.size = h("p", { class: "size" });
    this.bar = h("div", { class: "bar" });
    this.progress = h("div", { class: "progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100 }, this.bar);
    this.done = h("p", { class: "done" });
    this.tags = h("p", { class: "chips", hidden: "" });
    this.message = h("p", { class: "message" });
    this.ways = h("p", { class: "ways buttons" });
    this.facts = h("dl", { class: "facts" });
    this.charts = charts;
    this.times = new Times();
    this.reason = h("p", { class: "reason" });
    this.element = h(
      "article",
      { class: `trainer panel ${tone(view.name)}`, "data-trainer": view.id },
      h("header", {}, h("h3", {}, this.name), this.badge, this.size),
      this.progress, this.done, this.tags, this.message, this.ways, this.charts.element, this.times.element, this.facts, this.reason,
    );
  }

  get points() {
    return this.charts.points;
  }

  get wantsSeries() {
    return !this.view.is_private && this.charts.inView && this.#seriesOf !== this.#moment();
  }

  /** `buttons`: what one may do to a trainer that has ended. */
  show(view, buttons = []) {
    this.view = view;
    setText(this.name, view.name);
    setText(this.badge, view.status);
    this.badge.className = `badge ${view.status}`;
    setText(this.size, sizeOf(view));
    this.#showProgress(view);
    const tags = tagsOf(view);
    this.tags.hidden = tags.length === 0;
    setChildren(this.tags, tags, () => chips(tags));
    const wrong = prose(ENDED.has(view.state) ? view.message : view.condition);
    setText(this.message, wrong);
    this.message.hidden = !wrong;
    const isFailure = view.state === "failed" || view.state === "diverged";
    this.message.classList.toggle("failure", isFailure);
    const log = isFailure && !view.is_private ? [link("Its log", address(["trainers", view.id], { log: "open" }))] : [];
    setChildren(this.ways, [log.length, buttons.length], () => [...buttons, ...log]);
    this.ways.hidden = log.length + buttons.length === 0;
    this.message.classList.toggle("condition", !ENDED.has(view.state));
    this.charts.element.hidden = view.started_at === null || view.is_private;
    this.charts.showNow(view);
    this.times.show(view);
    const facts = factsOf(view);
    setChildren(this.facts, facts, () => facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    this.reason.hidden = ENDED.has(view.state);
    setText(this.reason, [view.reason, view.measured_rates.length > 1 ? view.curve_reason : ""].filter(Boolean).map(prose).join(" "));
  }

  showSeries(series) {
    this.#seriesOf = this.#moment();
    this.charts.showSeries(series);
  }

  #moment() {
    const { state, status, step } = this.view;
    const size = this.view.nodes.length;
    // A line at 0 goes on while nothing happens.
    const idle = ENDED.has(state) || size ? "" : Math.floor(Date.now() / IDLE_MS);
    return `${state} ${status} ${step} ${size} ${idle}`;
  }

  #showProgress(view) {
    const share = shareOf(view);
    this.bar.style.width = `${(100 * share).toFixed(2)}%`;
    this.progress.setAttribute("aria-label", `Progress of ${view.name}`);
    this.progress.setAttribute("aria-valuenow", (100 * share).toFixed(1));
    const parts = [`${count(view.step)}${view.total_steps ? ` of ${count(view.total_steps)}` : ""} steps`];
    if (view.total_steps) parts.push(percent(share, 1));
    parts.push(`epoch ${count(Math.min(view.epoch + (view.state === "finished" ? 0 : 1), view.spec.epochs))} of ${count(view.spec.epochs)}`);
    const left = timeLeft(view);
    if (left !== null) parts.push(`about ${duration(left)} left on ${nodes(view.nodes.length)}`);
    if (view.ended_at !== null) parts.push(`${view.state} ${lately(view.ended_at, serviceNow())}`);
    setText(this.done, parts.join("  ·  "));
  }
}

/** Progress in samples if their number is known, else in steps, whose size may change. */
export function shareOf(view) {
  if (view.total_samples) return Math.min(1, view.samples / view.total_samples);
  return view.total_steps ? Math.min(1, view.step / view.total_steps) : 0;
}

/** Seconds to its end at the rate that was measured on as many nodes, or else at the present one; null where neither is known. */
export function timeLeft(view) {
  const measured = view.measured_rates.find(({ nodes: size }) => size === view.nodes.length)?.samples_per_s;
  const perS = measured ?? view.samples_per_s;
  if (view.state !== "running" || !view.total_steps || !view.nodes.length || !(perS > 0)) return null;
  const steps = view.total_steps - view.step;
  const samples = view.total_samples ? view.total_samples - view.samples : steps * (view.global_batch ?? view.spec.global_batch);
  return Math.max(0, samples) / perS;
}

export function sizeOf(view) {
  if (ENDED.has(view.state)) return "";
  const { joining, leaving } = view;
  const changes = [joining.length ? `${joining.length} joining` : "", leaving.length ? `${leaving.length} leaving` : ""].filter(Boolean);
  return [nodes(view.nodes.length), ...changes].join(", ");
}

function allowed({ sizes, min_nodes: least, max_nodes: most }) {
  if (Array.isArray(sizes)) return `${sizes.filter((size) => size >= least && size <= most).join(", ")} nodes`;
  return `${least} to ${nodes(most)}${sizes === "powers_of_two" ? ", powers of two" : ""}`;
}

function factsOf(view) {
  const live = !ENDED.has(view.state);
  return [
    ...Object.entries(view.metrics).map(([name, value]) => [metricName(name), metric(name, value)]),
    ["Batch", `${count(view.global_batch ?? view.spec.global_batch)} samples`],
    ...(view.learning_rate === null ? [] : [["Learning rate", decimal(view.learning_rate)]]),
    ...(view.is_private ? [["User", `${view.user ?? "unknown"}, who alone sees losses and errors`]] : []),
    ...(live ? [["Granted", nodes(view.granted.length)]] : []),
    ...(view.spec.exact === false ? [["Exact", "no: its results may depend on its nodes"]] : []),
    ["Allowed", allowed(view.spec)],
    ...sizesUsed(view),
    ...speedUp(view),
    ...(view.pace ? [["Step", stepCost(view.pace)]] : []),
    ["Rescales", count(view.rescales)],
    ["Nodes joined after its start", count(view.nodes_gained)],
    ["Nodes taken by jobs or lost", count(view.nodes_lost)],
    ["Checkpoint", checkpoint(view)],
    ...(live && view.nodes.length ? [["Members, rank 0 first", shortened(view.nodes)]] : []),
    ...(view.warming.length ? [["Warming up", shortened(view.warming.map(({ node, launched_at: at }) => `${node} for ${ago(at)}`))]] : []),
  ];
}

/** Measured rates beside the smallest measured size's, in brackets with those of the spec's curve, if it has one. */
function speedUp({ measured_rates: rates, spec: { curve }, curve_reason: otherwise }) {
  if (rates.length < 2) return [];
  const [base, ...others] = rates;
  const predicted = (size) => (curveAt(curve, size) / curveAt(curve, base.nodes)).toFixed(2);
  const told = others.map(({ nodes: size, samples_per_s: rate }) => {
    const beside = curve.length === 0 ? "" : ` (${otherwise ? "plans count" : "predicted"} ${predicted(size)})`;
    return `${(rate / base.samples_per_s).toFixed(2)} on ${size}${beside}`;
  });
  return [[`Speed-up over ${nodes(base.nodes)}`, told.join(", ")]];
}

/** The curve's samples/s, in straight lines between its points and from 0, level behind the last one. */
function curveAt(curve, size) {
  let [low, before] = [0, 0];
  for (const [high, after] of curve) {
    if (size <= high) return before + ((after - before) * (size - low)) / (high - low);
    [low, before] = [high, after];
  }
  return before;
}

/** The time of a step and its parts. */
function stepCost({ step_s: seconds, reading_share: reading, waiting_share: waiting }) {
  const [data, others] = [reading, waiting ?? 0].map((share) => Math.round(100 * share) / 100);
  const parts = [`data ${percent(data)}`];
  if (waiting !== null) parts.push(`other ranks ${percent(others)}`);
  return `${duration(seconds)}: ${parts.join(", ")}, computing ${percent(Math.max(0, 1 - data - others))}`;
}

function checkpoint(view) {
  if (view.checkpoint_step === null) return ENDED.has(view.state) ? "none" : "none yet";
  const step = `step ${count(view.checkpoint_step)}`;
  return view.checkpoint_at === null ? step : `${step}, ${ago(view.checkpoint_at)} ago`;
}

function ago(at) {
  return duration(Math.max(0, Math.round(serviceNow() - at)));
}

/** The first few names: a card has no space for a thousand nodes. */
function shortened(names) {
  const rest = names.length - MOST_NAMES;
  return rest > 0 ? `${names.slice(0, MOST_NAMES).join(", ")} and ${count(rest)} more` : names.join(", ");
}

/** The sizes at which steps were finished. */
function sizesUsed({ steps_at_size: steps }) {
  const sizes = Object.keys(steps).map(Number);
  if (sizes.length === 0) return [];
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
  return [["Sizes used", least === most ? nodes(most) : `${least} to ${nodes(most)}`]];
}

function noTrainers() {
  return h("p", { class: "empty panel" }, "No trainers yet. Submit one with ", h("code", {}, "oakum submit SPEC.yaml"), " or under ", link("New trainer", "#/submit"), ".");
}

/** A card's points, of the whole run: those it has, and the later ones. The last few are asked for again, since they may be provisional. */
async function seriesOf(api, { points: known, view }) {
  const path = `v1/trainers/${encodeURIComponent(view.id)}/series`;
  const after = known.at(-4)?.at;
  if (after === undefined || known.length > MOST_POINTS) return api.get(`${path}?from_at=0`);
  const { points } = await api.get(`${path}?after=${after}`);
  return { points: [...known.filter(({ at }) => at <= after), ...points] };
}
