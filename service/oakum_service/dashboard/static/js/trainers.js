// A card for each live trainer and for those that ended last; the others in a table.

import { Charts } from "./charts.js";
import { byId, h, setChildren, setText, table } from "./dom.js";
import { clock, count, decimal, duration, metric, nodes, percent } from "./format.js";
import { Times } from "./times.js";
import { tone } from "./tones.js";

const ENDED = new Set(["finished", "failed", "cancelled"]);
const ENDED_CARDS = 2;
const MOST_NAMES = 8;
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

  show(trainers) {
    const live = trainers.filter((trainer) => !ENDED.has(trainer.state)).sort((a, b) => a.submitted_at - b.submitted_at);
    const past = trainers.filter((trainer) => ENDED.has(trainer.state)).sort((a, b) => (b.ended_at ?? 0) - (a.ended_at ?? 0));
    this.#showCards([...live, ...past.slice(0, ENDED_CARDS)]);
    this.#showTable(past.slice(ENDED_CARDS));
  }

  /** Fetches the points of the charts that can be seen; an ended trainer's once. */
  async showSeries(api) {
    const wanted = [...this.#cards.values()].filter((card) => card.wantsSeries);
    await Promise.all(
      wanted.map(async (card) => card.showSeries(await api.get(`v1/trainers/${encodeURIComponent(card.view.id)}/series`))),
    );
  }

  #showCards(views) {
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
      card.show(view);
      if (this.root.children[i] !== card.element) this.root.insertBefore(card.element, this.root.children[i] ?? null);
    });
  }

  #showTable(views) {
    this.ended.hidden = views.length === 0;
    setText(byId("ended-summary"), `${count(views.length)} more ended`);
    const rows = views.map((view) => [
      view.name,
      view.state,
      view.ended_at === null ? "–" : clock(view.ended_at),
      count(view.step),
      decimal(view.loss),
      view.message,
    ]);
    setChildren(byId("ended-table"), rows, () => [table("Ended trainers", ENDED_COLUMNS, rows)]);
  }
}

class Card {
  #seriesOf = null;

  constructor(view) {
    this.view = view;
    this.name = h("h3");
    this.badge = h("span", { class: "badge" });
    this.size = h("p", { class: "size" });
    this.bar = h("div", { class: "bar" });
    this.progress = h("div", { class: "progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100 }, this.bar);
    this.done = h("p", { class: "done" });
    this.message = h("p", { class: "message" });
    this.facts = h("dl", { class: "facts" });
    this.charts = new Charts();
    this.times = new Times();
    this.reason = h("p", { class: "reason" });
    this.element = h(
      "article",
      { class: `trainer panel ${tone(view.name)}`, "data-trainer": view.id },
      h("header", {}, this.name, this.badge, this.size),
      this.progress, this.done, this.message, this.charts.element, this.times.element, this.facts, this.reason,
    );
  }

  get wantsSeries() {
    return this.charts.inView && this.#seriesOf !== this.#moment();
  }

  show(view) {
    this.view = view;
    setText(this.name, view.name);
    setText(this.badge, view.state);
    this.badge.className = `badge ${view.state}`;
    setText(this.size, sizeOf(view));
    this.#showProgress(view);
    setText(this.message, view.message);
    this.message.hidden = !view.message;
    this.message.classList.toggle("failure", view.state === "failed");
    this.message.classList.toggle("condition", !ENDED.has(view.state));
    this.charts.element.hidden = view.started_at === null;
    this.charts.showNow(view);
    this.times.show(view);
    const facts = factsOf(view);
    setChildren(this.facts, facts, () => facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    this.reason.hidden = !view.reason || ENDED.has(view.state);
    setText(this.reason, view.reason);
  }

  showSeries(series) {
    this.#seriesOf = this.#moment();
    this.charts.showSeries(series);
  }

  #moment() {
    return `${this.view.state} ${this.view.step} ${this.view.nodes.length}`;
  }

  #showProgress(view) {
    const share = shareOf(view);
    this.bar.style.width = `${(100 * share).toFixed(2)}%`;
    this.progress.setAttribute("aria-label", `Progress of ${view.name}`);
    this.progress.setAttribute("aria-valuenow", (100 * share).toFixed(1));
    const parts = [`${count(view.step)}${view.total_steps ? ` of ${count(view.total_steps)}` : ""} steps`];
    if (view.total_steps) parts.push(percent(share, 1));
    parts.push(`epoch ${Math.min(view.epoch + (view.state === "finished" ? 0 : 1), view.spec.epochs)} of ${view.spec.epochs}`);
    const left = timeLeft(view);
    if (left !== null) parts.push(`about ${duration(left)} left`);
    if (view.ended_at !== null) parts.push(`${view.state} ${clock(view.ended_at)}`);
    setText(this.done, parts.join("  ·  "));
  }
}

/** How much is done, by samples where their number is known: a batch may change. */
function shareOf(view) {
  if (view.total_samples) return Math.min(1, view.samples / view.total_samples);
  return view.total_steps ? Math.min(1, view.step / view.total_steps) : 0;
}

function timeLeft(view) {
  if (view.state !== "running" || !view.total_steps || !(view.samples_per_s > 0)) return null;
  const steps = view.total_steps - view.step;
  const samples = view.total_samples ? view.total_samples - view.samples : steps * (view.global_batch ?? view.spec.global_batch);
  return Math.max(0, samples) / view.samples_per_s;
}

function sizeOf(view) {
  if (ENDED.has(view.state)) return "";
  const joining = view.granted.filter((node) => !view.nodes.includes(node)).length;
  const leaving = view.nodes.filter((node) => !view.granted.includes(node)).length;
  const changes = [joining ? `${joining} joining` : "", leaving ? `${leaving} leaving` : ""].filter(Boolean);
  return [nodes(view.nodes.length), ...changes].join(", ");
}

function factsOf(view) {
  const live = !ENDED.has(view.state);
  return [
    ...Object.entries(view.metrics).map(([name, value]) => [sentence(name), metric(name, value)]),
    ["Batch", count(view.global_batch ?? view.spec.global_batch)],
    ...(view.learning_rate === null ? [] : [["Learning rate", decimal(view.learning_rate)]]),
    ...(live ? [["Granted", nodes(view.granted.length)]] : []),
    ["Allowed", `${view.spec.min_nodes} to ${nodes(view.spec.max_nodes)}`],
    ...sizesUsed(view),
    ["Rescales", count(view.rescales)],
    ["Nodes gained / lost", `${count(view.nodes_gained)} / ${count(view.nodes_lost)}`],
    ["Checkpoint", checkpoint(view)],
    ...(live && view.nodes.length ? [["Members, rank 0 first", shortened(view.nodes)]] : []),
    ...(view.warming.length ? [["Warming up", shortened(view.warming.map(({ node, launched_at: at }) => `${node} for ${ago(at)}`))]] : []),
  ];
}

function checkpoint(view) {
  if (view.checkpoint_step === null) return "none yet";
  const step = `step ${count(view.checkpoint_step)}`;
  return view.checkpoint_at === null ? step : `${step}, ${ago(view.checkpoint_at)} ago`;
}

function ago(at) {
  return duration(Math.max(0, Math.round(Date.now() / 1000 - at)));
}

/** The first few: a card is no place for a thousand nodes. */
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

function sentence(name) {
  const words = name.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function noTrainers() {
  return h("p", { class: "empty panel" }, "No trainers yet. Hand one in with ", h("code", {}, "oakum submit SPEC.yaml"), ".");
}
