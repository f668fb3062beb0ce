// Which columns of a table are shown, as its address asks: all, or the first and those that are named.

import { h } from "./dom.js";

export class ColumnChoice {
  #shown = new Set();

  /** `onChoose` is called with the columns to ask for: their keys with commas between, empty for all. */
  constructor(columns, onChoose) {
    this.keys = columns.map(({ key }) => key);
    this.boxes = columns.slice(1).map(({ key, title }) => {
      const box = h("input", { type: "checkbox", value: key });
      return [box, h("label", {}, box, title)];
    });
    this.element = h("details", { class: "column-choice" }, h("summary", {}, "Columns"), h("div", { class: "choices", role: "group", "aria-label": "Columns shown" }, ...this.boxes.map(([, label]) => label)));
    this.element.addEventListener("change", () => onChoose(this.#chosen()));
  }

  /** Shows what the address asks for. */
  visit(query) {
    const asked = (query.get("columns") ?? "").split(",").filter((key) => this.keys.includes(key));
    this.#shown = new Set(asked.length ? [this.keys[0], ...asked] : this.keys);
    for (const [box] of this.boxes) box.checked = this.#shown.has(box.value);
  }

  hides(key) {
    return !this.#shown.has(key);
  }

  #chosen() {
    const chosen = this.boxes.filter(([box]) => box.checked).map(([box]) => box.value);
    return chosen.length === this.boxes.length ? "" : [this.keys[0], ...chosen].join(",");
  }
}
