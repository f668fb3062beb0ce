// One trainer: what it does and why, its charts, measured sizes, evaluations, log, checkpoints, and what one may do.

import { trainerButtons } from "./actions.js";
import { Charts } from "./charts.js";
import { link } from "./controls.js";
import { h, setChildren, setText, table } from "./dom.js";
import { downloads } from "./downloads.js";
import { notLoaded } from "./faults.js";
import { count, metric, metricColumn, metricName, moment, percent, prose, rate } from "./format.js";
import { Log } from "./log.js";
import { NodeUse } from "./node_use.js";
import { address } from "./router.js";
import { TimeAxis } from "./time_axis.js";
import { Card } from "./trainers.js";

const POINTS = 2000;
const MOST_EVALUATIONS = 50;
const SIZES = [
  ["Nodes", "number"],
  ["Samples/s", "number"],
  ["Speed-up", "number"],
  ["Efficiency", "number"],
];

export class TrainerView {
  #card = null;
  #leadsToLog = false;
  #axis = new TimeAxis(() => this.#zoom());

  constructor({ api, me, parts, query, refresh }) {
    this.api = api;
    this.me = me;
    this.ref = parts[1];
    this.path = `v1/trainers/${encodeURIComponent(this.ref)}`;
    this.done = refresh;
    this.title = this.ref;
    this.heading = h("h2", { tabindex: -1 }, this.ref);
    this.buttons = h("div", { class: "buttons", id: "actions" });
    this.body = h("div", {});
    this.notes = h("p", { class: "notes panel", hidden: "" });
    this.why = h("p", { class: "why" });
    this.traceback = h("pre", { class: "traceback", tabindex: 0 });
    this.more = h("div", { class: "more" });
    this.nodeUse = new NodeUse((path) => api.get(path), this.path, this.#axis);
    this.log = new Log((tail) => api.get(`${this.path}/logs?tail=${tail}`), refresh);
    this.element = h("section", { class: "view" }, h("div", { class: "view-head" }, this.heading, this.buttons), this.notes, this.body, this.nodeUse.element, this.traceback, this.more, this.log.element);
    this.visit(query);
  }

  /** A link may lead to the log. */
  visit(query) {
    if (!query.has("log")) return;
    this.log.element.open = true;
    this.#leadsToLog = true;
  }

  async refresh() {
    const [view, explained] = await Promise.all([this.api.get(this.path), this.api.get(`${this.path}/explain`)]);
    this.title = view.name;
    setText(this.heading, view.name);
    if (this.#card === null || view.is_private) this.#show(view, explained);
    if (view.is_private) return;
    const [, { evaluations }] = await Promise.all([this.#showSeries(), this.api.get(`${this.path}/evaluations?newest=true&limit=${MOST_EVALUATIONS}`)]);
    // Only now, so that the card is of the same time as the tables, which tell some of it, too.
    this.#show(view, explained);
    this.#showMore(view, explained, evaluations);
    await this.nodeUse.refresh(view);
    await this.log.refresh();
    if (this.#leadsToLog) this.log.element.scrollIntoView();
    this.#leadsToLog = false;
  }

  /** The points of the whole run, or of the range that is chosen, as many as a chart can show. */
  async #showSeries() {
    const { range } = this.#axis;
    const [from, to] = this.#axis.seconds ?? [0, null];
    const series = await this.api.get(`${this.path}/series?from_at=${from}&limit=${POINTS}${to === null ? "" : `&to_at=${to}`}`);
    if (range === this.#axis.range) this.#card.showSeries(series);
  }

  #zoom() {
    const { range } = this.#axis;
    this.#showSeries().catch((error) => {
      if (range === this.#axis.range) this.#card.charts.showFault(notLoaded(error.message), () => this.#zoom());
    });
    this.nodeUse.showAgain();
  }

  #show(view, { plan, slots_reason: slots }) {
    if (this.#card === null) {
      this.#card = new Card(view, new Charts({ zoomable: true, axis: this.#axis }));
      this.body.append(this.#card.element, this.why);
    }
    this.#card.show(view);
    const key = [view.state, view.status, view.spec, view.checkpoint_step, view.nodes.length, this.me];
    setChildren(this.buttons, key, () => trainerButtons(view, this.me, this.api, this.done));
    const notes = view.spec.notes ?? "";
    setText(this.notes, notes);
    this.notes.hidden = notes === "";
    this.why.hidden = plan === null;
    setChildren(this.why, [plan, slots], () => ["Its nodes follow from ", link(`plan ${plan}`, address(["plans", plan])), `. ${prose(slots)}`]);
    setText(this.traceback, view.traceback);
    this.traceback.hidden = view.traceback === "";
    this.log.element.hidden = view.is_private;
    this.nodeUse.element.hidden = view.is_private;
  }

  #showMore(view, { plan }, evaluations) {
    const found = [view.measured_rates, evaluations, view.checkpoint_step, view.best, view.spec, plan];
    setChildren(this.more, found, () =>
      [panel("Measured sizes", sizesOf(view)), panel("Evaluations", evaluationsOf(evaluations, view)), panel("Checkpoints", checkpointsOf(view)), panel("Files", [downloads(view, this.api, this.path)])].filter(Boolean),
    );
  }
}

function panel(title, content) {
  return content && h("section", { class: "panel part" }, h("h3", {}, title), ...content);
}

/** Measured rates beside the smallest measured size's, and how well the further nodes are used. */
function sizesOf({ measured_rates: rates }) {
  if (rates.length === 0) return null;
  const [base] = rates;
  const rows = rates.map(({ nodes: size, samples_per_s: measured }) => {
    const gain = measured / base.samples_per_s;
    return [count(size), rate(measured), gain.toFixed(2), percent((gain * base.nodes) / size)];
  });
  return [scrolling("Measured sizes", table("Measured sizes", SIZES, rows))];
}

function evaluationsOf(evaluations, { name: trainer, best }) {
  if (evaluations.length === 0) return null;
  const names = [...new Set(evaluations.flatMap(({ metrics }) => Object.keys(metrics)))];
  const columns = [["Step", "number"], ["At", ""], ...names.map((name) => [metricName(name), "number"])];
  const newest = evaluations.toReversed();
  const values = names.map((name) => metricColumn(name, newest.map((each) => each.metrics[name] ?? null)));
  const rows = newest.map(({ step, at }, i) => [`${count(step)}${best?.step === step ? " (best)" : ""}`, moment(at)].concat(values.map((column) => column[i])));
  const newestOnly = evaluations.length < MOST_EVALUATIONS ? [] : [h("p", {}, `The newest ${MOST_EVALUATIONS}; all of them: `, h("code", {}, `oakum metrics ${trainer} --csv`))];
  const chosen = best === null ? [] : [h("p", {}, `Best ${metricName(best.metric)}: ${metric(best.metric, best.value)} at step ${count(best.step)}.`)];
  return [...chosen, ...newestOnly, scrolling("Evaluations", table("Evaluations", columns, rows))];
}

function checkpointsOf({ name, checkpoint_step: step, checkpoint_folder: folder, best }) {
  if (step === null) return [h("p", { class: "none" }, "None yet.")];
  return [
    h("p", {}, `The newest is of step ${count(step)}, in `, h("code", {}, folder), ". A model for other programs:"),
    commandLine(`oakum export ${name} -o ${name}.safetensors`),
    ...(best === null ? [] : [commandLine(`oakum export ${name} --step best -o ${name}.safetensors`)]),
  ];
}

function commandLine(words) {
  return h("p", {}, h("code", {}, words));
}

function scrolling(name, content) {
  return h("div", { class: "scroll-x", tabindex: 0, role: "region", "aria-label": name }, content);
}

