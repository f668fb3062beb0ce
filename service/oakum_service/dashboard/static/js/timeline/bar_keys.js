// Moves between bars by keys: which one is chosen, what it is, and what opens it.

import { address } from "../router.js";
import { ChosenBar } from "./chosen_bar.js";
import { barsIn, middleOf, placeAt } from "./row_bars.js";

const LEAST_PX = 2;

export class BarKeys {
  /**
   * `view` has `window`, `now`, `rows`, `middle`, `bars(node)`, `about(node, at)`, `change(how)`,
   * `tell(lines, left, top)` and `select(about)`.
   */
  constructor(picture, view) {
    this.picture = picture;
    this.view = view;
    this.chosen = new ChosenBar(picture.scroller);
  }

  /** Chooses a bar some rows further down, or some bars later in its row; at first one of the top row in view. */
  step(rows, bars) {
    const nodes = this.view.rows.map(({ node }, i) => ({ node, i })).filter(({ node }) => node !== undefined);
    if (!nodes.length) return false;
    const { place } = this.chosen;
    const row = nodes.findIndex(({ node }) => node === place?.node);
    if (row < 0) {
      const top = this.picture.scroller.scrollTop / this.picture.row;
      this.#choose((nodes.find(({ i }) => i >= top) ?? nodes[0]).node, this.view.middle);
    } else if (rows) this.#choose(nodes[Math.min(Math.max(row + rows, 0), nodes.length - 1)].node, place.at);
    else this.#chooseBeside(place, bars);
    return true;
  }

  /** Opens the trainer of the chosen bar, or keeps what is told of it. Returns false where none is chosen. */
  open() {
    if (this.chosen.place === null) return false;
    const about = this.view.about(this.chosen.place.node, this.chosen.place.at);
    if (about.trainer) location.hash = address(["trainers", about.trainer]);
    else this.view.select(about);
    return true;
  }

  leave() {
    if (this.chosen.place === null) return false;
    this.chosen.leave();
    this.view.tell([], 0, 0);
    return true;
  }

  /** Keeps the frame around the chosen bar, as time goes on and more is known. */
  frame() {
    const { place } = this.chosen;
    if (place === null) return;
    const bars = this.#barsOf(place.node);
    const bar = bars[placeAt(bars, place.at)];
    const { lines } = this.view.about(place.node, place.at);
    this.chosen.frame(bar ? this.picture.boxOf(place.node, bar) : null, lines.filter(Boolean).join("; ") || place.node);
  }

  /** Chooses the bar before or after the chosen one; where none is known, the time where one may be. */
  #chooseBeside({ node, at }, step) {
    const bars = this.#barsOf(node);
    const bar = bars[placeAt(bars, at) + step];
    const { now, window } = this.view;
    this.#choose(node, bar ? middleOf(bar, window.at(now), now) : Math.min(at + (step * window.span) / 2, Math.max(now, at)));
  }

  #choose(node, at) {
    const { now, window } = this.view;
    const { from, to } = window.at(now);
    if (at < from || at > to) this.view.change(() => window.show(at - window.span / 2, at + window.span / 2, now));
    this.chosen.choose(node, at);
    this.frame();
    this.chosen.show();
    const { left, bottom } = this.chosen.onPage;
    this.view.tell(this.view.about(node, at).lines, left, bottom + 4);
  }

  #barsOf(node) {
    const known = this.view.bars(node);
    const { now, window } = this.view;
    return known === null ? [] : barsIn(known, LEAST_PX / this.picture.scale, now, window.at(now).to);
  }
}
