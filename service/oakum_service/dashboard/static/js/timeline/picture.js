// Draws rows of nodes: a bar for each thing that a node did, the axis, and what is expected right of now.
//
// All shapes with a time are in one group, which is moved as time goes on or the reader drags; it holds more than
// the window on both sides. A picture of thousands of bars is one path for each kind and colour.

import { h, s } from "../dom.js";
import { clock, count, day } from "../format.js";
import { blocks, fit, fitEnd, labelWidth, rowHeight, ticks } from "../geometry.js";
import { tone } from "../tones.js";
import { leftAt, toCome, unknownParts } from "./row_bars.js";

const HOUR_S = 3600;
const DAY_S = 86400;
const AXIS_PX = 26;
const RIGHT_PX = 6;
/** How far the axis's names reach out to the left of the rows. */
const BEFORE_PX = 20;
const NAME_ROOM_PX = [64, 132];
/** Patterns that fill a kind of bar; the others have colours by their class. */
const FILLS = { unavailable: "url(#crossed)", unknown: "url(#unknown)" };
/** The lowest first. */
const LAYERS = ["unknown", "hole", "unavailable", "foreground", "warming", "training"];
const MOST_ELEMENTS = 700;
/** Times without a bar that are narrower are none. */
const LEAST_UNKNOWN_PX = 2;
const LABEL_GAP_PX = 14;
/** Share of the window that is drawn beyond its borders. */
const BESIDE = 0.5;

export class Picture {
  constructor(root) {
    this.axis = s("svg", { class: "axis", height: AXIS_PX, "aria-hidden": "true" });
    this.plot = s("svg", { class: "plot", role: "img", "aria-label": "Nodes over time, not loaded yet" });
    // An application: screen readers leave the arrows to the page.
    const keys = "Arrows move between bars, Enter opens one, Escape leaves it; with Shift arrows move in time";
    this.scroller = h("div", { class: "rows", tabindex: "0", role: "application", "aria-label": "Rows of nodes", "aria-description": keys }, this.plot);
    this.axisBox = h("div", { class: "axis-box", title: "Drag or turn the wheel here to move or zoom" }, this.axis);
    root.append(this.axisBox, this.scroller);
    this.marked = null;
    this.shapes = s("g");
    this.bars = [];
    this.drawnTrainers = new Set();
    this.hasUnknown = false;
    this.left = 0;
    this.right = 0;
    this.row = 1;
    this.rows = [];
    this.inView = [];
    this.room = 0;
  }

  get namesInView() {
    return this.inView.map(({ node }) => node).filter((node) => node !== undefined);
  }

  get width() {
    return Math.max(this.right - this.left, 1);
  }

  /**
   * Lays out the rows, and measures once what drawing needs: asking the browser while shapes are made would have it lay
   * out the page each time.
   */
  layOut(rows, longestName) {
    this.rows = rows;
    this.row = rowHeight(rows.length);
    this.height = Math.max(rows.length, 1) * this.row;
    this.plot.setAttribute("height", this.height);
    // Also while the rows are hidden.
    this.room = this.scroller.clientWidth || this.scroller.parentElement.clientWidth;
    this.inView = this.#rowsInView();
    const [least, most] = this.room < 600 ? [40, 76] : NAME_ROOM_PX;
    this.left = Math.min(Math.max(longestName * 6.6 + 18, least), most);
    this.right = this.room - RIGHT_PX;
    return this.room > 0;
  }

  /** The rows in view, and some beyond. */
  #rowsInView() {
    const { scrollTop, clientHeight } = this.scroller;
    const first = Math.max(0, Math.floor(scrollTop / this.row) - 4);
    const last = Math.ceil((scrollTop + Math.max(clientHeight, 200)) / this.row) + 4;
    return this.rows.slice(first, last).map(({ node, title, size }, i) => ({ node, title, size, place: first + i }));
  }

  /**
   * Draws the rows in view for a window. `present` is up to when things are known, `{ at, name }`; `store` has the nodes'
   * bars, and `forecast` tells when a node's hole is expected to end.
   */
  draw({ from, to }, present, store, forecast, inWords) {
    this.from = from;
    this.to = to;
    this.now = present.at;
    this.scale = this.width / (to - from);
    const { height } = this;
    const marks = ticks(from - BESIDE * (to - from), to + BESIDE * (to - from), this.width * (1 + 2 * BESIDE));
    this.#drawAxis(marks, present);
    for (const [name, value] of [["width", this.room], ["aria-label", inWords]]) this.plot.setAttribute(name, value);
    this.sliding = s("g");
    this.labels = s("g");
    this.shapes = s("g");
    this.bars = [];
    this.#drawBars(marks, height, store, forecast);
    const cut = s("g", { "clip-path": "url(#shown)" }, this.sliding, this.labels);
    this.plot.replaceChildren(this.#definitions(height), cut, this.#names());
    this.moved = 0;
    this.#showWholeTimes();
  }

  /** Dims all trainers but one; none, if `trainer` is null. */
  mark(trainer) {
    this.marked = trainer;
    this.#showBars();
  }

  /** Moves what is drawn, so that the window `from` on is shown. Returns false if it has to be drawn anew. */
  move(from) {
    const px = (this.from - from) * this.scale;
    if (Math.abs(from - this.from) > BESIDE * (this.to - this.from) * 0.9) return false;
    if (Math.abs(px - this.moved) < 0.25) return true;
    this.moved = px;
    const move = `translate(${px.toFixed(2)} 0)`;
    this.sliding.setAttribute("transform", move);
    this.axisSliding.setAttribute("transform", move);
    this.#showWholeTimes();
    this.labels.setAttribute("visibility", Math.abs(px) > 40 ? "hidden" : "visible");
    return true;
  }

  /** The row and the time at a point of the page. */
  at(clientX, clientY) {
    const box = this.plot.getBoundingClientRect();
    const x = clientX - box.left;
    const row = this.rows[Math.floor((clientY - box.top) / this.row)];
    return { row, at: this.from + (x - this.left - this.moved) / this.scale, isInside: x >= this.left && x <= this.right };
  }

  /** Where a bar of a node's row is, in pixels of the rows; null where that is not in view. */
  boxOf(node, { start_at: start, end_at: end }) {
    const place = this.rows.findIndex((row) => row.node === node);
    if (place < 0 || this.scale === undefined) return null;
    const last = end ?? Math.max(this.now, start);
    const [left, right] = [start, last].map((at) => Math.min(Math.max(this.#x(at) + this.moved, this.left), this.right));
    const isBeside = this.#x(last) + this.moved < this.left || this.#x(start) + this.moved > this.right;
    return isBeside ? null : { left, top: place * this.row, width: Math.max(right - left, 3), height: this.row };
  }

  #drawBars(marks, height, store, forecast) {
    const { now } = this;
    const bars = (node) => store.of(node);
    for (const at of marks.moments) {
      const x = this.#x(at);
      this.sliding.append(s("line", { class: "tick", x1: x, x2: x, y1: 0, y2: height }));
    }
    const rowOf = new Map();
    for (const { node, place } of this.inView) if (node !== undefined) rowOf.set(node, place);
    const foreground = [];
    const fragments = [];
    this.drawnTrainers = new Set();
    this.hasUnknown = false;
    const beside = BESIDE * (this.to - this.from);
    const [complete, until] = [Math.max(store.completeFrom, this.from - beside), Math.min(now, this.to + beside)];
    for (const [node, place] of rowOf) {
      const known = bars(node);
      if (known === null) continue;
      for (const part of unknownParts(known.stretches, complete, until, LEAST_UNKNOWN_PX / this.scale)) {
        this.#bar("unknown", part, place, { "data-node": node });
        this.hasUnknown ||= part.end_at > this.from && part.start_at < this.to;
      }
      for (const stretch of known.stretches) {
        if (stretch.state === "foreground") foreground.push({ ...stretch, node });
        else this.#bar(stretch.state === "hole" ? "hole" : "unavailable", stretch, place, { "data-node": node });
      }
      for (const fragment of known.fragments) fragments.push([fragment, place]);
    }
    for (const { interval, first, last } of blocks(foreground, rowOf)) {
      const many = interval.count > 1 ? `${count(interval.count)} jobs and idle times` : "";
      this.#bar("foreground", interval, first, { "data-job": interval.job || null }, last - first + 1);
      const above = this.rows.slice(first, last + 1).flatMap(({ node }) => bars(node)?.fragments ?? []);
      this.#label(many || interval.name || interval.job, { ...interval, start_at: leftAt(above, interval, now) }, first, "job-name", last - first + 1);
    }
    for (const [fragment, place] of fragments) this.#fragment(fragment, place);
    this.#showBars();
    this.sliding.append(this.shapes);
    if (this.to > now) this.#expect(rowOf, now, bars, forecast, height);
    const x = this.#x(now);
    this.sliding.append(s("line", { class: "now", x1: x, x2: x, y1: 0, y2: height }));
  }

  #fragment(fragment, place) {
    const colour = tone(fragment.trainer);
    this.drawnTrainers.add(fragment.trainer);
    const data = { "data-trainer": fragment.trainer };
    const training = fragment.training_at;
    this.#bar(`warming ${colour}`, { ...fragment, end_at: training ?? fragment.end_at }, place, data);
    if (training === null) return;
    this.#bar(`training ${colour}`, { ...fragment, start_at: training }, place, data);
    this.#label(fragment.trainer, { ...fragment, start_at: training }, place, "trainer-name");
  }

  /** Marks the time that is to come, and outlines what the scheduler announces there, else until when holes are expected. */
  #expect(rowOf, now, bars, forecast, height) {
    const begin = this.#x(now);
    const last = this.to + BESIDE * (this.to - this.from);
    const end = this.#x(last);
    this.sliding.append(s("rect", { class: "to-come", x: begin, y: 0, width: Math.max(end - begin, 0), height }));
    const announced = [];
    for (const [node, place] of rowOf) {
      const known = toCome(bars(node)?.announced ?? [], now, last);
      for (const one of known) announced.push({ ...one, node, job: `${one.kind} ${one.name}` });
      const until = forecast(node);
      const first = known.reduce((soonest, { start_at: start }) => Math.min(soonest, start), last);
      if (until === null || until === undefined || until <= now || until + 1 >= first) continue;
      const x = this.#x(until);
      const y = place * this.row + this.#gap / 2;
      this.sliding.append(s("rect", { class: "expected", x: x.toFixed(1), y, width: (this.#x(first) - x).toFixed(1), height: this.row - this.#gap, "data-node": node }));
    }
    for (const block of blocks(announced, rowOf)) this.#announce(block, end);
  }

  #announce({ interval, first, last }, most) {
    const numRows = last - first + 1;
    const x = this.#x(interval.start_at);
    const [kind, label] = interval.kind === "reservation" ? ["reserved", interval.name] : ["announced", interval.title || interval.name];
    const width = Math.max(Math.min(this.#x(interval.end_at), most) - x - 1, 1);
    const [y, height] = [first * this.row + this.#gap / 2, numRows * this.row - this.#gap];
    this.sliding.append(s("rect", { class: kind, x: x.toFixed(1), y, width: width.toFixed(1), height, fill: `url(#${kind})`, "data-name": interval.name }));
    this.#label(label, interval, first, "to-come-name", numRows);
  }

  get #gap() {
    return this.row > 10 ? 3 : 1;
  }

  #bar(kind, { start_at, end_at, count: merged = 1 }, place, data, numRows = 1) {
    const beside = BESIDE * this.width;
    const x = Math.max(this.#x(start_at), this.left - beside);
    // What lasts is known up to now, and no further.
    const end = Math.min(this.#x(end_at ?? Math.max(this.now, start_at)), this.right + beside);
    if (end < this.left - beside || end < x) return;
    const width = Math.max(end - x - (merged > 1 ? 0 : Math.min(1, (end - x) / 4)), 0.8);
    this.bars.push({ kind, x, y: place * this.row + this.#gap / 2, width, height: numRows * this.row - this.#gap, data });
  }

  /** Makes shapes of the bars: an element each where they are few, else one path for each kind and colour. */
  #showBars() {
    this.shapes.replaceChildren(...(this.bars.length <= MOST_ELEMENTS ? this.bars.map((bar) => this.#rectangle(bar)) : this.#paths()));
  }

  #rectangle({ kind, x, y, width, height, data }) {
    return s("rect", { class: kind + this.#dimmed(data), x: x.toFixed(1), y, width: width.toFixed(1), height, rx: this.row > 10 ? 2 : 0, fill: FILLS[kind], ...data });
  }

  #paths() {
    const paths = new Map();
    for (const { kind, x, y, width, height, data } of this.bars) {
      const look = kind + this.#dimmed(data);
      if (!paths.has(look)) paths.set(look, { kind, layer: LAYERS.indexOf(kind.split(" ")[0]), steps: [] });
      paths.get(look).steps.push(`M${x.toFixed(1)} ${y}h${width.toFixed(1)}v${height}h-${width.toFixed(1)}z`);
    }
    const inOrder = [...paths].sort(([, a], [, b]) => a.layer - b.layer);
    return inOrder.map(([look, { kind, steps }]) => s("path", { class: `${look} many`, d: steps.join(""), fill: FILLS[kind] }));
  }

  /** Another class for the bars of a trainer that is not the marked one. */
  #dimmed({ "data-trainer": trainer }) {
    return this.marked !== null && trainer !== undefined && trainer !== this.marked ? " dimmed" : "";
  }

  /** A name moves with its bar, and stays at the left edge while the bar's beginning is out of view. */
  #label(text, { start_at, end_at }, place, kind, numRows = 1) {
    if (this.row * numRows < 12) return;
    const start = this.#x(start_at);
    const x = Math.max(start, this.left);
    const end = Math.min(this.#x(end_at ?? this.now), this.right);
    const shown = fit(text, end - x);
    if (!shown || end < this.left || x > this.right) return;
    const group = start < this.left ? this.labels : this.sliding;
    const small = this.row < 16 ? " small" : "";
    const y = (place + numRows / 2) * this.row;
    this.pendingText ??= [];
    this.pendingText.push([group, s("text", { class: kind + small, x: (x + 6).toFixed(1), y }, shown)]);
  }

  #names() {
    const names = s("g", { class: "names" });
    for (const [group, text] of this.pendingText ?? []) group.append(text);
    this.pendingText = [];
    const every = Math.ceil(12 / this.row);
    for (const { node, title, size, place } of this.inView) {
      if (node === undefined) {
        names.append(s("rect", { class: "group-ground", x: 0, y: place * this.row, width: this.right, height: this.row }));
        names.append(s("text", { class: "group", x: 10, y: (place + 0.5) * this.row }, `${title}: ${count(size)}`));
      } else if (place % every === 0) {
        const y = (place + Math.min(every, this.rows.length - place) / 2) * this.row;
        names.append(s("text", { x: this.left - 10, y, class: "name" }, fitEnd(node, this.left - 12)));
      }
    }
    return names;
  }

  #drawAxis({ step, moments }, { at: now, name }) {
    this.axis.setAttribute("width", this.room);
    this.axisSliding = s("g");
    const nowX = this.#x(now);
    const isMidnight = (at) => step >= HOUR_S && at % DAY_S === 0;
    const label = (at) => (isMidnight(at) ? day(at) : clock(at, step < 60));
    const times = moments.map((at) => ({ x: this.#x(at), half: labelWidth(label(at)) / 2, text: s("text", { x: this.#x(at).toFixed(1), y: 16 }, label(at)) }));
    this.times = times.filter(({ x, half }) => Math.abs(x - nowX) >= half + labelWidth(name) / 2 + LABEL_GAP_PX);
    this.axisSliding.append(...this.times.map(({ text }) => text));
    this.axisSliding.append(s("text", { class: "now-name", x: nowX.toFixed(1), y: 16 }, name));
    const room = s("clipPath", { id: "axis-room" }, s("rect", { x: this.left - BEFORE_PX, y: 0, width: this.width + BEFORE_PX + RIGHT_PX, height: AXIS_PX }));
    this.axis.replaceChildren(s("defs", {}, room), s("g", { "clip-path": "url(#axis-room)" }, this.axisSliding));
  }

  /** Hides times that the axis's ends would cut: of 21:35:30 the digits 21 would be left. */
  #showWholeTimes() {
    for (const { x, half, text } of this.times) {
      const at = x + this.moved;
      text.setAttribute("visibility", at - half >= this.left - BEFORE_PX && at + half <= this.room ? "visible" : "hidden");
    }
  }

  #definitions(height) {
    const crossed = s("pattern", tile("crossed", 5), s("path", { class: "crossed-line", d: "M0 0L5 5M5 0L0 5" }));
    const [announced, reserved, unknown] = [["announced", 45], ["reserved", -45], ["unknown", 45]].map(([kind, angle]) =>
      s("pattern", { ...tile(kind, 7), patternTransform: `rotate(${angle})` }, s("line", { class: `${kind}-line`, x1: 0, x2: 0, y1: 0, y2: 7 })),
    );
    const shown = s("clipPath", { id: "shown" }, s("rect", { x: this.left, y: 0, width: this.width, height }));
    return s("defs", {}, crossed, announced, reserved, unknown, shown);
  }

  #x(at) {
    return this.left + (at - this.from) * this.scale;
  }
}

/** The attributes of a pattern that repeats in squares of `size` pixels. */
function tile(id, size) {
  return { id, width: size, height: size, patternUnits: "userSpaceOnUse" };
}
