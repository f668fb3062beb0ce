// The strip below the picture: how all nodes were used over a long time, with the window to drag over it.

import { button } from "../controls.js";
import { h, s, setChildren } from "../dom.js";
import { notLoaded } from "../faults.js";
import { clock, day, duration } from "../format.js";
import { USES, USE_NAMES, occupancyOf, shareOf } from "./occupancy.js";
import { LONGEST_S, SHORTEST_S } from "./time_window.js";

const REACHES_S = [3600, 6 * 3600, 86400, 7 * 86400, LONGEST_S];
const HEIGHT_PX = 44;
const COLUMN_PX = 3;
const GRIP_PX = 8;

export class Strip {
  #shares = null;
  #asked = null;
  /** The width in pixels, as observed: to ask for it after each change of the page would have it laid out anew. */
  #px = 0;

  constructor(root, on) {
    this.root = root;
    this.on = on;
    this.chart = s("svg", { class: "strip-chart", height: HEIGHT_PX, role: "img", "aria-label": "Use of the nodes, not loaded yet" });
    this.window = s("rect", { class: "strip-window", y: 1, height: HEIGHT_PX - 2, rx: 3 });
    this.told = h("span", {}, "Loading…");
    const keys = Object.entries({ ...USE_NAMES, rest: "unavailable, or not known" }).map(([use, name]) => h("li", {}, h("span", { class: `key strip-${use}` }), name));
    keys.push(h("li", { class: "hint" }, "of several nodes: mixed shades"));
    this.caption = h("div", { class: "strip-caption" }, this.told, h("ul", { class: "legend", "aria-label": "Colours of the strip and of all nodes at once" }, ...keys));
    root.append(this.chart, this.caption);
    this.chart.addEventListener("pointerdown", (event) => this.#grab(event));
    new ResizeObserver(() => this.#fit()).observe(this.caption);
  }

  #fit() {
    this.#px = this.caption.clientWidth;
    if (this.#shares !== null) this.#draw();
  }

  /** Gets the shares for as long a time as fits the window, if those at hand do not. */
  async load(api, window, now) {
    if (this.#px === 0) this.#px = this.caption.clientWidth; // nothing is observed in a tab that is not seen
    const { from } = window.at(now);
    const reach = REACHES_S.find((seconds) => seconds >= 4 * window.span && now - from <= seconds) ?? LONGEST_S;
    const columns = Math.max(20, Math.floor(this.#px / COLUMN_PX));
    const isFresh = this.#asked && this.#asked.reach === reach && now - this.#asked.at < (2 * reach) / columns && this.#asked.columns === columns;
    if (isFresh) return;
    const shares = await occupancyOf(api, { from: now - reach, to: now }, columns, 1);
    this.#shares = shares.bands.length ? shares : null;
    this.#asked = this.#shares && { reach, columns, at: now };
    if (this.#shares) this.#draw();
    else this.#tell("Nothing is known yet of how the nodes were used.");
  }

  /** Says why there is nothing yet, and offers to try again; shares that are shown already stay. */
  fail(why, retry) {
    if (this.#shares === null) setChildren(this.told, why, () => [notLoaded(why), " ", button("Try again", retry)]);
  }

  #tell(text) {
    setChildren(this.told, text, () => [text]);
  }

  /** Shows where the window is. */
  mark(window, now) {
    if (this.#shares === null) return;
    const { from, to } = window.at(now);
    const x = Math.max(0, this.#x(from));
    const width = Math.max(Math.min(this.#x(Math.min(to, now)), this.#px - 1) - x, 4);
    this.window.setAttribute("x", x.toFixed(1));
    this.window.setAttribute("width", width.toFixed(1));
  }

  #draw() {
    const { columns, bands, from, keptFrom } = this.#shares;
    const width = this.#px;
    this.chart.setAttribute("width", width);
    const step = width / columns;
    const tops = Array.from({ length: columns }, () => HEIGHT_PX);
    const end = this.#x(this.#asked.at); // The last column is not over yet, and what is of it there counts for all of it.
    const last = Math.min(columns - 1, Math.floor(end / step));
    const elapsed = Math.max(0.01, Math.min(1, end / step - last));
    const share = (use, i) => Math.min(1, shareOf(bands[0], use, i) / (i === last ? elapsed : 1));
    const px = (column) => Math.min(column * step, end).toFixed(1);
    const shapes = USES.map((use) => {
      const bottoms = [...tops];
      for (let i = 0; i < columns; i++) tops[i] -= share(use, i) * HEIGHT_PX;
      const there = tops.map((y, i) => `${px(i)} ${y.toFixed(1)}H${px(i + 1)}`);
      const back = bottoms.map((y, i) => `${px(i + 1)} ${y.toFixed(1)}H${px(i)}`).toReversed();
      return s("path", { class: `strip-${use}`, d: `M${there.join("L")}L${back.join("L")}z` });
    });
    this.chart.setAttribute("aria-label", this.#inWords());
    this.chart.replaceChildren(...shapes, this.window);
    const sums = keptFrom > from + step ? `; before ${day(keptFrom)} hourly sums of idle and training` : "";
    this.#tell(`All nodes over ${duration(this.#asked.reach)}, since ${this.#asked.reach > 72_000 ? day(from) : clock(from, false)}${sums}. Drag over it to choose a time.`);
  }

  #inWords() {
    const { bands, columns, from, to } = this.#shares;
    const mean = (use) => Array.from({ length: columns }, (_, i) => shareOf(bands[0], use, i)).reduce((sum, share) => sum + share, 0) / columns;
    const parts = Object.entries(USE_NAMES).map(([use, name]) => `${name} ${Math.round(100 * mean(use))} %`);
    return `All nodes over ${duration(to - from)}: ${parts.join(", ")}`;
  }

  #x(at) {
    const { from, to } = this.#shares;
    return ((at - from) / (to - from)) * this.#px;
  }

  #at(clientX) {
    const { from, to } = this.#shares;
    return from + ((clientX - this.chart.getBoundingClientRect().left) / this.#px) * (to - from);
  }

  /** Dragging the window moves it, an edge of it changes its length, and elsewhere a new one is drawn. */
  #grab(event) {
    if (this.#shares === null || event.button !== 0) return;
    event.preventDefault();
    const box = this.chart.getBoundingClientRect();
    const x = event.clientX - box.left;
    const left = Number(this.window.getAttribute("x"));
    const right = left + Number(this.window.getAttribute("width"));
    const begun = this.#at(event.clientX);
    const [from, to] = [left, right].map((edge) => this.#at(edge + box.left));
    const isInside = x > left + GRIP_PX && x < right - GRIP_PX;
    const isAtEdge = !isInside && Math.min(Math.abs(x - left), Math.abs(x - right)) <= GRIP_PX;
    const fixed = isAtEdge ? (Math.abs(x - left) < Math.abs(x - right) ? to : from) : begun;
    const move = (moved) => {
      const at = this.#at(moved.clientX);
      if (isInside) this.on.show(from + at - begun, to + at - begun);
      else if (Math.abs(at - fixed) > SHORTEST_S / 4) this.on.show(Math.min(at, fixed), Math.max(at, fixed));
    };
    const end = () => {
      this.chart.removeEventListener("pointermove", move);
      this.on.released();
    };
    this.chart.setPointerCapture(event.pointerId);
    this.chart.addEventListener("pointermove", move);
    for (const ending of ["pointerup", "pointercancel"]) this.chart.addEventListener(ending, end, { once: true });
  }
}
