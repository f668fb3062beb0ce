// The recogniser's answer: ten probabilities, and how active the units of the hidden layers are.

import { byId, h, setText } from "../../shared/js/dom.js";
import { percent } from "../../shared/js/format.js";
import { showPixels } from "./pixels.js";

const DIGITS = 10;
const ACTIVE = 0.5;

export class Recognition {
  constructor() {
    this.rows = Array.from({ length: DIGITS }, (_, digit) => {
      const [bar, value] = [h("span", { class: "bar" }), h("span", { class: "value" })];
      const track = h("span", { class: "track", "aria-hidden": "true" }, bar);
      return { bar, value, row: h("li", {}, h("span", {}, String(digit)), track, value) };
    });
    byId("probabilities").append(...this.rows.map(({ row }) => row));
    this.layers = [];
  }

  /** Shows what the network says to the image; either may be null. What cannot be a digit is not called one. */
  show(network, image, isDigit) {
    const answer = network && image && isDigit ? network.recognise(image) : null;
    const probabilities = answer ? [...answer.probabilities] : null;
    const digit = probabilities ? probabilities.indexOf(Math.max(...probabilities)) : null;
    setText(byId("digit"), digit === null ? "–" : String(digit));
    const none = network && image ? "not a digit: draw one over it" : "";
    setText(byId("certainty"), digit === null ? none : `with a probability of ${percent(probabilities[digit])}`);
    for (const [at, { bar, value, row }] of this.rows.entries()) {
      bar.style.width = percentage(probabilities?.[at] ?? 0);
      setText(value, probabilities ? percent(probabilities[at], 1) : "–");
      row.classList.toggle("most", at === digit);
    }
    if (network) this.#showLayers(network, answer);
    return digit;
  }

  #showLayers(network, answer) {
    const sizes = network.layers.map(({ bias }) => bias.values.length);
    if (sizes.join() !== this.layers.map(({ size }) => size).join()) this.#makeLayers(sizes);
    for (const [at, { canvas, caption, size }] of this.layers.entries()) {
      const active = answer ? answer.hidden[at].filter((activity) => activity > ACTIVE).length : 0;
      showPixels(canvas, answer?.hidden[at] ?? null, `Activity of hidden layer ${at + 1}: ${active} of ${size} units above one half`);
      setText(caption, `Hidden layer ${at + 1}: ${active} of ${size} units active`);
    }
  }

  #makeLayers(sizes) {
    this.layers = sizes.map((size) => {
      const width = widthOf(size);
      const canvas = h("canvas", { class: "pixels", width, height: Math.ceil(size / width), role: "img" });
      return { size, canvas, caption: h("figcaption") };
    });
    byId("layers").replaceChildren(...this.layers.map(({ canvas, caption }) => h("figure", {}, canvas, caption)));
  }
}

const percentage = (share) => `${(100 * share).toFixed(2)}%`;

/** The columns of a picture of so many units: about a square, with no cell left over. */
function widthOf(size) {
  let width = Math.ceil(Math.sqrt(size));
  while (size % width) width++;
  return width;
}
