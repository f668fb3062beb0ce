// A trainer's loss, throughput and size over time, by Plotly, which is loaded with the first chart in view.

import { h, setText } from "./dom.js";
import { decimal, nodes, rate } from "./format.js";

const CONFIG = { displayModeBar: false, responsive: true, showTips: false };
const dark = matchMedia("(prefers-color-scheme: dark)");

const CHARTS = [
  { name: "Loss", of: (point) => point.loss, say: (view) => decimal(view.loss), ticks: "~g", hover: "%{y:.4g}<extra></extra>" },
  {
    name: "Samples/s",
    of: (point) => point.samples_per_s,
    say: (view) => rate(view.state === "running" ? view.samples_per_s : null),
    ticks: "~s",
    hover: "%{y:,.0f} samples/s<extra></extra>",
    fromZero: true,
  },
  {
    name: "Size",
    of: (point) => point.nodes,
    say: (view) => nodes(view.nodes.length),
    ticks: "d",
    hover: "%{y} nodes<extra></extra>",
    fromZero: true,
    step: true,
  },
];

let plotly = null;

function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = h("script", { src: "static/plotly.min.js" });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => {
      plotly = null;
      reject(new Error("Plotly did not load"));
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

  constructor() {
    this.figures = CHARTS.map((chart) => {
      const value = h("strong");
      const area = h("div", { class: "chart" });
      const figure = h("figure", {}, h("figcaption", {}, h("span", {}, chart.name), value), area);
      return { chart, value, area, figure };
    });
    this.element = h("div", { class: "charts" }, ...this.figures.map(({ figure }) => figure));
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

  showNow(view) {
    for (const { chart, value, area } of this.figures) {
      setText(value, chart.say(view));
      area.setAttribute("role", "img");
      area.setAttribute("aria-label", `${chart.name} of ${view.name} over time, now ${chart.say(view)}`);
    }
  }

  showSeries({ points }) {
    this.#points = points;
    this.#draw();
  }

  async #draw() {
    const newest = this.#points.at(-1);
    const fingerprint = `${this.#points.length} ${newest?.at} ${dark.matches}`;
    if (!this.#inView || !newest || fingerprint === this.#drawn) return;
    this.#drawn = fingerprint;
    try {
      const library = await loadPlotly();
      const style = getComputedStyle(this.element);
      const times = this.#points.map((point) => localTime(point.at));
      for (const figure of this.figures) {
        const line = trace(figure.chart, times, this.#points, style);
        await library.react(figure.area, [line], layout(figure, this.#points, style), CONFIG);
      }
    } catch (error) {
      this.#drawn = "";
      console.warn(`The charts are not drawn: ${error.message}`);
    }
  }
}

function trace(chart, x, points, style) {
  const colour = style.getPropertyValue("--tone").trim();
  return {
    x,
    y: points.map(chart.of),
    mode: "lines",
    line: { color: colour, width: 1.75, shape: chart.step ? "hv" : "linear" },
    fill: chart.step ? "tozeroy" : "none",
    fillcolor: style.getPropertyValue("--tone-wash").trim(),
    hovertemplate: chart.hover,
    connectgaps: false,
  };
}

function layout({ chart, area }, points, style) {
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
    xaxis: { ...axis, type: "date", showgrid: false, nticks: 4, tickformat: timeFormat(points), hoverformat: "%H:%M:%S" },
    yaxis: { ...axis, tickformat: chart.ticks, rangemode: chart.fromZero ? "tozero" : "normal", ...unit(chart, points) },
  };
}

function timeFormat(points) {
  return points.at(-1).at - points[0].at < 600 ? "%H:%M:%S" : "%H:%M";
}

/** Without a single value above 0 an axis would have fractions; sizes never have any. */
function unit(chart, points) {
  const most = points.reduce((high, point) => Math.max(high, chart.of(point) ?? 0), 0);
  if (chart.fromZero && most === 0) return { range: [0, 1], tickvals: [0] };
  return chart.step && most < 4 ? { dtick: 1 } : {};
}

/** Plotly shows dates as they are written, so they are written in local time. */
function localTime(at) {
  const moment = new Date(at * 1000);
  return new Date(moment - moment.getTimezoneOffset() * 60000).toISOString().slice(0, -1);
}
