// A long list as a table that can be searched, narrowed and sorted. What is asked of it stands in the address, so that
// a link reproduces it. A refresh changes only the cells that differ, so scrolling and selected text stay as they are.

import { ColumnChoice } from "./column_choice.js";
import { button, input } from "./controls.js";
import { focusInstead, h, setChildren, setText } from "./dom.js";
import { count } from "./format.js";
import { address, place } from "./router.js";
import { RowGroups } from "./row_groups.js";

const PAGE = 200;
const ORDER = new Intl.Collator("en", { numeric: true });

/**
 * `columns` have a key, a title, a kind (a class of the cells), `of(row)`, by which rows are sorted and, if it is a text, searched, and `shown(row)`,
 * if the cell shows something else: a text, or `{key, make}` for elements; or `write(values)`, which gives the texts of all
 * rows, where numbers of a column are written alike. `filter` has a key, a label and `choices`,
 * [value, text, test of a row] each. With `groups`, those of `RowGroups`, rows can be grouped and columns left out, and
 * with `views`, `SavedViews`, what is asked can be kept.
 */
export class Listing {
  #rows = [];
  #waits = true;
  #lines = new Map();
  /** Key of a column that is written as a whole -> row -> text. */
  #written = new Map();
  #drawn = PAGE;
  #typing = false;
  #searched = null;

  constructor({ name, columns, idOf, sort, filter = null, empty, unit, parts, query, searchHint = "", groups = [], views = null }) {
    Object.assign(this, { name, columns, idOf, sort, filter, empty, unit, parts, views });
    this.groups = new RowGroups(parts[0], groups, (group) => this.#ask({ group }));
    this.columnChoice = new ColumnChoice(columns, (keys) => this.#ask({ columns: keys }));
    for (const { element } of groups.length ? [] : [this.groups, this.columnChoice]) element.hidden = true;
    this.search = input({ name: `${parts[0]}-q`, label: "Search", type: "search", placeholder: searchHint });
    this.searchField = this.search.querySelector("input");
    this.choices = filter && this.#choiceField();
    this.tools = h("div", { class: "list-tools", role: "search" }, this.search, this.choices, this.groups.element, this.views?.element, this.columnChoice.element);
    this.body = h("tbody");
    this.heads = new Map(columns.map((column) => [column.key, this.#head(column)]));
    this.nothing = h("p", { class: "empty" });
    this.found = h("p", { class: "found", role: "status" });
    this.more = button("More", () => this.#drawMore());
    this.foot = h("div", { class: "list-foot" }, this.found, this.more);
    this.scroller = h(
      "div",
      { class: "scroll-x", tabindex: 0, role: "region", "aria-label": name },
      h("table", { class: "listing" }, h("caption", { class: "for-readers" }, name), h("thead", {}, h("tr", {}, ...this.heads.values())), this.body),
    );
    this.element = h("div", {}, this.tools, h("section", { class: "panel part" }, this.scroller, this.nothing, this.foot));
    this.searchField.addEventListener("input", () => this.#type());
    this.searchField.addEventListener("blur", () => (this.#typing = false));
    this.visit(query);
  }

  /** Shows the rows as the address asks. */
  show(rows) {
    this.#rows = rows;
    this.#written = new Map(this.columns.filter(({ write }) => write).map(({ key, of, write }) => [key, textsOf(rows, write(rows.map(of)))]));
    this.#waits = false;
    this.#searched = null;
    this.#draw();
  }

  /** Says that it loads: what it shows is of another question. */
  wait() {
    this.show([]);
    this.#waits = true;
    this.#draw();
  }

  /** What is asked has changed with the address. */
  visit(query) {
    const wanted = query.get("q") ?? "";
    if (this.searchField.value !== wanted) this.searchField.value = wanted;
    this.sorted = this.#known(query.get("sort")) ?? this.sort;
    if (this.filter) this.choices.querySelector("select").value = this.#choice(query.get(this.filter.key))[0];
    this.groups.visit(query);
    this.columnChoice.visit(query);
    this.views?.visit();
    this.#drawn = PAGE;
    this.#draw();
  }

  #known(sort) {
    return this.heads.has(sort?.replace(/^-/, "")) ? sort : null;
  }

  #choice(value) {
    return this.filter.choices.find(([each]) => each === value) ?? this.filter.choices[0];
  }

  #choiceField() {
    const { key, label, choices } = this.filter;
    const select = h("select", { id: `field-${this.parts[0]}-${key}` }, ...choices.map(([value, text]) => h("option", { value }, text)));
    select.addEventListener("change", () => this.#ask({ [key]: select.value }));
    return h("div", { class: "field" }, h("label", { for: select.id }, label), select);
  }

  #head({ key, title, kind }) {
    if (title === "") return h("th", { scope: "col", class: kind }, h("span", { class: "for-readers" }, "What one may do"));
    const sorter = h("button", { type: "button", class: "sorter" }, title);
    sorter.addEventListener("click", () => this.#ask({ sort: this.sorted === key ? `-${key}` : key }));
    return h("th", { scope: "col", class: kind }, sorter);
  }

  /** The first letter makes a step in the browser's history, the others change it: one step back undoes the search. */
  #type() {
    this.#ask({ q: this.searchField.value }, this.#typing);
    this.#typing = true;
  }

  #ask(changes, inPlace = false) {
    const query = new URLSearchParams(place().query);
    for (const [name, value] of Object.entries(changes)) query.set(name, value);
    if (query.get("sort") === this.sort) query.delete("sort");
    const where = address(this.parts, Object.fromEntries(query));
    if (inPlace) history.replaceState(null, "", where);
    else history.pushState(null, "", where);
    this.visit(query);
  }

  #drawMore() {
    this.#drawn += PAGE;
    this.#draw();
  }

  /** The rows that are asked for, in order. */
  #matching() {
    const words = this.searchField.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const test = this.filter ? this.#choice(this.choices.querySelector("select").value)[2] : null;
    this.#searched ??= this.#rows.map((row) => wordsOf(row, this.columns).join("\n").toLowerCase());
    const found = this.#rows.filter((row, i) => words.every((word) => this.#searched[i].includes(word)) && (test?.(row) ?? true));
    const down = this.sorted.startsWith("-");
    const { of } = this.columns.find(({ key }) => key === this.sorted.replace(/^-/, ""));
    const valued = found.map((row) => [of(row), row]);
    return this.groups.ordered(valued.sort(([a], [b]) => ordered(a, b, down)).map(([, row]) => row));
  }

  #draw() {
    for (const [key, head] of this.heads) {
      const direction = this.sorted === key ? "ascending" : this.sorted === `-${key}` ? "descending" : null;
      if (direction) head.setAttribute("aria-sort", direction);
      else head.removeAttribute("aria-sort");
      head.hidden = this.columnChoice.hides(key);
    }
    const found = this.#matching();
    const shown = found.slice(0, this.#drawn);
    this.#drawLines(shown);
    this.scroller.hidden = shown.length === 0;
    this.nothing.hidden = shown.length > 0;
    setText(this.nothing, this.#whyNothing());
    const all = this.unit(this.#rows.length);
    setText(this.found, found.length === this.#rows.length ? all : `${count(found.length)} of ${all}`);
    this.foot.hidden = this.#rows.length === 0;
    this.more.hidden = found.length <= shown.length;
    setText(this.more, `More (${count(found.length - shown.length)})`);
  }

  #whyNothing() {
    if (this.#waits) return "Loading…";
    return this.#rows.length ? `Nothing here matches what is searched for, among ${this.unit(this.#rows.length)}.` : this.empty;
  }

  #drawLines(shown) {
    const wanted = new Set(shown.flatMap((row) => [this.idOf(row), headId(this.groups.nameOf(row))]));
    for (const [id, line] of this.#lines) {
      if (!wanted.has(id)) {
        const focused = line.querySelector(":focus");
        const next = line.nextElementSibling ?? line.previousElementSibling;
        line.remove();
        if (focused !== null) focusInstead(focused, next);
        this.#lines.delete(id);
      }
    }
    let next = this.body.firstChild;
    const put = (line) => {
      if (line === next) next = line.nextSibling;
      else this.body.insertBefore(line, next);
    };
    let group;
    for (const row of shown) {
      const name = this.groups.nameOf(row);
      if (name !== group) put(this.#headOf(name));
      group = name;
      put(this.#lineOf(row));
    }
  }

  #headOf(name) {
    const head = this.groups.head(name, this.#lines.get(headId(name)), { width: this.columns.length, unit: this.unit });
    this.#lines.set(headId(name), head);
    return head;
  }

  #lineOf(row) {
    const id = this.idOf(row);
    const line = this.#lines.get(id) ?? this.#newLine(id);
    this.columns.forEach((column, i) => {
      fill(line.children[i], this.#contentOf(row, column));
      line.children[i].hidden = this.columnChoice.hides(column.key);
    });
    return line;
  }

  #contentOf(row, { key, of, shown, write }) {
    if (write) return this.#written.get(key).get(row);
    return shown ? shown(row) : of(row);
  }

  #newLine(id) {
    const line = h("tr", { "data-id": id }, ...this.columns.map(({ kind, title }, i) => (i ? h("td", { class: kind, "data-title": title }) : h("th", { scope: "row", class: kind }))));
    this.#lines.set(id, line);
    return line;
  }
}

function textsOf(rows, texts) {
  return new Map(rows.map((row, i) => [row, texts[i]]));
}

/** The id of a group's head among the lines, which no row has; undefined where rows are not grouped. */
function headId(name) {
  return name === undefined ? undefined : `group: ${name ?? ""}`;
}

/** What a row is searched by: its texts. Numbers are left out, since nobody sees them as they are. */
function wordsOf(row, columns) {
  return columns.map(({ of }) => of(row)).filter((value) => typeof value === "string");
}

function fill(cell, content) {
  if (content !== null && typeof content === "object") {
    setChildren(cell, content.key, () => [content.make()]);
    return;
  }
  delete cell.dataset.made;
  setText(cell, String(content ?? "–"));
}

/** Compares two values; rows without one come last in both directions. */
function ordered(a, b, down) {
  if (a === null || b === null || a === undefined || b === undefined) return Number(a === null || a === undefined) - Number(b === null || b === undefined);
  const order = typeof a === "number" && typeof b === "number" ? a - b : ORDER.compare(a, b);
  return down ? -order : order;
}
