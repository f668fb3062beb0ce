// One plan: what it grants, and how that differs from the plan before.

import { link } from "./controls.js";
import { CARDS, h, setChildren, table } from "./dom.js";
import { count, moment, prose } from "./format.js";
import { changeOf } from "./plans_view.js";
import { address } from "./router.js";

const GONE = 404;
const COLUMNS = [
  ["Trainer", ""],
  ["Nodes before", "number"],
  ["Granted", "number"],
  ["Reason", "sentence"],
  ["Change", "sentence"],
];

export class PlanView {
  #shown = false;

  constructor({ api, parts }) {
    this.api = api;
    this.id = Number(parts[1]);
    this.title = `Plan ${this.id}`;
    this.body = h("div", {});
    this.element = h("section", { class: "view" }, h("div", { class: "view-head" }, h("h2", { tabindex: -1 }, this.title)), this.body);
  }

  /** A plan does not change: it is read once. */
  async refresh() {
    if (this.#shown) return;
    const plan = await this.api.get(`v1/plans/${this.id}`);
    const before = plan.parent === null ? null : await this.#kept(plan.parent);
    const names = await this.#names();
    setChildren(this.body, [plan.id], () => contentOf(plan, before, names));
    this.#shown = true;
  }

  /** The plan, or null where it is no longer kept. */
  async #kept(id) {
    try {
      return await this.api.get(`v1/plans/${id}`);
    } catch (error) {
      if (error.status === GONE) return null;
      throw error;
    }
  }

  /** Trainer's id -> its name. */
  async #names() {
    const { trainers } = await this.api.get("v1/trainers");
    return new Map(trainers.map(({ id, name }) => [id, name]));
  }
}

function contentOf(plan, before, names) {
  const held = new Map((before?.allocations ?? []).map(({ trainer, nodes }) => [trainer, nodes]));
  const granted = new Map(plan.allocations.map((each) => [each.trainer, each]));
  const all = [...new Set([...granted.keys(), ...held.keys()])];
  const rows = all.map((trainer) => {
    const had = held.get(trainer) ?? [];
    const { nodes = [], reason = "It is no longer planned." } = granted.get(trainer) ?? {};
    const name = names.get(trainer) ?? trainer;
    const change = changeOf(nodes.filter((node) => !had.includes(node)), had.filter((node) => !nodes.includes(node)));
    return [link(name, address(["trainers", trainer])), before ? count(had.length) : "–", count(nodes.length), prose(reason), change];
  });
  const facts = `Made ${moment(plan.made_at)} for the objective ${plan.objective}. ${prose(`${plan.summary} ${plan.look_ahead_reason}`)}`;
  const parent = plan.parent === null ? "It is the first plan, or the one before is no longer kept." : null;
  return [
    h("p", {}, facts),
    h("p", {}, ...(parent ? [parent] : ["Compared with ", link(`plan ${plan.parent}`, address(["plans", plan.parent])), before ? "." : ", which is no longer kept."])),
    h("div", { class: "panel part scroll-x", tabindex: 0, role: "region", "aria-label": "Allocations" }, rows.length ? table("Allocations", COLUMNS, rows, CARDS) : h("p", { class: "empty" }, "It grants no nodes.")),
  ];
}
