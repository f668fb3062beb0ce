// Rows of a table under heads: those that have the same value of what the address asks to group by.

import { h, setText } from "./dom.js";

const ORDER = new Intl.Collator("en", { numeric: true });

export class RowGroups {
  #by = null;
  #sizes = new Map();

  /** `choices` are [key, text, value of a row] each; `onChoose` is called with the key to ask for, empty for none. */
  constructor(id, choices, onChoose) {
    this.choices = choices;
    this.select = h("select", { id: `field-${id}-group` }, h("option", { value: "" }, "nothing"), ...choices.map(([key, text]) => h("option", { value: key }, text)));
    this.select.addEventListener("change", () => onChoose(this.select.value));
    this.element = h("div", { class: "field" }, h("label", { for: this.select.id }, "Group by"), this.select);
  }

  /** Shows what the address asks for. */
  visit(query) {
    this.#by = this.choices.find(([key]) => key === query.get("group")) ?? null;
    this.select.value = this.#by?.[0] ?? "";
  }

  /** The rows, those of a group beside each other, in the order in which they are given; rows without a value come last. */
  ordered(rows) {
    this.#sizes = new Map();
    if (this.#by === null) return rows;
    const groups = new Map();
    for (const row of rows) {
      const name = this.nameOf(row);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(row);
    }
    const names = [...groups.keys()].sort((a, b) => (a === null) - (b === null) || ORDER.compare(a ?? "", b ?? ""));
    for (const name of names) this.#sizes.set(name, groups.get(name).length);
    return names.flatMap((name) => groups.get(name));
  }

  /** The group of a row: its value, null where it has none; undefined where rows are not grouped. */
  nameOf(row) {
    return this.#by === null ? undefined : this.#by[2](row) || null;
  }

  /** The line at the head of a group; `line` is the one that it had before, if there was one. */
  head(name, line, { width, unit }) {
    const head = line ?? h("tr", { class: "group" }, h("th", { scope: "colgroup", colspan: width }));
    setText(head.firstChild, `${name ?? `without ${this.#by[1]}`} · ${unit(this.#sizes.get(name))}`);
    return head;
  }
}
