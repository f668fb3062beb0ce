// All trainers as a table: to search, narrow and sort, and to pause or cancel several at once.

import { mayChange } from "./actions.js";
import { presentRate } from "./charts.js";
import { ask, button, link } from "./controls.js";
import { focusInstead, h, setText } from "./dom.js";
import { told } from "./faults.js";
import { count, decimals, duration, percent, prose, rate } from "./format.js";
import { Listing } from "./listing.js";
import { address } from "./router.js";
import { SavedViews } from "./saved_views.js";
import { seenTrainers } from "./seen_trainer.js";
import { chips, tagsOf } from "./tags.js";
import { serviceNow } from "./time.js";
import { TrainerList } from "./trainer_list.js";
import { ENDED, shareOf, timeLeft } from "./trainers.js";

const isLive = ({ state }) => !ENDED.has(state);
const number = (key, title, of, shown) => ({ key, title, kind: "number", of, shown: (row) => (of(row) === null ? "–" : shown(of(row))) });
const bounds = ({ spec }) => (spec.min_nodes === spec.max_nodes ? String(spec.max_nodes) : `${spec.min_nodes}–${spec.max_nodes}`);
const FILTER = {
  key: "state",
  label: "State",
  choices: [
    ["", "not ended", isLive],
    ["training", "running", ({ state }) => state === "running"],
    ["waiting", "waiting, starting or paused", (row) => isLive(row) && row.state !== "running"],
    ["wrong", "something is wrong", ({ condition, state }) => condition !== "" || state === "failed" || state === "diverged"],
    ["ended", "ended (finished, failed, …)", (row) => !isLive(row)],
    ["all", "all", () => true],
  ],
};

export class TrainersView {
  title = "Trainers";
  #known = new TrainerList();
  #rows = [];
  #chosen = new Set();

  constructor({ api, me, parts, query, refresh }) {
    Object.assign(this, { api, me, done: refresh });
    this.list = new Listing({
      name: "Trainers",
      columns: this.#columns(),
      idOf: ({ id }) => id,
      sort: "name",
      filter: FILTER,
      empty: "No trainers yet. Submit one with “oakum submit SPEC.yaml” or under “New trainer”.",
      unit: (size) => (size === 1 ? "1 trainer" : `${count(size)} trainers`),
      searchHint: "name, user, state or tag",
      groups: [
        ["user", "user", ({ user }) => user],
        ["state", "state", ({ status }) => status],
        ["tags", "tags", (row) => tagsOf(row).toSorted().join(", ")],
      ],
      views: new SavedViews({ parts, user: me.name }),
      parts,
      query,
    });
    this.said = h("p", { class: "found", role: "status" });
    this.pause = button("Pause…", () => this.#pauseChosen());
    this.cancel = button("Cancel…", () => this.#cancelChosen(), { class: "button danger" });
    this.acts = h("div", { class: "buttons" }, this.pause, this.cancel);
    this.acts.hidden = me.role === "viewer";
    this.element = h("section", { class: "view" }, h("div", { class: "view-head" }, h("h2", { tabindex: -1 }, "Trainers"), this.acts), this.said, this.list.element);
    this.list.element.addEventListener("change", ({ target }) => this.#choose(target));
    this.#showChosen();
  }

  visit(query) {
    this.list.visit(query);
  }

  async refresh() {
    this.#rows = await this.#known.refresh(this.api);
    const live = new Set(this.#rows.filter(isLive).map(({ id }) => id));
    for (const id of this.#chosen) if (!live.has(id)) this.#chosen.delete(id);
    this.list.show(this.#rows);
    this.#showChosen();
  }

  #columns() {
    const named = { key: "name", title: "Name", kind: "", of: ({ name }) => name, shown: ({ id, name }) => ({ key: [id, name], make: () => link(name, address(["trainers", id])) }) };
    const choice = { key: "choice", title: "Chosen", kind: "", of: ({ id }) => (this.#chosen.has(id) ? 0 : 1), shown: (row) => this.#box(row) };
    return [
      named,
      ...(this.me.role === "viewer" ? [] : [choice]),
      { key: "state", title: "State", kind: "", of: ({ status }) => status },
      { key: "user", title: "User", kind: "", of: ({ user }) => user },
      number("nodes", "Nodes", ({ nodes }) => nodes.length, count),
      { key: "of", title: "Of", kind: "number", of: ({ spec }) => spec.max_nodes, shown: bounds },
      number("done", "Done", shareOf, (share) => percent(share, 1)),
      number("rate", "Samples/s", presentRate, rate),
      number("left", "Time left", timeLeft, (seconds) => duration(Math.round(seconds))),
      number("age", "Age", ({ submitted_at: at }) => serviceNow() - at, (seconds) => duration(Math.round(Math.max(0, seconds)))),
      { key: "loss", title: "Loss", kind: "number", of: ({ loss }) => loss, write: decimals },
      { key: "tags", title: "Tags", kind: "", of: (row) => tagsOf(row).join(", ") || null, shown: (row) => (tagsOf(row).length ? { key: tagsOf(row), make: () => h("span", { class: "chips" }, ...chips(tagsOf(row))) } : "–") },
      { key: "wrong", title: "What is wrong", kind: "sentence", of: (row) => prose(ENDED.has(row.state) ? row.message : row.condition) || null },
    ];
  }

  #box(row) {
    const may = isLive(row) && mayChange(row, this.me);
    const chosen = this.#chosen.has(row.id);
    const box = () => h("input", { type: "checkbox", value: row.id, checked: chosen && "", "aria-label": `Choose ${row.name}` });
    return may ? { key: [row.id, chosen], make: box } : "";
  }

  #choose(target) {
    if (target.type !== "checkbox") return;
    if (target.checked) this.#chosen.add(target.value);
    else this.#chosen.delete(target.value);
    this.#showChosen();
  }

  #showChosen() {
    const size = this.#chosen.size;
    for (const act of [this.pause, this.cancel]) {
      act.disabled = size === 0;
      if (act.disabled && act === document.activeElement) focusInstead(act, this.list.element);
    }
    setText(this.pause, size ? `Pause ${count(size)}…` : "Pause…");
    setText(this.cancel, size ? `Cancel ${count(size)}…` : "Cancel…");
  }

  #pauseChosen() {
    const fields = [{ name: "reason", label: "Reason", maxlength: 500 }];
    const trainers = seenTrainers(this.api, this.#chosen);
    ask({ title: `Pause ${this.list.unit(this.#chosen.size)}?`, text: `They get no node until someone ends the pause: ${this.#names()}.`, fields, action: "Pause" }, ({ reason = "" }) =>
      this.#each(trainers, (trainer) => trainer.pause(reason)),
    );
  }

  #cancelChosen() {
    const trainers = seenTrainers(this.api, this.#chosen);
    ask({ title: `Cancel ${this.list.unit(this.#chosen.size)}?`, text: `They end at their next step boundaries, and their newest checkpoints are kept: ${this.#names()}.`, action: "Cancel them", danger: true }, () =>
      this.#each(trainers, (trainer) => trainer.cancel()),
    );
  }

  #names() {
    return this.#rows.filter(({ id }) => this.#chosen.has(id)).map(({ name }) => name).join(", ");
  }

  /** Does the same to each that is still chosen, and tells with whom that did not succeed, and why; these stay chosen. */
  async #each(trainers, act) {
    const refused = [];
    const all = trainers.filter(({ id }) => this.#chosen.has(id));
    for (const trainer of all) {
      try {
        await act(trainer);
        this.#chosen.delete(trainer.id);
      } catch (error) {
        const name = this.#rows.find(({ id }) => id === trainer.id)?.name ?? trainer.id;
        refused.push(`${name}: ${told(error)}`);
      }
    }
    setText(this.said, [`Done for ${all.length - refused.length} of ${all.length}.`, ...refused].join(" "));
    this.done();
  }
}
