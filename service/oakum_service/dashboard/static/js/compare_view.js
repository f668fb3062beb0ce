// Several trainers side by side: one chart over steps, samples, node-hours or time, and a table to sort.

import { CONFIG, loadPlotly } from "./charts.js";
import { AXES, bestOf, lineOf, nodeHours } from "./compare_axis.js";
import { button, input, link } from "./controls.js";
import { h, setChildren, setText } from "./dom.js";
import { csvOf, save } from "./downloads.js";
import { count, decimal, duration, metric as written, rate } from "./format.js";
import { address } from "./router.js";
import { serviceNow } from "./time.js";
import { NUM_TONES } from "./tones.js";

const POINTS = 5000;
const LATE_S = 60;
const MOST = 16;
const BUILT_IN = [["loss", "Loss"], ["samples_per_s", "Samples/s"], ["nodes", "Nodes"]];
const DASHES = ["solid", "dash", "dot", "dashdot"];

export class CompareView {
  title = "Compare trainers";
  #runs = new Map();
  #trainers = [];
  #drawn = "";
  #shown = [];

  constructor({ api, query }) {
    this.api = api;
    this.#read(query);
    this.find = h("input", { type: "search", placeholder: "name, user or state", "aria-label": "Find trainers", autocomplete: "off" });
    this.choices = h("div", { class: "choices", role: "group", "aria-label": "Trainers to compare" });
    this.axisChoice = input({ name: "by", label: "Over", choices: AXES.map(([, text]) => text), value: AXES.find(([name]) => name === this.axis)[1] });
    this.metricChoice = h("select", { id: "field-metric" });
    this.chart = h("div", { class: "compare-chart", role: "img", "aria-label": "Trainers compared, not drawn yet" });
    this.none = h("p", { class: "empty" });
    this.notes = h("p", { class: "hint", role: "status" });
    this.table = h("div", { class: "scroll-x", tabindex: 0, role: "region", "aria-label": "Trainers compared" });
    this.element = h(
      "section",
      { class: "view" },
      h("div", { class: "view-head" }, h("h2", { tabindex: -1 }, "Compare trainers")),
      h("section", { class: "panel part" }, h("div", { class: "what-if" }, h("div", { class: "field" }, h("label", {}, "Find"), this.find)), this.choices),
      h("section", { class: "panel part" }, h("div", { class: "what-if" }, h("div", { class: "field" }, h("label", { for: "field-metric" }, "Show"), this.metricChoice), this.axisChoice, button("Lines (CSV)", () => this.#save())), this.none, this.chart, this.notes, this.table),
    );
    this.find.addEventListener("input", () => this.#showChoices());
    this.metricChoice.addEventListener("change", () => this.#change(() => (this.metric = this.metricChoice.value)));
    this.axisChoice.querySelector("select").addEventListener("change", (event) => this.#change(() => (this.axis = AXES.find(([, text]) => text === event.target.value)[0])));
  }

  async refresh() {
    const { trainers } = await this.api.get("v1/trainers?limit=200");
    this.#trainers = trainers.filter(({ is_private: hidden }) => !hidden).toReversed();
    this.#showChoices();
    await this.#load();
  }

  async #load() {
    const views = this.chosen.map((ref) => this.#trainers.find(({ id, name }) => ref === id || ref === name)).filter(Boolean);
    await Promise.all(
      views.map(async (view) => {
        const known = this.#runs.get(view.id);
        if (known && known.view.step === view.step && known.view.state === view.state) return;
        const path = `v1/trainers/${encodeURIComponent(view.id)}`;
        const [{ points }, { evaluations }] = await Promise.all([this.api.get(`${path}/series?from_at=0&limit=${POINTS}`), this.api.get(`${path}/evaluations?newest=true&limit=${POINTS}`)]);
        this.#runs.set(view.id, { view, points, evaluations });
      }),
    );
    const unknown = this.chosen.filter((ref) => !views.some(({ id, name }) => ref === id || ref === name));
    this.#show(views.map(({ id }) => this.#runs.get(id)), unknown);
  }

  /** What is asked for has changed with the address. */
  visit(query) {
    this.#read(query);
    this.axisChoice.querySelector("select").value = AXES.find(([name]) => name === this.axis)[1];
    this.#showChoices();
    this.#load().catch((error) => setText(this.none, error.message));
  }

  #read(query) {
    this.chosen = (query.get("trainers") ?? "").split(",").filter(Boolean);
    this.axis = AXES.some(([name]) => name === query.get("by")) ? query.get("by") : "step";
    this.metric = query.get("metric") ?? "loss";
    this.sort = query.get("sort") ?? "Trainer";
    this.isDown = query.get("down") === "1";
  }

  #change(how) {
    how();
    const query = { trainers: this.chosen.join(","), by: this.axis === "step" ? "" : this.axis, metric: this.metric === "loss" ? "" : this.metric, sort: this.sort === "Trainer" ? "" : this.sort, down: this.isDown ? "1" : "" };
    history.pushState(null, "", address(["compare"], query));
    this.#showChoices();
    this.#load().catch((error) => setText(this.none, error.message));
  }

  #showChoices() {
    const wanted = this.find.value.trim().toLowerCase();
    const matches = ({ name, user, state }) => !wanted || [name, user, state].some((text) => text?.toLowerCase().includes(wanted));
    const shown = this.#trainers.filter((view) => this.#isChosen(view) || matches(view)).slice(0, 60);
    const isFull = this.chosen.length >= MOST;
    setChildren(this.choices, [shown.map(({ id, name, status }) => [id, name, status]), this.chosen], () =>
      shown.map((view) => {
        const box = h("input", { type: "checkbox", value: view.id, checked: this.#isChosen(view) && "", disabled: isFull && !this.#isChosen(view) && "" });
        box.addEventListener("change", () =>
          this.#change(() => {
            this.chosen = this.chosen.filter((ref) => ref !== view.id && ref !== view.name);
            if (box.checked) this.chosen.push(view.name);
          }),
        );
        return h("label", {}, box, `${view.name} (${view.status})`);
      }),
    );
  }

  #isChosen({ id, name }) {
    return this.chosen.includes(id) || this.chosen.includes(name);
  }

  #show(runs, unknown) {
    const metrics = [...new Set(runs.flatMap(({ evaluations }) => evaluations.flatMap((each) => Object.keys(each.metrics))))].sort();
    setChildren(this.metricChoice, [metrics, this.metric], () => [...BUILT_IN, ...metrics.map((name) => [name, name])].map(([value, text]) => h("option", { value, selected: value === this.metric && "" }, text)));
    this.none.hidden = runs.length > 0;
    setText(this.none, this.#trainers.length ? "Choose two or more trainers above." : "No trainer is there yet: submit one, and come back when it has trained.");
    const late = runs.filter(({ view, points }) => points.length && points[0].at - view.started_at > LATE_S).map(({ view }) => view.name);
    const said = [
      unknown.length ? `Not among the newest trainers: ${unknown.join(", ")}.` : "",
      late.length ? `Of ${late.join(", ")} the earliest points are no longer kept: node-hours, hours and the least loss begin with the first that is.` : "",
    ];
    setText(this.notes, said.filter(Boolean).join(" "));
    this.chart.hidden = runs.length === 0;
    this.#shown = runs;
    this.#showTable(runs, metrics);
    if (runs.length) this.#draw(runs);
  }

  /** Saves the lines that are drawn: a row for each point. */
  #save() {
    const rows = this.#shown.flatMap((run) => {
      const { x, y } = lineOf(run, this.axis, this.metric);
      return x.map((at, i) => ({ trainer: run.view.name, [this.axis]: at, [this.metric]: y[i] }));
    });
    save(`${this.metric}-by-${this.axis}.csv`, "text/csv", csvOf(rows));
  }

  async #draw(runs) {
    const key = JSON.stringify([this.axis, this.metric, runs.map(({ view }) => [view.id, view.step, view.state])]);
    if (key === this.#drawn) return;
    this.#drawn = key;
    const library = await loadPlotly();
    const style = getComputedStyle(this.chart);
    const lines = runs.map((run, i) => ({
      ...lineOf(run, this.axis, this.metric),
      name: run.view.name,
      mode: BUILT_IN.some(([name]) => name === this.metric) ? "lines" : "lines+markers",
      connectgaps: false,
      line: { color: colourOf(i), width: 1.75, dash: DASHES[Math.floor(i / NUM_TONES) % DASHES.length] },
    }));
    const grid = style.getPropertyValue("--line").trim();
    const title = AXES.find(([name]) => name === this.axis)[1];
    await library.react(
      this.chart,
      lines,
      {
        autosize: true,
        height: 360,
        margin: { l: 56, r: 12, t: 34, b: 44 },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: style.fontFamily, size: 12, color: style.getPropertyValue("--muted").trim() },
        showlegend: true,
        legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
        hoverlabel: { bgcolor: style.getPropertyValue("--surface").trim(), font: { color: style.getPropertyValue("--text").trim() } },
        xaxis: { title: { text: title }, gridcolor: grid, zeroline: false },
        yaxis: { gridcolor: grid, zeroline: false, rangemode: this.metric === "loss" ? "normal" : "tozero" },
        uirevision: `${this.axis} ${this.metric}`,
      },
      CONFIG,
    );
    this.chart.setAttribute("aria-label", `${this.metric} of ${runs.map(({ view }) => view.name).join(", ")} over ${title.toLowerCase()}`);
  }

  #showTable(runs, metrics) {
    const columns = columnsOf(metrics);
    const chosen = columns.find(([title]) => title === this.sort) ?? columns[0];
    const sorted = [...runs].sort((a, b) => compared(chosen[1](a), chosen[1](b)) * (this.isDown ? -1 : 1));
    const key = [this.sort, this.isDown, columns.map(([title]) => title), sorted.map((run) => columns.map(([, of]) => of(run)))];
    setChildren(this.table, key, () => (runs.length ? [this.#table(columns, chosen[0], sorted)] : []));
  }

  #table(columns, sortedBy, runs) {
    const head = columns.map(([title], i) => {
      const sort = h("button", { type: "button", class: "sort" }, title);
      sort.addEventListener("click", () =>
        this.#change(() => {
          this.isDown = this.sort === title && !this.isDown;
          this.sort = title;
        }),
      );
      return h("th", { scope: "col", class: i ? "number" : "", "aria-sort": title === sortedBy ? (this.isDown ? "descending" : "ascending") : null }, sort);
    });
    const rows = runs.map((run) =>
      h("tr", {}, ...columns.map(([, of, write = String], i) => (i ? h("td", { class: "number" }, of(run) === null ? "–" : write(of(run))) : h("th", { scope: "row" }, link(run.view.name, address(["trainers", run.view.id])))))),
    );
    return h("table", {}, h("caption", { class: "for-readers" }, "Trainers compared"), h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows));
  }
}

/** The colour of the trainer at this place among the chosen, so that no two of the first eight look alike. */
function colourOf(number) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--tone-${number % NUM_TONES}`).trim();
}

function lossesOf({ points }) {
  return points.map(({ loss, loss_min: least }) => least ?? loss).filter((loss) => loss !== null);
}

/** The table's columns: title, the value that is sorted by, and how it is written. */
function columnsOf(metrics) {
  return [
    ["Trainer", ({ view }) => view.name],
    ["State", ({ view }) => view.status],
    ["Steps", ({ view }) => view.step, count],
    ["Samples", ({ view }) => view.samples, count],
    ["Loss", ({ view }) => view.loss, decimal],
    ["Least loss", (run) => bestOf("loss", lossesOf(run)), decimal],
    ...metrics.map((name) => [`Best ${name}`, ({ evaluations }) => bestOf(name, evaluations.map(({ metrics: values }) => values[name])), (value) => written(name, value)]),
    ["Samples/s", ({ view }) => view.samples_per_s, rate],
    ["Node-hours", ({ points }) => (points.length ? nodeHours(points).at(-1) : null), (hours) => hours.toFixed(2)],
    ["Time", ({ view }) => (view.started_at === null ? null : (view.ended_at ?? serviceNow()) - view.started_at), (seconds) => duration(Math.round(seconds))],
    ["Nodes", ({ view }) => view.nodes.length, count],
    ["Rescales", ({ view }) => view.rescales, count],
  ];
}

/** The order of two values; what is not known comes last. */
function compared(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
}
