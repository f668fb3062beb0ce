// A trainer's loss, throughput and size over time, by Plotly, which is loaded with the first chart in view.

import { lossOf } from "./compare_axis.js";
import { button } from "./controls.js";
import { h, setText } from "./dom.js";
import { notLoaded } from "./faults.js";
import { decimal, duration, nodes, rate } from "./format.js";
import { serviceNow } from "./time.js";
import { TimeAxis, written } from "./time_axis.js";

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
function rateOf(view) {
  const { samples_per_s: known, samples_per_s_below: below } = view;
  return known === null && below !== null ? `< ${rate(below)}` : rate(presentRate(view));
}

/** Samples/s: none of a live trainer without nodes; null where it is not known. */
export function presentRate({ nodes: members, ended_at: ended, samples_per_s: known }) {
  return members.length || ended !== null ? known : 0;
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
      reject(new Error("nothing answers"));
    });
    document.head.append(script);
  });
  return plotly;
}

/** Charts of one trainer. They are drawn while in view, and only when their points have changed. */
export class Charts {
  #points = [];
  #key = "";
  #drawn = "";
  #inView = false;
  #note = h("p", { class: "chart-note" });

  /** With `zoomable` a range of time can be chosen in any of the charts, for all of the `axis`; `nothing` says why there is no point. */
  constructor({ charts = CHARTS, zoomable = false, axis = new TimeAxis(), nothing = "There is no point to draw: finished steps make them." } = {}) {
    this.zoomable = zoomable;
    this.axis = axis;
    this.nothing = nothing;
    this.figures = charts.map((chart) => {
      const value = h("strong");
      const age = h("small", { class: "age" });
      const hint = h("small");
      const area = h("div", { class: "chart" });
      const figure = h("figure", { hidden: chart.isOptional ? "" : null }, h("figcaption", {}, h("span", {}, chart.name, " ", hint), h("span", {}, age, " ", value)), area);
      return { chart, value, age, hint, area, figure };
    });
    this.whole = button("Whole time", () => axis.choose(null), { class: "button whole-time", hidden: "" });
    this.element = h("div", { class: "charts" }, this.whole, ...this.figures.map(({ figure }) => figure), this.#note);
    this.#tell("Loading…");
    dark.addEventListener("change", () => this.#draw());
    axis.follow(() => this.#draw());
    const onMove = (moves) => {
      this.#inView = moves.at(-1).isIntersecting; // the newest of those since the last call
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

  /** Shows the points; `key` tells those of one question from those of another. */
  showSeries({ points, key = "" }) {
    this.#points = points;
    this.#key = key;
    for (const { chart, figure } of this.figures) figure.hidden = chart.isOptional === true && points.every((point) => chart.of(point) === null);
    if (points.length) this.axis.include(this, points);
    else this.#clear();
    if (this.#isEmpty && !this.#note.querySelector("button")) this.#tell(points.length ? "Loading…" : this.nothing);
    this.#foldIf(points.length === 0);
    this.#draw();
  }

  /** Draws nothing any more. */
  #clear() {
    this.#drawn = "";
    for (const figure of this.figures) {
      if (figure.area.hasChildNodes()) window.Plotly.purge(figure.area);
      figure.area.replaceChildren();
      figure.isZoomed = false;
    }
  }

  /** Says over the charts why there is nothing, or not what was asked for, and offers to try again. */
  showFault(text, retry) {
    this.#tell(h("span", { role: "alert" }, text), button("Try again", retry));
    this.#foldIf(this.#isEmpty);
  }

  /** Leaves no room for charts where there is none. */
  #foldIf(isWithout) {
    this.element.classList.toggle("folded", isWithout);
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
    this.whole.hidden = this.axis.range === null;
    if (!this.#inView || !newest) return;
    const fingerprint = `${this.#key} ${this.#points.length} ${newest.at} ${dark.matches} ${this.axis.range ?? this.axis.whole}`;
    try {
      if (fingerprint !== this.#drawn) await this.#drawAll(fingerprint);
      if (!this.#isEmpty) this.#tell();
    } catch (error) {
      this.#drawn = "";
      this.showFault(notLoaded(error.message), () => this.#draw());
    }
  }

  async #drawAll(fingerprint) {
    this.#drawn = fingerprint;
    const library = await loadPlotly();
    this.#foldIf(false);
    const style = getComputedStyle(this.element);
    const times = this.#points.map((point) => written(point.at));
    for (const figure of this.figures) {
      if (figure.figure.hidden) continue;
      const lines = (figure.chart.lines ?? [figure.chart]).flatMap((line) =>
        stretches(line, this.#points).flatMap(([begin, end]) => {
          const [x, points] = [times.slice(begin, end), this.#points.slice(begin, end)];
          return band(line, x, points, style).concat(trace(line, x, points, style));
        }),
      );
      await library.react(figure.area, lines, this.#layout(figure, style), CONFIG);
      if (this.zoomable && !figure.isZoomed) this.#follow(figure);
    }
  }

  #layout(figure, style) {
    const made = layout(figure, this.#points, style);
    const { range, whole } = this.axis;
    made.xaxis.range = range ?? whole;
    const isFirst = figure === this.figures.find(({ figure: { hidden } }) => !hidden);
    setText(figure.hint, isFirst ? hintOf(this.#points, made, this.zoomable) : "");
    if (!this.zoomable) return made;
    made.xaxis.fixedrange = false;
    return { ...made, dragmode: "zoom", uirevision: range?.join() ?? "whole" };
  }

  /** Lets a range that is chosen in one chart hold for all. */
  #follow(figure) {
    figure.isZoomed = true;
    figure.area.on("plotly_relayout", (changed) => {
      const [from, to] = [changed["xaxis.range[0]"], changed["xaxis.range[1]"]];
      if (from !== undefined && to !== undefined) this.axis.choose(`${[from, to]}` === `${this.axis.whole}` ? null : [from, to]);
      else if (changed["xaxis.autorange"]) this.axis.choose(null);
    });
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
    mode: x.length === 1 ? "markers" : "lines", // A line of one point would not be seen.
    marker: { color: colour, size: 4 },
    line: { color: colour, width: 1.75, shape: chart.step ? "hv" : "linear", dash: chart.dash ?? "solid" },
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
  const axis = { gridcolor: grid, linecolor: grid, zeroline: false, fixedrange: true, nticks: 6, tickfont: { size: 11 } };
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
    xaxis: { ...axis, type: "date", showgrid: false, nticks: 4, tickformat: timeFormat(points, "%H:%M"), hoverformat: timeFormat(points, "%H:%M:%S") },
    yaxis: { ...axis, tickformat: chart.ticks, rangemode: chart.fromZero ? "tozero" : "normal", ...unit(chart, points) },
  };
}

/** What the upright lines are, or why there are none. */
function hintOf(points, { shapes }, isZoomable) {
  if (shapes.length) return "upright: its nodes change";
  if (changes(points).length === 0) return "";
  return `changes: too many to mark${isZoomable ? ", choose a range" : ""}`;
}

/** The points at which the trainer's size changes. */
function changes(points) {
  return points.filter(({ nodes: size }, i) => i > 0 && size !== null && points[i - 1].nodes !== null && size !== points[i - 1].nodes);
}

/** A line where the trainer's size changes, unless it changes too often for that. */
function marks(points, style) {
  const changed = changes(points);
  if (changed.length > MOST_MARKS) return [];
  const line = { color: style.getPropertyValue("--muted").trim(), width: 1, dash: "dot" };
  return changed.map(({ at }) => ({ type: "line", x0: written(at), x1: written(at), yref: "paper", y0: 0, y1: 1, line, opacity: 0.45, layer: "below" }));
}

/** How times are written on the axis; `usual` is for those that are neither minutes nor days. */
function timeFormat(points, usual) {
  const span = points.at(-1).at - points[0].at;
  if (span > 72_000) return `%-d %b ${usual}`;
  return span < 600 ? "%H:%M:%S" : usual;
}

/** The axis of values: whole numbers for small sizes, and a single 0 where nothing is above 0. */
function unit(chart, points) {
  if (chart.range) return { range: chart.range };
  const most = points.reduce((high, point) => Math.max(high, chart.of(point) ?? 0), 0);
  if (chart.fromZero && most === 0) return { range: [0, 1], tickvals: [0] };
  return chart.step && most < 4 ? { dtick: 1 } : {};
}
