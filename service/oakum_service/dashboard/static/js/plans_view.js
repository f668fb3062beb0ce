// Plans made so far, and the plan that would be made now if something were otherwise.

import { Unusable, button, input, link, told, valuesOf } from "./controls.js";
import { h, setChildren, setText, table } from "./dom.js";
import { clock, count, decimal, duration, nodes as inNodes, percent, prose } from "./format.js";
import { address } from "./router.js";

const SHOWN = 100;
const COLUMNS = [
  ["Plan", ""],
  ["Made", ""],
  ["Nodes granted", "number"],
  ["Objective", ""],
  ["Value", "number"],
  ["Quality", ""],
  ["Solved in", "number"],
  ["Solver", ""],
];
const SUPPOSED = [
  ["Trainer", ""],
  ["Now", "number"],
  ["Then", "number"],
  ["Change", "sentence"],
  ["Reason", "sentence"],
];

export class PlansView {
  title = "Plans";

  constructor({ api }) {
    this.api = api;
    this.list = h("div", { class: "scroll-x", tabindex: 0, role: "region", "aria-label": "Plans" });
    this.outcome = h("div", { id: "outcome", role: "status" });
    this.element = h(
      "section",
      { class: "view" },
      h("div", { class: "view-head" }, h("h2", { tabindex: -1 }, "Plans")),
      h("section", { class: "panel part" }, h("h3", {}, "What if"), h("p", {}, "The plan that would be made now. Nothing is changed by asking."), this.#form(), this.outcome),
      h("section", { class: "panel part" }, h("h3", {}, "Made so far"), this.list),
    );
  }

  async refresh() {
    const { plans } = await this.api.get(`v1/plans?limit=${SHOWN}`);
    setChildren(this.list, plans.map(({ id }) => id), () => [
      plans.length ? table("Plans, newest first", COLUMNS, plans.map(row)) : h("p", { class: "empty" }, "No plan yet: the first is made when a trainer waits and a node is idle."),
    ]);
  }

  #form() {
    const form = h(
      "form",
      { class: "what-if" },
      input({ name: "drain_count", label: "Nodes drained", type: "number", min: 0, max: 1000000, value: "" }),
      input({ name: "drain", label: "Which nodes", placeholder: "n1, n2" }),
      input({ name: "remove", label: "Without the trainer", placeholder: "its name" }),
      input({ name: "changed", label: "With another most", placeholder: "a trainer's name" }),
      input({ name: "max_nodes", label: "Its most nodes", type: "number", min: 1, value: "" }),
      input({ name: "added", label: "With a further trainer", rows: 4, placeholder: "its spec, YAML or JSON" }),
      input({ name: "objective", label: "Objective", placeholder: "as it is" }),
      h("button", { type: "submit", class: "button primary" }, "Preview"),
      button("Clear", () => {
        form.reset();
        this.outcome.replaceChildren();
      }),
    );
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      await this.#preview(valuesOf(form));
    });
    return form;
  }

  /** The request for a preview, of the form's values. */
  async #supposed({ remove, drain, changed, max_nodes: most, added, ...others }) {
    if ((changed === undefined) !== (most === undefined)) throw new Unusable("Give a trainer's name and its most nodes, or neither.");
    const { spec } = added === undefined ? {} : await this.api.send("POST", "v1/trainers/read", { text: added });
    return {
      ...others,
      ...(remove === undefined ? {} : { remove: listed(remove) }),
      ...(drain === undefined ? {} : { drain: listed(drain) }),
      ...(changed === undefined ? {} : { change: [{ trainer: changed, max_nodes: most }] }),
      ...(spec === undefined ? {} : { add: [spec] }),
    };
  }

  async #preview(values) {
    try {
      const view = await this.api.send("POST", "v1/plans/preview", await this.#supposed(values));
      this.outcome.replaceChildren(...outcomeOf(view));
    } catch (error) {
      const wrong = h("p", { class: "wrong" });
      setText(wrong, told(error));
      this.outcome.replaceChildren(wrong);
    }
  }
}

const listed = (text) => text.split(/[\s,]+/).filter(Boolean);

export function qualityOf({ optimal, gap }) {
  return optimal ? "optimal" : `within ${percent(gap, 1)} of the bound`;
}

function row(plan) {
  const granted = plan.allocations.reduce((sum, { nodes }) => sum + nodes.length, 0);
  return [link(`Plan ${plan.id}`, address(["plans", plan.id])), clock(plan.made_at), count(granted), plan.objective, decimal(plan.value), qualityOf(plan), duration(plan.solve_s), plan.solver];
}

function outcomeOf(view) {
  const facts = `${view.objective}: ${decimal(view.value)}, ${view.optimal ? "optimal" : `at most ${decimal(view.bound)}`}, by ${view.solver} in ${duration(view.solve_s)}; ${inNodes(view.num_idle)} to give.`;
  const held = view.held ? [h("p", { class: "wrong" }, "The service is held: no plan has an effect before the hold ends.")] : [];
  const rows = view.allocations.map((each) => [each.trainer, each.is_new ? "new" : count(each.nodes_now), count(each.nodes_then), changeOf(each.gained, each.lost), prose(each.reason)]);
  const content = rows.length ? h("div", { class: "scroll-x", tabindex: 0, role: "region", "aria-label": "Supposed plan" }, table("Supposed plan", SUPPOSED, rows)) : h("p", {}, "No trainer wants nodes.");
  return [h("p", {}, facts), ...held, content];
}

/** Nodes gained and lost, the first few of each by name. */
export function changeOf(gained, lost) {
  return [...signed("+", gained), ...signed("−", lost)].join(" ") || "–";
}

function signed(sign, names) {
  return names.length > 6 ? [`${sign}${count(names.length)} nodes`] : names.map((name) => `${sign}${name}`);
}
