// Draws the page's figures in the colours of the current style: light, dark or print.

const FIGURES = JSON.parse(document.getElementById("figures").textContent);
const CONFIG = { displayModeBar: false, responsive: true, showTips: false };
// So that three charts fit on a page.
const PAPER_SCALE = 0.8;
const root = document.documentElement;

function coloured(value, style) {
  if (typeof value === "string") {
    const named = /^var\((--[\w-]+)\)$/.exec(value);
    return named ? style.getPropertyValue(named[1]).trim() : value;
  }
  if (Array.isArray(value)) {
    const named = value.some((part) => typeof part === "string" || typeof part === "object");
    return named ? value.map((part) => coloured(part, style)) : value;
  }
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, coloured(part, style)]));
}

function layoutOf(own, area, style) {
  const [text, muted, line, surface] = ["text", "muted", "line", "surface"].map((name) =>
    style.getPropertyValue(`--${name}`).trim(),
  );
  const title = { standoff: 10 };
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true };
  return {
    autosize: true,
    width: area.clientWidth,
    height: Number(area.dataset.height) * (root.classList.contains("paper") ? PAPER_SCALE : 1),
    margin: { l: 60, r: 28, t: own.legend ? 30 : 10, b: 48 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: style.fontFamily, size: 12, color: muted },
    hoverlabel: { bgcolor: surface, bordercolor: line, font: { color: text, size: 12 } },
    hovermode: "closest",
    dragmode: "zoom",
    ...own,
    xaxis: { ...axis, ...own.xaxis, title: { ...own.xaxis.title, ...title } },
    yaxis: { ...axis, ...own.yaxis, title: { ...own.yaxis.title, ...title } },
  };
}

function draw() {
  const style = getComputedStyle(document.body);
  const drawn = Object.entries(FIGURES).map(([id, figure]) => {
    const area = document.getElementById(id);
    const { data, layout } = coloured(figure, style);
    return Plotly.react(area, data, layoutOf(layout, area, style), CONFIG);
  });
  return Promise.all(drawn);
}

function drawForPaper(isPaper) {
  root.classList.toggle("paper", isPaper);
  draw();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("beforeprint", () => drawForPaper(true));
addEventListener("afterprint", () => drawForPaper(false));
draw().then(() => root.setAttribute("data-drawn", ""));
