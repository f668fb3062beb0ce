// Several trainers side by side: one chart over steps, samples, node-hours or time, and a table to sort.

import { CONFIG, loadPlotly, presentRate } from "./charts.js";
import { AXES, bestOf, lineOf, nodeHours } from "./compare_axis.js";
import { button, input, link } from "./controls.js";
import { h, setChildren, setText } from "./dom.js";
import { csvOf, save } from "./downloads.js";
import { notLoaded } from "./faults.js";
import { count, decimals, duration, metricColumn, rate } from "./format.js";
import { address } from "./router.js";
import { tagsOf } from "./tags.js";
import { serviceNow } from "./time.js";
import { assignTones, tone } from "./tones.js";

const POINTS = 5000;
const dark = matchMedia("(prefers-color-scheme: dark)");
const LATE_S = 60;
const MOST = 16;
const MOST_CHOICES = 60;
/** Pixels of a saved picture for each of the page's. */
const SHARPNESS = 2;
const BUILT_IN = [["loss", "Loss"], ["samples_per_s", "Samples/s"], ["nodes", "Nodes"]];
const DASHES = ["solid", "dash", "dot", "dashdot"];

export class CompareView {
  title = "Compare trainers";
  #runs = new Map();
  #trainers = [];
  /** Ids and names of trainers whose losses are not for the reader. */
  hidden = new Set();
  #drawn = "";
  #shown = [];
  #loads = 0;

  constructor({ api, query }) {
    this.api = api;
    this.#read(query);
    this.find = h("input", { type: "search", id: "field-find", placeholder: "name, user, state or tag", "aria-label": "Search trainers", autocomplete: "off" });
    this.choices = h("div", { class: "choices", role: "group", "aria-label": "Trainers to compare" });
    this.axisChoice = input({ name: "by", label: "Over", choices: AXES.map(([, text]) => text), value: AXES.find(([name]) => name === this.axis)[1] });
    this.metricChoice = h("select", { id: "field-metric" });
    this.chart = h("div", { class: "compare-chart", role: "img", "aria-label": "Trainers compared, not drawn yet" });
    this.fewer = h("p", { class: "hint", role: "status" });
    this.none = h("p", { class: "empty" });
    this.state = h("p", { class: "buttons", role: "status" });
    this.said = h("span", { role: "status" });
    this.saves = [
      button("Lines (CSV)", () => this.#saveLines(), { disabled: "" }),
      button("Picture (PNG)", () => this.#savePicture("png"), { disabled: "" }),
      button("Picture (SVG)", () => this.#savePicture("svg"), { disabled: "" }),
    ];
    this.notes = h("p", { class: "hint", role: "status" });
    this.table = h("div", { class: "scroll-x", tabindex: 0, role: "region", "aria-label": "Trainers compared" });
    this.element = h(
      "section",
      { class: "view" },
      h("div", { class: "view-head" }, h("h2", { tabindex: -1 }, "Compare trainers")),
      h("section", { class: "panel part" }, h("div", { class: "what-if" }, h("div", { class: "field" }, h("label", { for: "field-find" }, "Search"), this.find)), this.choices, this.fewer),
      h("section", { class: "panel part" }, h("div", { class: "what-if" }, h("div", { class: "field" }, h("label", { for: "field-metric" }, "Show"), this.metricChoice), this.axisChoice, ...this.saves, this.said), this.none, this.state, this.chart, this.notes, this.table),
    );
    dark.addEventListener("change", () => this.#showChart(this.#shown));
    this.find.addEventListener("input", () => this.#showChoices());
    this.metricChoice.addEventListener("change", () => this.#change(() => (this.metric = this.metricChoice.value)));
    this.axisChoice.querySelector("select").addEventListener("change", (event) => this.#change(() => (this.axis = AXES.find(([, text]) => text === event.target.value)[0])));
  }

  async refresh() {
    const { trainers } = await this.api.get("v1/trainers?limit=200");
    this.#trainers = trainers.filter(({ is_private: hidden }) => !hidden).toReversed();
    this.hidden = new Set(trainers.filter(({ is_private: hidden }) => hidden).flatMap(({ id, name }) => [id, name]));
    this.#showChoices();
    await this.#load();
  }

  /** Gets what is missing and shows it; says meanwhile that it loads, or why it did not come, which it throws as well. */
  async #load() {
    const load = ++this.#loads;
    const views = this.chosen.map((ref) => this.#trainers.find(({ id, name }) => ref === id || ref === name)).filter(Boolean);
    if (views.some(({ id }) => !this.#runs.has(id))) this.#tell("Loading…");
    try {
      await Promise.all(views.map((view) => this.#loadRun(view)));
    } catch (error) {
      if (load === this.#loads) this.#tell(notLoaded(error.message), () => this.#reload());
      throw error;
    }
    if (load !== this.#loads) return;
    const unknown = this.chosen.filter((ref) => !views.some(({ id, name }) => ref === id || ref === name));
    this.#show(views.map(({ id }) => this.#runs.get(id)), unknown);
  }

  async #loadRun(view) {
    const known = this.#runs.get(view.id);
    if (known && known.view.step === view.step && known.view.status === view.status) return;
    const path = `v1/trainers/${encodeURIComponent(view.id)}`;
    const [{ points }, { evaluations }] = await Promise.all([this.api.get(`${path}/series?from_at=0&limit=${POINTS}`), this.api.get(`${path}/evaluations?newest=true&limit=${POINTS}`)]);
    this.#runs.set(view.id, { view, points, evaluations });
  }

  #reload() {
    this.#load().catch(() => {}); // it is told where the chart would be
  }

  #tell(text, retry = null) {
    setChildren(this.state, text, () => [text, retry === null ? "" : button("Try again", retry)]);
    this.state.hidden = text === "";
  }

  /** What is asked for has changed with the address. */
  visit(query) {
    this.#read(query);
    this.axisChoice.querySelector("select").value = AXES.find(([name]) => name === this.axis)[1];
    this.#showChoices();
    this.#reload();
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
    this.#reload();
  }

  #showChoices() {
    const wanted = this.find.value.trim().toLowerCase();
    const matches = (view) => !wanted || [view.name, view.user, view.status, ...tagsOf(view)].some((text) => text?.toLowerCase().includes(wanted));
    const shown = this.#trainers.filter((view) => this.#isChosen(view) || matches(view));
    const isFull = this.chosen.length >= MOST;
    setChildren(this.choices, [shown.map(({ id, name, status }) => [id, name, status]), this.chosen], () =>
      shown.slice(0, MOST_CHOICES).map((view) => {
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
    setText(this.fewer, fewerOf(shown.length, this.#trainers.length));
  }

  #isChosen({ id, name }) {
    return this.chosen.includes(id) || this.chosen.includes(name);
  }

  #show(runs, unknown) {
    const metrics = [...new Set(runs.flatMap(({ evaluations }) => evaluations.flatMap((each) => Object.keys(each.metrics))))].sort();
    setChildren(this.metricChoice, [metrics, this.metric], () => [...BUILT_IN, ...metrics.map((name) => [name, name])].map(([value, text]) => h("option", { value, selected: value === this.metric && "" }, text)));
    this.none.hidden = runs.length > 0;
    setText(this.none, this.#trainers.length ? "Choose two or more trainers above." : this.hidden.size ? "You have no trainer. Losses of others’ trainers are shown to their users alone." : "No trainers yet. Submit one under “New trainer”, and come back when it has trained.");
    const late = runs.filter(({ view, points }) => points.length && points[0].at - view.started_at > LATE_S).map(({ view }) => view.name);
    const isKnown = runs.some((run) => lineOf(run, this.axis, this.metric).y.some((value) => value !== null));
    const [notYours, elsewhere] = [true, false].map((isHidden) => unknown.filter((name) => this.hidden.has(name) === isHidden));
    const said = [
      runs.length && !isKnown ? `No value of “${nameOf(this.metric)}” is known yet.` : "",
      notYours.length ? `Of other users, who alone see losses: ${notYours.join(", ")}.` : "",
      elsewhere.length ? `Not among the newest trainers: ${elsewhere.join(", ")}.` : "",
      late.length ? `Of ${late.join(", ")} the earliest points are no longer kept: node-hours, hours and the least loss begin with the first that is.` : "",
    ];
    setText(this.notes, said.filter(Boolean).join(" "));
    this.chart.hidden = runs.length === 0;
    this.#shown = runs;
    for (const each of this.saves) each.disabled = !isKnown;
    this.#showTable(runs, metrics);
    this.#showChart(runs);
  }

  async #showChart(runs) {
    try {
      if (runs.length) await this.#draw(runs);
      this.#tell("");
    } catch (error) {
      this.#drawn = "";
      this.#tell(`The chart is not drawn: ${error.message}.`, () => this.#reload());
    }
  }

  /** Saves the lines that are drawn: a row for each point. */
  #saveLines() {
    const rows = this.#shown.flatMap((run) => {
      const { x, y } = lineOf(run, this.axis, this.metric);
      return x.map((at, i) => ({ trainer: run.view.name, [this.axis]: at, [this.metric]: y[i] }));
    });
    save(`${this.metric}-by-${this.axis}.csv`, "text/csv", csvOf(rows));
  }

  /** Saves the chart as it is shown, with the page's ground behind it. */
  async #savePicture(format) {
    setText(this.said, "");
    try {
      const library = await loadPlotly();
      const { data, layout, clientWidth: width, clientHeight: height } = this.chart;
      const figure = { data, layout: { ...layout, paper_bgcolor: getComputedStyle(this.chart).getPropertyValue("--surface").trim() } };
      const picture = await library.toImage(figure, { format, width, height, scale: format === "png" ? SHARPNESS : 1, imageDataOnly: true });
      const content = format === "png" ? Uint8Array.from(atob(picture), (letter) => letter.charCodeAt(0)) : picture;
      save(`${this.metric}-by-${this.axis}.${format}`, format === "png" ? "image/png" : "image/svg+xml", content);
    } catch (error) {
      setText(this.said, `Not saved: ${error.message ?? error}`);
    }
  }

  async #draw(runs) {
    const key = JSON.stringify([dark.matches, this.axis, this.metric, runs.map(({ view }) => [view.id, view.step, view.state])]);
    if (key === this.#drawn) return;
    this.#drawn = key;
    const library = await loadPlotly();
    const style = getComputedStyle(this.chart);
    assignTones(this.#trainers);
    const lines = runs.map((run, i) => ({
      ...lineOf(run, this.axis, this.metric),
      name: run.view.name,
      mode: BUILT_IN.some(([name]) => name === this.metric) ? "lines" : "lines+markers",
      connectgaps: this.metric === "loss" && this.axis !== "time", // no step is missing where the trainer had no node
      line: { color: colourOf(run.view.name), width: 1.75, dash: DASHES[numAlike(runs, i) % DASHES.length] },
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
        yaxis: { title: { text: nameOf(this.metric) }, gridcolor: grid, zeroline: false, rangemode: this.metric === "loss" ? "normal" : "tozero" },
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
    const head = columns.map(([title, , write]) => {
      const sort = h("button", { type: "button", class: "sorter" }, title);
      sort.addEventListener("click", () =>
        this.#change(() => {
          this.isDown = this.sort === title && !this.isDown;
          this.sort = title;
        }),
      );
      return h("th", { scope: "col", class: write ? "number" : "", "aria-sort": title === sortedBy ? (this.isDown ? "descending" : "ascending") : null }, sort);
    });
    const texts = columns.map(([, of, write = each(String)]) => write(runs.map(of)));
    const rows = runs.map((run, row) =>
      h("tr", {}, ...columns.map(([title, , write], i) => (i ? h("td", { class: write ? "number" : "", "data-title": title }, texts[i][row]) : h("th", { scope: "row" }, link(run.view.name, address(["trainers", run.view.id])))))),
    );
    return h("table", { class: "listing" }, h("caption", { class: "for-readers" }, "Trainers compared"), h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows));
  }
}

/** What to say of the trainers that can be chosen, if not all of them are shown. */
function fewerOf(matching, all) {
  if (matching > MOST_CHOICES) return `${MOST_CHOICES} of ${count(matching)} trainers are shown: find the others by name, user or state.`;
  return matching === 0 && all > 0 ? `None of ${count(all)} trainers is like that: find another name, user or state.` : "";
}

/** What the axis of a metric is called; an evaluation's metric has the name that the task gave it, and no unit that is known. */
function nameOf(metric) {
  return BUILT_IN.find(([name]) => name === metric)?.[1] ?? metric;
}

/** The trainer's colour, which is the same on every page. */
function colourOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${tone(name)}`).trim();
}

/** How many of the runs before this one have its colour: their lines differ in their dashes. */
function numAlike(runs, number) {
  return runs.slice(0, number).filter(({ view }) => tone(view.name) === tone(runs[number].view.name)).length;
}

function lossesOf({ points }) {
  return points.map(({ loss, loss_min: least }) => least ?? loss).filter((loss) => loss !== null);
}

const each = (write) => (values) => values.map((value) => (value === null ? "–" : write(value)));

/** The table's columns: title, the value that is sorted by, and how all of them are written. */
function columnsOf(metrics) {
  return [
    ["Trainer", ({ view }) => view.name],
    ["State", ({ view }) => view.status],
    ["Tags", ({ view }) => tagsOf(view).join(", ") || null],
    ["Steps", ({ view }) => view.step, each(count)],
    ["Samples", ({ view }) => view.samples, each(count)],
    ["Loss", ({ view }) => view.loss, decimals],
    ["Least loss", (run) => bestOf("loss", lossesOf(run)), decimals],
    ...metrics.map((name) => [`Best ${name}`, ({ evaluations }) => bestOf(name, evaluations.map(({ metrics: values }) => values[name])), (values) => metricColumn(name, values)]),
    ["Samples/s", ({ view }) => presentRate(view), each(rate)],
    ["Node-hours", ({ points }) => (points.length ? nodeHours(points).at(-1) : null), each((hours) => hours.toFixed(2))],
    ["Since its start", ({ view }) => (view.started_at === null ? null : (view.ended_at ?? serviceNow()) - view.started_at), each((seconds) => duration(Math.round(seconds)))],
    ["Nodes", ({ view }) => view.nodes.length, each(count)],
    ["Rescales", ({ view }) => view.rescales, each(count)],
  ];
}

/** The order of two values; what is not known comes last. */
function compared(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
}
