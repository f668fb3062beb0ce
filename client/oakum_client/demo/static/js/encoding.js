// The code: a picture of its numbers with a slider under each, and the image that the decoder draws from them.

import { byId, h, setText } from "../../shared/js/dom.js";
import { showPixels } from "./pixels.js";

const HOW = {
  empty: "Draw a digit; then change its numbers with the sliders.",
  drawn: "The numbers follow the drawing. Change them with the sliders, and the decoder redraws.",
  changed: "Changed by hand: the decoder draws what these numbers stand for.",
};

export class Encoding {
  constructor() {
    this.units = [];
    this.network = null;
    this.image = null;
    /** The numbers as they were set by hand; null where they are the drawing's. */
    this.changed = null;
    byId("restore").addEventListener("click", () => this.show(this.network, this.image));
    byId("code").addEventListener("input", () => {
      this.changed = this.units.map(({ slider }) => Number(slider.value));
      this.#redraw();
    });
  }

  /** Shows another drawing's code; numbers set by hand are given up. */
  show(network, image) {
    this.changed = null;
    this.update(network, image);
  }

  /** Shows the same drawing by other weights; numbers set by hand stay. */
  update(network, image) {
    [this.network, this.image] = [network, image];
    const size = network?.encoder.at(-1).bias.values.length ?? 0;
    if (size !== this.units.length) this.#makeUnits(size);
    this.#redraw();
  }

  #redraw() {
    const drawn = this.network && this.image ? this.network.encode(this.image) : null;
    const code = this.changed ?? drawn;
    const redrawn = this.network && code ? this.network.decode(code) : null;
    for (const [at, { slider, swatch }] of this.units.entries()) {
      const value = code?.[at] ?? 0;
      slider.disabled = code === null;
      if (this.changed === null) slider.value = value;
      slider.setAttribute("aria-valuetext", value.toFixed(2));
      swatch.style.setProperty("--value", value.toFixed(3));
      swatch.title = value.toFixed(3);
    }
    showPixels(byId("redrawn"), redrawn, redrawn ? "The digit as the decoder draws it" : "Nothing to redraw yet");
    setText(byId("error"), drawn && !this.changed ? `Squared error per pixel: ${error(redrawn, this.image).toFixed(4)}` : "");
    setText(byId("how"), HOW[this.changed ? "changed" : code ? "drawn" : "empty"]);
    byId("restore").disabled = !this.changed;
  }

  #makeUnits(size) {
    this.changed = null;
    this.units = Array.from({ length: size }, (_, at) => {
      const label = `Number ${at + 1} of ${size}`;
      const slider = h("input", { type: "range", min: 0, max: 1, step: "any", value: 0, "aria-label": label });
      return { slider, swatch: h("span", { class: "swatch" }) };
    });
    byId("code").replaceChildren(...this.units.map(({ slider, swatch }) => h("div", { class: "unit" }, swatch, slider)));
  }
}

function error(redrawn, image) {
  return redrawn.reduce((sum, value, at) => sum + (value - image[at]) ** 2, 0) / image.length;
}
