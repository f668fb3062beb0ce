// A trainer's log: the newest lines, live while it is open, searched as one types.

import { button } from "./controls.js";
import { h, setText } from "./dom.js";
import { notLoaded } from "./faults.js";

const TAIL = 200;
const LONGER = 5000;
const WRONG = /\b(error|exception|traceback|fatal|killed|warning|refused|lost)\b/i;

export class Log {
  #lines = [];
  #tail = TAIL;

  /** `read(tail)` gets the newest lines; `refresh` asks for them at once. */
  constructor(read, refresh) {
    this.read = read;
    this.search = h("input", { type: "search", id: "log-search", placeholder: "Search", "aria-label": "Search the log", autocomplete: "off" });
    this.wrong = h("input", { type: "checkbox", id: "log-wrong" });
    this.found = h("p", { class: "found", role: "status" }, "Loading…");
    this.text = h("pre", { class: "log", tabindex: 0, role: "log", "aria-label": "Log" });
    const longer = button(`Up to ${LONGER} lines`, () => {
      this.#tail = LONGER;
      longer.hidden = true;
      refresh();
    });
    const tools = h("div", { class: "log-tools" }, this.search, h("label", {}, this.wrong, " Only errors and warnings"), longer, this.found);
    this.element = h("details", { class: "panel part", id: "log" }, h("summary", {}, "Log"), tools, this.text);
    this.search.addEventListener("input", () => this.#show());
    this.wrong.addEventListener("change", () => this.#show());
    this.element.addEventListener("toggle", () => this.element.open && refresh());
  }

  /** Reads the lines anew if the log is open. */
  async refresh() {
    if (!this.element.open || this.element.hidden) return;
    try {
      this.#lines = (await this.read(this.#tail)).lines;
    } catch (error) {
      setText(this.found, notLoaded(error.message));
      throw error;
    }
    this.#show();
  }

  #show() {
    const wanted = this.search.value.toLowerCase();
    const shown = this.#lines.filter((line) => line.toLowerCase().includes(wanted) && (!this.wrong.checked || WRONG.test(line)));
    // Read to its end, the text stays at its end as it grows.
    const atEnd = this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 4;
    setText(this.text, shown.join("\n"));
    if (atEnd) this.text.scrollTop = this.text.scrollHeight;
    const all = this.#lines.length;
    setText(this.found, all === 0 ? "Nothing was written yet." : shown.length === all ? `The newest ${all} lines` : `${shown.length} of the newest ${all} lines`);
  }
}
