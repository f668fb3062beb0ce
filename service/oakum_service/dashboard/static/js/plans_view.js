// Plans made so far, and the plan that would be made now if something were otherwise.

import { Refused } from "./api.js";
import { button, input, link, valuesOf } from "./controls.js";
import { CARDS, h, setChildren, table } from "./dom.js";
import { forgetDraft, keepDraft, restoreDraft } from "./drafts.js";
import { FieldFaults, Unusable, told } from "./faults.js";
import { count, decimals, duration, moment, prose } from "./format.js";
import { address } from "./router.js";

const SHOWN = 100;
const DRAFT = "what-if";
const TRAINERS = "known-trainers";
const OBJECTIVES = "known-objectives";
const COLUMNS = [
  ["Plan", ""],
  ["Made", ""],
  ["Nodes granted", "number"],
  ["Objective", ""],
  ["Value", "number"],
  ["Unit", ""],
  ["Looks ahead", "number"],
  ["Proven to be", "sentence"],
  ["Solved in", "number"],
  ["Solver", ""],
];
const SUPPOSED = [
  ["Trainer", ""],
  ["Nodes now", "number"],
  ["Then", "number"],
  ["Reason", "sentence"],
  ["Change", "sentence"],
];

export class PlansView {
  title = "Plans";
  #previews = 0;

  constructor({ api }) {
    this.api = api;
    this.list = h("div", { class: "scroll-x", tabindex: 0, role: "region", "aria-label": "Plans" });
    this.outcome = h("div", { id: "outcome", role: "status" });
    this.faults = new FieldFaults();
    this.trainers = h("datalist", { id: TRAINERS });
    this.objectives = h("datalist", { id: OBJECTIVES });
    this.element = h(
      "section",
      { class: "view" },
      h("div", { class: "view-head" }, h("h2", { tabindex: -1 }, "Plans")),
      h("section", { class: "panel part" }, h("h3", {}, "What if"), h("p", {}, "The plan that would be made now. Nothing is changed by asking."), this.#form(), this.trainers, this.objectives, this.outcome),
      h("section", { class: "panel part" }, h("h3", {}, "Made so far"), h("p", {}, "A plan's value is the sum over all trainers, each times its weight, of what the objective gives over the plan's look-ahead. ", `At most the newest ${SHOWN} are here.`), this.list),
    );
  }

  async refresh() {
    const { plans } = await this.api.get(`v1/plans?limit=${SHOWN}`);
    setChildren(this.list, plans.map(({ id }) => id), () => [
      plans.length ? table("Plans, newest first", COLUMNS, rowsOf(plans), CARDS) : h("p", { class: "empty" }, "No plan yet: the first is made when a trainer waits and a node is idle."),
    ]);
  }

  /** Gets the names that the form's fields suggest. */
  async #suggest() {
    const [{ trainers }, { objectives }] = await Promise.all([this.api.get("v1/trainers"), this.api.get("v1/objectives")]);
    const names = [[this.trainers, trainers.filter(({ ended_at: ended }) => ended === null)], [this.objectives, objectives]];
    for (const [list, known] of names) setChildren(list, known.map(({ name }) => name), () => known.map(({ name }) => h("option", { value: name })));
  }

  #form() {
    const { faults } = this;
    const form = h(
      "form",
      { class: "what-if", novalidate: "" },
      faults.add("drain_count", input({ name: "drain_count", label: "How many more nodes drained", type: "number", min: 0, max: 1000000, value: "" })),
      faults.add("drain", input({ name: "drain", label: "These nodes drained", placeholder: "n1, n2" })),
      faults.add("remove", input({ name: "remove", label: "Without the trainers", placeholder: "name1, name2", list: TRAINERS })),
      faults.add("changed", input({ name: "changed", label: "With another maximum for the trainer", placeholder: "its name", list: TRAINERS })),
      faults.add("change", input({ name: "max_nodes", label: "Its maximum, nodes", type: "number", min: 1, value: "" })),
      faults.add("add", input({ name: "added", label: "With a further trainer", rows: 4, placeholder: "its spec, YAML or JSON" })),
      faults.add("objective", input({ name: "objective", label: "Objective", placeholder: "as it is", list: OBJECTIVES })),
      h("button", { type: "submit", class: "button primary" }, "Preview"),
      button("Clear", () => {
        this.#previews++;
        form.reset();
        forgetDraft(DRAFT);
        faults.mark(new Map());
        this.outcome.replaceChildren();
      }),
    );
    restoreDraft(DRAFT, form);
    form.addEventListener("focusin", ({ relatedTarget }) => {
      if (!form.contains(relatedTarget)) this.#suggest().catch(() => {}); // without suggestions names are typed
    });
    form.addEventListener("input", ({ target }) => {
      faults.unmark(target);
      keepDraft(DRAFT, form);
    });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      await this.#preview(form);
    });
    return form;
  }

  /** The request for a preview, of the form's values. */
  async #supposed({ remove, drain, changed, max_nodes: most, added, ...others }) {
    if ((changed === undefined) !== (most === undefined)) {
      throw new Unusable("Give a trainer's name and its most nodes, or neither.", changed === undefined ? "changed" : "change");
    }
    const spec = added === undefined ? undefined : await this.#specOf(added);
    return {
      ...others,
      ...(remove === undefined ? {} : { remove: listed(remove) }),
      ...(drain === undefined ? {} : { drain: listed(drain) }),
      ...(changed === undefined ? {} : { change: [{ trainer: changed, max_nodes: most }] }),
      ...(spec === undefined ? {} : { add: [spec] }),
    };
  }

  async #specOf(text) {
    try {
      const { spec } = await this.api.send("POST", "v1/trainers/read", { text });
      return spec;
    } catch (error) {
      throw error instanceof Refused ? new Unusable(told(error), "add") : error;
    }
  }

  async #preview(form) {
    const preview = ++this.#previews;
    const wrong = this.faults.unusable();
    let shown = [];
    try {
      if (wrong.size === 0) {
        this.outcome.replaceChildren(h("p", {}, "Planning…"));
        shown = outcomeOf(await this.api.send("POST", "v1/plans/preview", await this.#supposed(valuesOf(form))));
        forgetDraft(DRAFT);
      }
    } catch (error) {
      shown = this.faults.sort(error, wrong).map((line) => h("p", { class: "wrong" }, prose(line)));
    }
    if (preview !== this.#previews) return;
    this.outcome.replaceChildren(...shown);
    this.faults.mark(wrong);
    this.faults.focus();
  }
}

const listed = (text) => text.split(/[\s,]+/).filter(Boolean);

function rowsOf(plans) {
  const values = decimals(plans.map(({ value }) => value));
  return plans.map((plan, i) => row(plan, values[i]));
}

function row(plan, value) {
  const granted = plan.allocations.reduce((sum, { nodes }) => sum + nodes.length, 0);
  return [link(`Plan ${plan.id}`, address(["plans", plan.id])), moment(plan.made_at), count(granted), plan.objective, value, plan.unit, plan.look_ahead_s > 0 ? duration(plan.look_ahead_s) : "–", prose(plan.quality), duration(plan.solve_s), plan.solver];
}

function outcomeOf(view) {
  const idle = view.num_idle === 1 ? "1 idle node" : `${count(view.num_idle)} idle nodes`;
  const facts = `Objective ${view.objective}. ${prose(view.summary)} ${idle} to plan with.`;
  const held = view.held ? [h("p", { class: "wrong" }, "The service is held: no plan has an effect before the hold ends.")] : [];
  const rows = view.allocations.map((each) => [each.trainer, each.is_new ? "new" : count(each.nodes_now), count(each.nodes_then), prose(each.reason), changeOf(each.gained, each.lost)]);
  const content = rows.length ? h("div", { class: "scroll-x", tabindex: 0, role: "region", "aria-label": "Supposed plan" }, table("Supposed plan", SUPPOSED, rows, CARDS)) : h("p", {}, "No trainer wants nodes.");
  return [h("p", {}, facts), ...held, content];
}

/** Nodes gained and lost, the first few of each by name. */
export function changeOf(gained, lost) {
  return [...signed("+", gained), ...signed("−", lost)].join(" ") || "–";
}

function signed(sign, names) {
  return names.length > 6 ? [`${sign}${count(names.length)} nodes`] : names.map((name) => `${sign}${name}`);
}
