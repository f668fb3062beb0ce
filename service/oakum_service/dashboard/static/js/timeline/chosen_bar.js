// The bar that the reader has come to by keys: a frame around it, which also is what screen readers are told of it.

import { h } from "../dom.js";

export class ChosenBar {
  #scroller;
  #number = 0;
  #frame = null;

  /** The node of its row, and a time in it; null where no bar is chosen. */
  place = null;

  constructor(scroller) {
    this.#scroller = scroller;
  }

  choose(node, at) {
    this.leave();
    this.place = { node, at };
    // A new element each time: readers are told of an element once.
    this.#number += 1;
    const id = `chosen-bar-${this.#number}`;
    this.#frame = h("div", { id, class: "chosen-bar", role: "button" });
    this.#scroller.append(this.#frame);
    this.#scroller.setAttribute("aria-activedescendant", id);
  }

  leave() {
    this.#frame?.remove();
    this.#frame = null;
    this.place = null;
    this.#scroller.removeAttribute("aria-activedescendant");
  }

  /** Puts the frame around `box`, in pixels of the rows, and says what is there; a box of null is out of view. */
  frame(box, words) {
    if (this.#frame === null) return;
    if (words && this.#frame.getAttribute("aria-label") !== words) this.#frame.setAttribute("aria-label", words);
    this.#frame.classList.toggle("out-of-view", box === null);
    if (box === null) return;
    for (const side of ["left", "top", "width", "height"]) this.#frame.style[side] = `${box[side].toFixed(1)}px`;
  }

  /** Where the frame is on the page. */
  get onPage() {
    return this.#frame?.getBoundingClientRect() ?? null;
  }

  /** Scrolls rows and page as little as shows it. */
  show() {
    this.#frame?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}
