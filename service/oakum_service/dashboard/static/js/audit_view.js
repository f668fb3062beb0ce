// The audit log: who did what, when, from where.

import { button } from "./controls.js";
import { focusInstead, h, setText } from "./dom.js";
import { told } from "./faults.js";
import { count, moment } from "./format.js";
import { Listing } from "./listing.js";

const PAGE = 200;
const COLUMNS = [
  { key: "id", title: "When", kind: "", of: ({ id }) => id, shown: ({ at }) => moment(at) },
  { key: "actor", title: "Who", kind: "", of: ({ actor, role }) => (role ? `${actor} (${role})` : actor) },
  { key: "action", title: "What", kind: "", of: ({ action, refused }) => (refused ? `refused: ${action}` : action) },
  { key: "subject", title: "Of what", kind: "", of: ({ subject }) => subject || null },
  { key: "owner", title: "Whose", kind: "", of: ({ owner }) => owner || null },
  { key: "address", title: "From", kind: "", of: ({ address }) => address || null },
  { key: "details", title: "Details", kind: "sentence", of: ({ details }) => Object.entries(details).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ") || null },
  { key: "request", title: "Request", kind: "", of: ({ request }) => request || null },
];

export class AuditView {
  title = "Audit log";
  #entries = new Map();
  #next = null;

  constructor({ api, parts, query }) {
    this.api = api;
    this.list = new Listing({
      name: "Audit log",
      columns: COLUMNS,
      idOf: ({ id }) => id,
      sort: "-id",
      filter: {
        key: "kind",
        label: "Show",
        choices: [
          ["", "all", () => true],
          ["refused", "refused", ({ refused }) => refused],
        ],
      },
      empty: "Nothing that concerns you has been done yet.",
      unit: (number) => (number === 1 ? "1 act" : `${count(number)} acts`),
      searchHint: "who, what or whose",
      parts,
      query,
    });
    this.wrong = h("p", { class: "wrong", role: "alert" });
    this.earlier = button("Read earlier ones", () => this.#readEarlier());
    this.element = h("section", { class: "view" }, h("div", { class: "view-head" }, h("h2", { tabindex: -1 }, "Audit log")), this.list.element, h("div", { class: "buttons" }, this.earlier), this.wrong);
  }

  visit(query) {
    this.list.visit(query);
  }

  async refresh() {
    const isFirst = this.#entries.size === 0;
    let before = "";
    // Page after page, until what is known already: no act between two refreshes is left out.
    for (;;) {
      const { entries, next } = await this.api.get(`v1/audit?limit=${PAGE}${before}`);
      const meets = entries.some(({ id }) => this.#entries.has(id));
      if (isFirst) this.#next = next;
      this.#keep(entries);
      if (isFirst || meets || next === null) return;
      before = `&before=${next}`;
    }
  }

  async #readEarlier() {
    this.earlier.disabled = true;
    try {
      const { entries, next } = await this.api.get(`v1/audit?limit=${PAGE}&before=${this.#next}`);
      this.#next = next;
      this.#keep(entries);
      setText(this.wrong, "");
    } catch (error) {
      setText(this.wrong, told(error));
    } finally {
      this.earlier.disabled = false;
      focusInstead(this.earlier, this.element);
    }
  }

  #keep(entries) {
    for (const entry of entries) this.#entries.set(entry.id, entry);
    this.earlier.hidden = this.#next === null;
    this.list.show([...this.#entries.values()]);
  }
}
