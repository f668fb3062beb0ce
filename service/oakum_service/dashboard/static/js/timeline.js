// The main picture: one row for each node, time to the right, now at the right edge.
//
// Everything dated lies in one group that slides left under a fixed "now", so the picture moves between two
// refreshes without being drawn again. What has not ended is drawn beyond now and cut there. Only the rows in view
// are drawn: five thousand nodes cost as much as fifty.

import { h, s } from "./dom.js";
import { clock, duration } from "./format.js";
import { blocks, fit, fitEnd, rowHeight, ticks } from "./geometry.js";
import { tone } from "./tones.js";

const AXIS_PX = 26;
const NOW_MARGIN_PX = 18;
const NAME_ROOM_PX = [64, 132];
const AHEAD_S = 600;
const REFRESH_S = 2;
const NOW_LABEL_PX = 62;
const SLIDE_EVERY_MS = 80;

export class Timeline {
  #document = null;
  #nodes = new Map();
  #span = 180;
  #receivedAt = 0;
  #drawnFrom = 0;
  #slidAt = 0;
  #slidPx = 0;
  #frozen = false;

  constructor(root) {
    this.axis = s("svg", { class: "axis", height: AXIS_PX, "aria-hidden": "true" });
    this.plot = s("svg", { class: "plot", role: "img" });
    this.scroller = h("div", { class: "rows", tabindex: "0", "aria-label": "Rows of nodes" }, this.plot);
    this.tip = h("div", { class: "tip", hidden: "" });
    root.append(this.axis, this.scroller, this.tip);
    this.scroller.addEventListener("scroll", () => this.#draw(), { passive: true });
    this.scroller.addEventListener("pointermove", (event) => this.#point(event));
    this.scroller.addEventListener("pointerleave", () => (this.tip.hidden = true));
    new ResizeObserver(() => this.#draw()).observe(root);
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) requestAnimationFrame((at) => this.#slide(at));
  }

  /** Shows a timeline and the nodes' present states, `span` seconds wide. */
  show(timeline, nodes, span) {
    this.#document = timeline;
    this.#nodes = new Map(nodes.map((node) => [node.name, node]));
    this.#span = span;
    this.#receivedAt = performance.now();
    this.#frozen = false;
    this.#draw();
  }

  /** Stops the clock: what is shown is no longer known to be so. */
  freeze() {
    this.#frozen = true;
  }

  #now() {
    return this.#document.to_at + (performance.now() - this.#receivedAt) / 1000;
  }

  #draw() {
    const width = this.scroller.clientWidth;
    if (!this.#document || !width) return;
    const { nodes } = this.#document;
    const to = this.#frozen ? this.#drawnFrom + this.#span : this.#now();
    const from = to - this.#span;
    this.#drawnFrom = from;
    this.row = rowHeight(nodes.length);
    this.left = this.#nameRoom(nodes, width);
    this.right = width - NOW_MARGIN_PX;
    this.scale = (this.right - this.left) / this.#span;
    const height = nodes.length * this.row;
    const marks = ticks(from, to, this.right - this.left);
    this.#drawAxis(width, marks);
    this.plot.setAttribute("width", width);
    this.plot.setAttribute("height", height);
    this.plot.setAttribute("aria-label", this.#inWords());
    this.sliding = s("g");
    this.#slidPx = 0;
    const still = s("g");
    this.#drawRows(still, width, height, marks);
    this.plot.replaceChildren(this.#definitions(height), still);
  }

  #drawRows(still, width, height, marks) {
    const { nodes, foreground, holes, fragments } = this.#document;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / this.row) - 4);
    const last = Math.min(nodes.length, Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / this.row) + 4);
    const rowOf = new Map();
    for (let row = first; row < last; row++) rowOf.set(nodes[row], row);

    const labels = s("g");
    for (const at of marks.moments) {
      const x = this.#x(at);
      this.sliding.append(s("line", { class: "tick", x1: x, x2: x, y1: 0, y2: height }));
    }
    const inView = ({ node }) => rowOf.has(node);
    for (const hole of holes.filter(inView)) this.#bar("hole", hole, rowOf.get(hole.node), { fill: "url(#hatch)" });
    for (const lost of this.#unavailable().filter(inView)) this.#bar("unavailable", lost, rowOf.get(lost.node), { fill: "url(#crossed)" });
    for (const block of blocks(foreground, rowOf)) this.#drawForeground(block, labels);
    for (const fragment of fragments.filter(inView)) this.#drawFragment(fragment, rowOf.get(fragment.node), labels);
    const names = s("g", { class: "names" });
    const every = Math.ceil(12 / this.row);
    for (const [node, row] of rowOf) {
      if (row % every === 0) {
        const y = (row + Math.min(every, nodes.length - row) / 2) * this.row;
        names.append(s("text", { x: this.left - 10, y, class: "name" }, fitEnd(node, this.left - 12)));
      }
    }
    const cut = s("g", { "clip-path": "url(#past)" }, this.sliding, labels);
    const now = s("line", { class: "now", x1: this.right, x2: this.right, y1: 0, y2: height });
    still.append(names, cut, now);
  }

  #unavailable() {
    const nodes = [...this.#nodes.values()].filter((node) => node.state === "unavailable");
    return nodes.map((node) => ({ node: node.name, start_at: node.since, end_at: null }));
  }

  #drawForeground({ interval, first, last }, labels) {
    this.#bar("foreground", interval, first, { "data-job": interval.job }, last - first + 1);
    this.#label(interval.name || interval.job, interval, first, labels, "job-name", last - first + 1);
  }

  #drawFragment(fragment, row, labels) {
    const end = fragment.end_at;
    const colour = tone(fragment.trainer);
    const data = { "data-trainer": fragment.trainer };
    const training = fragment.training_at;
    this.#bar(`warming ${colour}`, { ...fragment, end_at: training ?? end }, row, data);
    if (training === null) return;
    this.#bar(`training ${colour}`, { ...fragment, start_at: training }, row, data);
    this.#label(fragment.trainer, { ...fragment, start_at: training }, row, labels, "trainer-name");
  }

  #bar(kind, { node, start_at, end_at }, row, attributes = {}, numRows = 1) {
    const gap = this.row > 10 ? 3 : 1;
    const x = this.#x(Math.max(start_at, this.#drawnFrom - 5));
    const width = this.#x(end_at ?? this.#drawnFrom + this.#span + AHEAD_S) - x;
    if (width <= 0 || x + width < this.left) return;
    this.sliding.append(
      s("rect", {
        class: kind,
        x: x.toFixed(1),
        y: row * this.row + gap / 2,
        width: Math.max(width - 1, 0.8).toFixed(1),
        height: numRows * this.row - gap,
        rx: this.row > 10 ? 2 : 0,
        "data-node": node,
        ...attributes,
      }),
    );
  }

  /** A name slides with its bar, and stands still at the left edge while its bar's beginning is out of the picture. */
  #label(text, { start_at, end_at }, row, labels, kind, numRows = 1) {
    if (this.row * numRows < 12) return;
    const start = this.#x(start_at);
    const x = Math.max(start, this.left);
    const still = start < this.left;
    const end = Math.min(end_at === null ? Infinity : this.#x(end_at), this.right);
    const shown = fit(text, end - x - (still ? REFRESH_S * this.scale : 0));
    if (!shown) return;
    const group = still ? labels : this.sliding;
    const small = this.row < 16 ? " small" : "";
    group.append(s("text", { class: kind + small, x: (x + 6).toFixed(1), y: (row + numRows / 2) * this.row }, shown));
  }

  #drawAxis(width, { step, moments }) {
    this.axis.setAttribute("width", width);
    this.axisSliding = s("g");
    for (const at of moments.filter((moment) => this.#x(moment) < this.right - NOW_LABEL_PX)) {
      this.axisSliding.append(s("text", { x: this.#x(at).toFixed(1), y: 16 }, clock(at, step < 60)));
    }
    this.axis.replaceChildren(
      this.axisSliding,
      s("text", { class: "now-name", x: this.right, y: 16 }, "now"),
    );
  }

  #definitions(height) {
    const tile = (id, size) => ({ id, width: size, height: size, patternUnits: "userSpaceOnUse" });
    const hatch = s(
      "pattern",
      { ...tile("hatch", 6), patternTransform: "rotate(45)" },
      s("rect", { class: "hatch-ground", width: 6, height: 6 }),
      s("line", { class: "hatch-line", x1: 0, x2: 0, y1: 0, y2: 6 }),
    );
    const crossed = s("pattern", tile("crossed", 5), s("path", { class: "crossed-line", d: "M0 0L5 5M5 0L0 5" }));
    const past = s("clipPath", { id: "past" }, s("rect", { x: this.left, y: 0, width: this.right - this.left, height }));
    return s("defs", {}, hatch, crossed, past);
  }

  #x(at) {
    return this.left + (at - this.#drawnFrom) * this.scale;
  }

  #nameRoom(nodes, width) {
    const longest = nodes.reduce((most, node) => Math.max(most, node.length), 0);
    const [least, most] = width < 600 ? [40, 76] : NAME_ROOM_PX;
    return Math.min(Math.max(longest * 6.6 + 18, least), most);
  }

  #slide(at) {
    requestAnimationFrame((next) => this.#slide(next));
    if (!this.sliding || this.#frozen || document.hidden || at - this.#slidAt < SLIDE_EVERY_MS) return;
    this.#slidAt = at;
    const slid = (this.#now() - this.#span - this.#drawnFrom) * this.scale;
    // A step too small to be seen would repaint the whole picture for nothing.
    if (Math.abs(slid - this.#slidPx) < 0.25) return;
    this.#slidPx = slid;
    const move = `translate(${(-slid).toFixed(2)} 0)`;
    this.sliding.setAttribute("transform", move);
    this.axisSliding.setAttribute("transform", move);
  }

  #inWords() {
    const states = [...this.#nodes.values()];
    const busy = states.filter((node) => node.state === "foreground").length;
    const training = states.filter((node) => node.trainer).length;
    const period = `${states.length} nodes over the last ${duration(this.#span)}`;
    return `${period}: ${busy} run foreground jobs now, ${training} hold trainers`;
  }

  #point(event) {
    const box = this.plot.getBoundingClientRect();
    const x = event.clientX - box.left;
    const node = this.#document?.nodes[Math.floor((event.clientY - box.top) / this.row)];
    const now = this.#now();
    const at = now - this.#span + (x - this.left) / this.scale;
    const lines = node && x >= this.left && x <= this.right + 4 ? this.#tell(node, Math.min(at, now), now) : [];
    this.tip.hidden = lines.length === 0;
    if (this.tip.hidden) return;
    this.tip.replaceChildren(...lines.map((line, i) => h(i ? "p" : "strong", {}, line)));
    const room = document.documentElement.clientWidth - this.tip.offsetWidth - 12;
    this.tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, room))}px`;
    this.tip.style.top = `${event.clientY + 18}px`;
  }

  #tell(node, at, now) {
    const covers = (i) => i.node === node && i.start_at <= at && (i.end_at === null || at < i.end_at);
    const { foreground, holes, fragments } = this.#document;
    const span = ({ start_at: start, end_at: end }) =>
      `${clock(start)} to ${end === null ? "now" : clock(end)}, ${duration((end ?? now) - start)}`;
    const job = foreground.find(covers);
    if (job) return [`${node}: foreground job ${job.job}`, job.name, span(job)];
    const fragment = fragments.findLast(covers);
    const hole = holes.find(covers);
    const ending = hole?.end_at === null ? this.#forecast(node, now) : [];
    if (fragment) {
      const warming = fragment.training_at === null || at < fragment.training_at;
      const warmUp = (fragment.training_at ?? fragment.end_at ?? now) - fragment.start_at;
      const title = `${node}: ${fragment.trainer} ${warming ? "warms up" : "trains"}`;
      return [title, span(fragment), `warm-up ${duration(warmUp)}`, ...ending];
    }
    if (hole) return [`${node}: idle`, span(hole), ...ending];
    return this.#nodes.get(node)?.state === "unavailable" ? [`${node}: unavailable`] : [];
  }

  #forecast(node, now) {
    const end = this.#nodes.get(node)?.hole_ends_at;
    if (end === null || end === undefined) return [];
    return [end > now ? `expected to last ${duration(end - now)} more` : "expected to end any moment"];
  }
}
