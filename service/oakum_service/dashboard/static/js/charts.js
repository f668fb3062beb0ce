// A trainer's loss, throughput and size over time, by Plotly, which is loaded with the first chart in view.

import { lossOf } from "./compare_axis.js";
import { button } from "./controls.js";
import { h, setText } from "./dom.js";
import { decimal, duration, nodes, rate } from "./format.js";
import { serviceNow } from "./time.js";

export const CONFIG = { displayModeBar: false, responsive: true, showTips: false };
const dark = matchMedia("(prefers-color-scheme: dark)");

const MOST_MARKS = 60;

export const CHARTS = [
  { name: "Loss", of: lossOf, between: ({ loss, loss_min: least, loss_max: most }) => [least ?? loss, most ?? loss], say: (view) => decimal(view.loss), stale: lossAge, ticks: "~g", write: decimal },
  {
    name: "Samples/s",
    of: (point) => point.samples_per_s,
    say: rateOf,
    ticks: "~s",
    write: (value) => `${rate(value)} samples/s`,
    fromZero: true,
  },
  {
    name: "Size",
    unit: "nodes",
    of: (point) => point.nodes,
    say: (view) => nodes(view.nodes.length),
    ticks: "d",
    write: nodes,
    fromZero: true,
    step: true,
  },
];

let plotly = null;

/** The rate as text; an upper limit such as "< 12" while the rate is unknown because a single step takes long. */
function rateOf({ nodes: members, ended_at: ended, samples_per_s: known, samples_per_s_below: below }) {
  if (known === null && below !== null) return `< ${rate(below)}`;
  return rate(members.length || ended !== null ? known : 0);
}

/** The age of the latest loss, for a live trainer without nodes; empty otherwise. */
function lossAge({ nodes: members, ended_at: ended, stepped_at: at }) {
  if (members.length || ended !== null || at === null) return "";
  return `${duration(Math.max(0, Math.round(serviceNow() - at)))} ago`;
}

export function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = h("script", { src: new URL("../plotly.min.js", import.meta.url).pathname });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => {
      plotly = null;
      reject(new Error("the library that draws did not come"));
    });
    document.head.append(script);
  });
  return plotly;
}

/** The three charts of one trainer. They are drawn while in view, and only when their points have changed. */
export class Charts {
  #points = [];
  #drawn = "";
  #inView = false;
  #range = null;
  #note = h("p", { class: "chart-note" });

  /** With `zoomable` a range of time can be chosen in any of the charts, for all three; `onRange` is told of it, [from, to] in Unix seconds, or null. */
  constructor({ zoomable = false, onRange = () => {} } = {}) {
    this.zoomable = zoomable;
    this.onRange = onRange;
    this.figures = CHARTS.map((chart) => {
      const value = h("strong");
      const age = h("small");
      const area = h("div", { class: "chart" });
      const figure = h("figure", {}, h("figcaption", {}, h("span", {}, chart.unit ? `${chart.name}, ${chart.unit}` : chart.name), h("span", {}, age, " ", value)), area);
      return { chart, value, age, area, figure };
    });
    this.whole = button("Whole time", () => this.#zoom(null), { class: "button whole-time", hidden: "" });
    this.element = h("div", { class: "charts" }, this.whole, ...this.figures.map(({ figure }) => figure), this.#note);
    this.#tell("Loading…");
    dark.addEventListener("change", () => this.#draw());
    const onMove = ([entry]) => {
      this.#inView = entry.isIntersecting;
      this.#draw();
    };
    // A screen ahead of the reader, so that points are there when the charts come into view.
    new IntersectionObserver(onMove, { rootMargin: "100% 0px" }).observe(this.element);
  }

  /** Whether fetching new points is worth it. */
  get inView() {
    return this.#inView;
  }

  get points() {
    return this.#points;
  }

  showNow(view) {
    for (const { chart, value, age, area } of this.figures) {
      setText(value, chart.say(view));
      const since = chart.stale?.(view) ?? "";
      setText(age, since);
      value.classList.toggle("old", since !== "");
      area.setAttribute("role", "img");
      area.setAttribute("aria-label", `${chart.name} of ${view.name} over time, now ${chart.say(view)}`);
    }
  }

  showSeries({ points }) {
    this.#points = points;
    if (this.#isEmpty && !this.#note.querySelector("button")) this.#tell(points.length ? "Loading…" : "There is no point to draw: finished steps make them.");
    this.#draw();
  }

  /** Says over the charts why there is nothing, or not what was asked for, and offers to try again. */
  showFault(text, retry) {
    this.#tell(h("span", { role: "alert" }, text), button("Try again", retry));
  }

  get #isEmpty() {
    return !this.figures[0].area.hasChildNodes();
  }

  #tell(...content) {
    this.#note.replaceChildren(...content);
    this.#note.hidden = content.length === 0;
  }

  async #draw() {
    const newest = this.#points.at(-1);
    const fingerprint = `${this.#points.length} ${newest?.at} ${dark.matches}`;
    if (!this.#inView || !newest) return;
    try {
      if (fingerprint !== this.#drawn) await this.#drawAll(fingerprint);
      if (!this.#isEmpty) this.#tell();
    } catch (error) {
      this.#drawn = "";
      this.showFault(`The charts are not drawn: ${error.message}. The numbers above them are current.`, () => this.#draw());
    }
  }

  async #drawAll(fingerprint) {
    this.#drawn = fingerprint;
    const library = await loadPlotly();
    const style = getComputedStyle(this.element);
    const times = this.#points.map((point) => written(point.at));
    for (const figure of this.figures) {
      const lines = stretches(figure.chart, this.#points).flatMap(([begin, end]) => {
        const [x, points] = [times.slice(begin, end), this.#points.slice(begin, end)];
        return band(figure.chart, x, points, style).concat(trace(figure.chart, x, points, style));
      });
      await library.react(figure.area, lines, this.#layout(figure, style), CONFIG);
      if (this.zoomable && !figure.isZoomed) this.#follow(figure);
    }
  }

  #layout(figure, style) {
    const made = layout(figure, this.#points, style);
    made.xaxis.range = this.#range ?? this.#whole();
    if (!this.zoomable) return made;
    made.xaxis.fixedrange = false;
    return { ...made, dragmode: "zoom", uirevision: this.#range?.join() ?? "whole" };
  }

  /** All three charts have one axis of time, from the first point to the last, although not all know a value there. */
  #whole() {
    const first = this.#points[0].at;
    return [written(first), written(Math.max(this.#points.at(-1).at, first + 1))];
  }

  /** Lets a range that is chosen in one chart hold for all. */
  #follow(figure) {
    figure.isZoomed = true;
    figure.area.on("plotly_relayout", (changed) => {
      const [from, to] = [changed["xaxis.range[0]"], changed["xaxis.range[1]"]];
      if (from !== undefined && to !== undefined) this.#zoom(`${[from, to]}` === `${this.#whole()}` ? null : [from, to]);
      else if (changed["xaxis.autorange"]) this.#zoom(null);
    });
  }

  #zoom(range) {
    if (range?.join() === this.#range?.join()) return;
    this.#range = range;
    this.whole.hidden = range === null;
    this.#drawn = "";
    this.onRange(range?.map(read) ?? null);
    this.#draw();
  }
}

/** Runs of known values. Each becomes a line of its own, because the fill below a line would cover its gaps. */
export function stretches(chart, points) {
  const found = [];
  let begin = null;
  points.forEach((point, i) => {
    const known = chart.of(point) !== null;
    if (known && begin === null) begin = i;
    if (!known && begin !== null) {
      found.push([begin, i]);
      begin = null;
    }
  });
  if (begin !== null) found.push([begin, points.length]);
  return found;
}

export function trace(chart, x, points, style) {
  const colour = style.getPropertyValue("--tone").trim();
  return {
    x,
    y: points.map(chart.of),
    text: points.map((point) => chart.write(chart.of(point))),
    mode: "lines",
    line: { color: colour, width: 1.75, shape: chart.step ? "hv" : "linear" },
    fill: chart.step ? "tozeroy" : "none",
    fillcolor: washed(colour),
    hovertemplate: "%{text}<extra></extra>",
  };
}

/** The colour, so thin that lines and grid show through. */
const washed = (hex) => `rgba(${[1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)).join(", ")}, 0.13)`;

/** Between the least and the greatest of what points stand for; nothing where each stands for itself. */
function band({ between }, x, points, style) {
  if (!between || points.every(({ reports = 1 }) => reports === 1)) return [];
  const edge = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", fillcolor: washed(style.getPropertyValue("--tone").trim()) };
  const [least, most] = [0, 1].map((which) => points.map((point) => between(point)[which]));
  return [
    { ...edge, y: least, fill: "none" },
    { ...edge, y: most, fill: "tonexty" },
  ];
}

export function layout({ chart, area }, points, style) {
  const grid = style.getPropertyValue("--line").trim();
  const axis = { gridcolor: grid, linecolor: grid, zeroline: false, fixedrange: true, nticks: 4, tickfont: { size: 11 } };
  return {
    autosize: true,
    height: area.clientHeight,
    margin: { l: 42, r: 10, t: 6, b: 22 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: style.fontFamily, size: 11, color: style.getPropertyValue("--muted").trim() },
    showlegend: false,
    hovermode: "x unified",
    hoverlabel: {
      bgcolor: style.getPropertyValue("--surface").trim(),
      bordercolor: grid,
      font: { color: style.getPropertyValue("--text").trim(), size: 12 },
    },
    shapes: marks(points, style),
    xaxis: { ...axis, type: "date", showgrid: false, nticks: 4, tickformat: timeFormat(points), hoverformat: "%H:%M:%S" },
    yaxis: { ...axis, tickformat: chart.ticks, rangemode: chart.fromZero ? "tozero" : "normal", ...unit(chart, points) },
  };
}

/** A line where the trainer's size changes, unless it changes too often for that. */
function marks(points, style) {
  const changed = points.filter(({ nodes: size }, i) => i > 0 && size !== null && points[i - 1].nodes !== null && size !== points[i - 1].nodes);
  if (changed.length > MOST_MARKS) return [];
  const line = { color: style.getPropertyValue("--muted").trim(), width: 1, dash: "dot" };
  return changed.map(({ at }) => ({ type: "line", x0: written(at), x1: written(at), yref: "paper", y0: 0, y1: 1, line, opacity: 0.45, layer: "below" }));
}

function timeFormat(points) {
  return points.at(-1).at - points[0].at < 600 ? "%H:%M:%S" : "%H:%M";
}

/** The axis of values: whole numbers for small sizes, and a single 0 where nothing is above 0. */
function unit(chart, points) {
  const most = points.reduce((high, point) => Math.max(high, chart.of(point) ?? 0), 0);
  if (chart.fromZero && most === 0) return { range: [0, 1], tickvals: [0] };
  return chart.step && most < 4 ? { dtick: 1 } : {};
}

/** Plotly shows dates as they are written, so they are written in UTC. */
export function written(at) {
  return new Date(at * 1000).toISOString().slice(0, -1);
}

/** Unix seconds of a date that Plotly has written; one without a time of day is UTC by itself. */
function read(date) {
  return Date.parse(date.includes(":") ? `${date.replace(" ", "T")}Z` : date) / 1000;
}
