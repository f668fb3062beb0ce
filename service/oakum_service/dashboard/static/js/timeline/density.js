// All nodes at once: a picture in which a row of pixels stands for several nodes.

import { h, setChildren } from "../dom.js";
import { count, percent } from "../format.js";
import { fitEnd } from "../geometry.js";
import { USES, USE_NAMES, occupancyOf, shareOf } from "./occupancy.js";

const HEIGHT_PX = 380;
const NARROWEST_PX = 2;
/** Of few nodes the picture is lower. */
const HIGHEST_ROW_PX = 24;
/** Least height that a node's name takes. */
const NAME_PX = 16;

export class Density {
  #shares = null;

  constructor(root) {
    this.canvas = h("canvas", { class: "density", role: "img", "aria-label": "All nodes, not loaded yet" });
    this.names = h("div", { class: "density-names", "aria-hidden": "true" });
    this.now = h("span", { class: "density-now" });
    this.element = h("div", { class: "density-rows", hidden: "" }, this.names, this.canvas, this.now);
    root.append(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#paint());
  }

  /** Whether there is nothing to be seen yet. */
  get isEmpty() {
    return this.#shares === null;
  }

  async load(api, { from, to }, now, numNodes, left, width) {
    const bands = Math.max(1, Math.min(numNodes, Math.floor(HEIGHT_PX / NARROWEST_PX)));
    const columns = Math.max(10, Math.floor(width / NARROWEST_PX));
    const shares = await occupancyOf(api, { from, to: Math.min(to, now) }, Math.min(columns, 800), bands);
    this.#shares = shares.bands.length ? shares : null;
    this.#paint();
  }

  /** Places the picture for a window, stretched until a better one has come. */
  place({ from, to }, now, left, width) {
    if (this.#shares === null) return;
    const scale = width / (to - from);
    const { style } = this.canvas;
    const height = Math.min(HEIGHT_PX, HIGHEST_ROW_PX * this.#shares.bands.length);
    this.now.hidden = now < from || now > to;
    this.now.style.left = `${left + (now - from) * scale}px`;
    this.#showNames(height, left);
    style.width = `${Math.max(1, (this.#shares.to - this.#shares.from) * scale)}px`;
    style.height = `${height}px`;
    style.marginLeft = `${left + (this.#shares.from - from) * scale}px`;
    style.clipPath = `inset(0 ${Math.max(0, (this.#shares.to - to) * scale)}px 0 ${Math.max(0, (from - this.#shares.from) * scale)}px)`;
  }

  /** The first node of every row, or of as many rows as have room for a name. */
  #showNames(height, left) {
    const { bands } = this.#shares;
    const row = height / bands.length;
    const every = Math.ceil(NAME_PX / row);
    const named = bands.map(({ first }, i) => ({ first, top: i * row })).filter((_, i) => i % every === 0);
    setChildren(this.names, [named, left], () =>
      named.map(({ first, top }) => {
        const name = h("span", {}, fitEnd(first, left - 12));
        name.style.top = `${top}px`;
        name.style.width = `${left - 10}px`;
        name.style.lineHeight = `${Math.max(row, NAME_PX)}px`;
        return name;
      }),
    );
  }

  /** What is told of a point of the page; the first node there. */
  about(clientX, clientY) {
    if (this.#shares === null) return { lines: [], node: null };
    const box = this.canvas.getBoundingClientRect();
    const band = this.#shares.bands[Math.floor(((clientY - box.top) / box.height) * this.#shares.bands.length)];
    const column = Math.floor(((clientX - box.left) / box.width) * this.#shares.columns);
    if (!band || column < 0 || column >= this.#shares.columns) return { lines: [], node: null };
    const title = band.num_nodes === 1 ? band.first : `${count(band.num_nodes)} nodes from ${band.first} on`;
    const shares = USES.map((use) => `${USE_NAMES[use]} ${percent(shareOf(band, use, column))}`);
    return { lines: [title, ...shares], node: band.first };
  }

  #paint() {
    if (this.#shares === null) return;
    const { columns, bands } = this.#shares;
    this.canvas.width = columns;
    this.canvas.height = bands.length;
    const context = this.canvas.getContext("2d");
    const picture = context.createImageData(columns, bands.length);
    const palette = USES.map((use) => rgb(this.canvas, `--${use}`));
    bands.forEach((band, y) => {
      for (let x = 0; x < columns; x++) {
        const shares = USES.map((use) => shareOf(band, use, x));
        const known = shares.reduce((sum, share) => sum + share, 0);
        const at = 4 * (y * columns + x);
        for (let part = 0; part < 3; part++) {
          picture.data[at + part] = shares.reduce((sum, share, use) => sum + share * palette[use][part], 0) / (known || 1);
        }
        picture.data[at + 3] = 255 * Math.min(1, known);
      }
    });
    context.putImageData(picture, 0, 0);
    this.canvas.setAttribute("aria-label", `All nodes in ${count(bands.length)} rows: foreground jobs, training and idle by shade`);
  }
}

/** A colour of the page's style, as red, green and blue. */
function rgb(element, name) {
  const hex = getComputedStyle(element).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}
