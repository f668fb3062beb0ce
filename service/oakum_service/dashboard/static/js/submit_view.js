// A new trainer: a form made from the spec's schema, checked by the service while one types.

import { Refused } from "./api.js";
import { button, input } from "./controls.js";
import { focusInstead, h, setText } from "./dom.js";
import { forgetDraft, keepDraft, restoreDraft } from "./drafts.js";
import { FieldFaults, linesOf, placeOf } from "./faults.js";
import { count, duration, nodes, prose } from "./format.js";
import { address } from "./router.js";
import { kindOf, valueFrom, yamlOf } from "./spec_text.js";

const CHECK_AFTER_MS = 350;
const DRAFT = "submit";
/** Statuses of what is wrong in the text itself. */
const OF_THE_TEXT = new Set([400, 422]);
const FIRST = [
  ["name", "Name", "1 to 63 lower-case letters, digits and hyphens, with a letter or digit first and last; no other live trainer may have it."],
  ["entrypoint", "Entrypoint, or a script", "The function of your code that makes the task to train, as module:function: tasks.digits:task is task() in tasks/digits.py. Or give a script, which is among the further fields."],
  ["workdir", "Folder of the code", "On the service's machine and on all nodes."],
  ["arguments", "Arguments", 'For the function, such as {"width": 64}.'],
  ["global_batch", "Samples in a step", "Over all nodes; it stays the same when nodes come and go."],
  ["epochs", "Epochs", ""],
  ["min_nodes", "Fewest nodes", ""],
  ["max_nodes", "Most nodes", ""],
  ["sizes", "Numbers of nodes", 'The only ones that it can train on, such as 1, 2, 4, 8; powers_of_two, or any.'],
];
/** Fields with a title that few trainers need. */
const SELDOM = [
  ["slots_per_fragment", "Slots in a fragment", "Where nodes are given in parts: how many slots, such as GPUs, of one node are taken together, node for all of one, or auto for what suits the jobs here and the model. Numbers of nodes then count slots."],
  ["priority", "Priority", "Trainers of a higher priority choose first; above 0 for administrators."],
  ["weight", "Weight", "How much a node is worth here, beside others' 1; above 0."],
];

export class SubmitView {
  title = "New trainer";
  #waiting = null;
  #checks = 0;
  #fields = new Map();

  constructor({ api, me }) {
    this.api = api;
    this.faults = new FieldFaults();
    this.form = h("form", { class: "spec-form", id: "spec-form", novalidate: "" });
    this.verdict = h("div", { id: "verdict", role: "status" }, h("p", { class: "hint" }, "While you fill in the fields, this says whether the service would take the trainer, and what the next plan would give it."));
    this.yaml = h("pre", { id: "spec-yaml", tabindex: 0, role: "region", "aria-label": "The spec as YAML" });
    this.line = h("code", { id: "spec-line" });
    this.how = h("p", {}, "Save it as a file, then: ", this.line);
    this.text = h("textarea", { id: "spec-text", name: "spec-text", form: "spec-form", rows: 8, spellcheck: "false", "aria-label": "A spec, YAML or JSON", "aria-describedby": "wrong-spec-text" });
    this.wrongText = h("div", { class: "wrong", id: "wrong-spec-text", role: "alert", hidden: "" });
    this.send = h("button", { type: "submit", class: "button primary" }, "Submit");
    const body = me.may_submit
      ? [this.#pasting(), h("section", { class: "panel part" }, h("h3", {}, "Fields"), this.form), this.#outcome()]
      : [h("p", { class: "empty" }, "Your role may not submit trainers here. An administrator can give you a token that may, or set OAKUM_TRUST_USERS.")];
    this.element = h("section", { class: "view" }, h("div", { class: "view-head" }, h("h2", { tabindex: -1 }, "New trainer")), ...body);
    this.form.addEventListener("input", () => this.#type());
    this.text.addEventListener("input", () => {
      this.#showTextFaults([]);
      keepDraft(DRAFT, this.form);
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.made = me.may_submit ? null : Promise.resolve();
  }

  /** Makes the form once; what is typed stays through refreshes. */
  async refresh() {
    this.made ??= this.#make();
    try {
      await this.made;
    } catch (error) {
      this.made = null;
      throw error;
    }
  }

  async #make() {
    const { components } = await this.api.get("openapi.json");
    const { properties, required } = components.schemas.TrainerSpec;
    const known = new Set([...FIRST, ...SELDOM].map(([name]) => name));
    const unnamed = Object.keys(properties).filter((name) => !known.has(name)).map((name) => [name]);
    const fieldsOf = (fields) => fields.filter(([name]) => name in properties).map(([name, label, hint]) => this.#field(name, properties[name], required, label, hint));
    const [first, others] = [fieldsOf(FIRST), fieldsOf([...SELDOM, ...unnamed])];
    this.form.append(
      h("div", { class: "spec-fields" }, ...first),
      h("details", {}, h("summary", {}, `${count(others.length)} more fields`), h("div", { class: "spec-fields" }, ...others)),
      h("div", { class: "buttons" }, this.send, button("Clear", () => this.#clear())),
    );
    this.#show({});
    if (!restoreDraft(DRAFT, this.form)) return;
    this.text.closest("details").open = this.text.value !== "";
    this.#later();
  }

  #field(name, schema, required, label = name, hint = "") {
    const { kind, choices } = kindOf(schema);
    const usual = schema.default === undefined || schema.default === "" ? "" : kind === "parts" && typeof schema.default !== "string" ? JSON.stringify(schema.default) : String(schema.default);
    const made = input({ name, label: required.includes(name) ? `${label} (needed)` : label, hint, ...(choices ? { choices: ["", ...choices] } : { placeholder: usual, inputmode: kind === "number" ? "decimal" : null }) });
    this.#fields.set(name, { control: made.querySelector("input, select"), kind });
    return this.faults.add(name, made);
  }

  #pasting() {
    const use = button("Fill the fields from it", () => this.#use());
    return h(
      "details",
      { class: "panel part" },
      h("summary", {}, "Begin from a file: paste a spec, YAML or JSON"),
      this.text, this.wrongText, h("div", { class: "buttons" }, use),
    );
  }

  #outcome() {
    const said = h("span", { role: "status", class: "hint" });
    this.copy = button("Copy the spec", () => this.#copy(said));
    return h(
      "section",
      { class: "panel part" },
      h("h3", {}, "What would happen"),
      this.verdict,
      h("h3", {}, "The same from a terminal"),
      this.yaml, this.how, h("div", { class: "buttons" }, this.copy, said),
    );
  }

  async #copy(said) {
    try {
      await navigator.clipboard.writeText(this.yaml.textContent);
      setText(said, "Copied.");
    } catch {
      getSelection().selectAllChildren(this.yaml);
      setText(said, "The browser lets no page without TLS copy: the spec is marked, to be copied by hand.");
    }
  }

  /** Fills the fields from the text, and tells what is wrong in it at its lines. */
  async #use() {
    let found;
    try {
      const { spec, lines } = await this.api.send("POST", "v1/trainers/read", { text: this.text.value });
      this.isSent = true; // A file is meant as a whole: what it lacks is wrong.
      this.#fill(spec);
      found = (await this.#faultsOf(spec)).map((line) => ({ line, at: lineAt(placeOf(line), lines), isLeftOut: line.startsWith("unknown field") }));
    } catch (error) {
      const isOfText = OF_THE_TEXT.has(error.status);
      found = linesOf(error).map((line) => ({ line, at: isOfText ? Number(/\bline (\d+)/.exec(line)?.[1] ?? 1) : null }));
    }
    this.#showTextFaults(found);
    if (found.every(({ at }) => at === null)) return;
    this.#select(Math.min(...found.map(({ at }) => at ?? Infinity)));
  }

  /** What the service has against the spec, as it is written. */
  async #faultsOf(spec) {
    try {
      await this.api.send("POST", "v1/trainers/check", spec);
      return [];
    } catch (error) {
      if (error instanceof Refused) return linesOf(error);
      throw error;
    }
  }

  #showTextFaults(found) {
    this.wrongText.hidden = found.length === 0;
    this.wrongText.replaceChildren(
      ...found.map(({ line, at, isLeftOut }) =>
        h("p", {}, at === null ? null : button(`Line ${at}`, () => this.#select(at), { class: "place" }), at === null ? null : " ", isLeftOut ? `${prose(line).replace(/\w$/, "$&.")} It is left out of the fields.` : prose(line)),
      ),
    );
    if (found.some(({ at }) => at !== null)) this.text.setAttribute("aria-invalid", "true");
    else this.text.removeAttribute("aria-invalid");
  }

  /** Shows a line of the text, and puts the focus there. */
  #select(number) {
    const lines = this.text.value.split("\n");
    const begin = lines.slice(0, number - 1).reduce((sum, { length }) => sum + length + 1, 0);
    this.text.focus();
    this.text.setSelectionRange(begin, begin + (lines[number - 1]?.length ?? 0));
  }

  #fill(spec) {
    for (const [name, { control, kind }] of this.#fields) {
      const value = spec[name];
      control.value = value === undefined || value === null ? "" : kind === "parts" ? JSON.stringify(value) : String(value);
    }
    this.#type();
  }

  #clear() {
    this.isSent = false;
    this.text.value = "";
    this.#showTextFaults([]);
    this.#fill({});
    forgetDraft(DRAFT);
  }

  #type() {
    keepDraft(DRAFT, this.form);
    this.#later();
  }

  /** The fields that are filled in; the names of those that cannot be read, with what is wrong. */
  #read() {
    const spec = {};
    const wrong = new Map();
    for (const [name, { control, kind }] of this.#fields) {
      const text = control.value.trim();
      if (text === "") continue;
      try {
        spec[name] = valueFrom(text, kind);
        if (kind === "number" && Number.isNaN(spec[name])) wrong.set(name, "is not a number");
      } catch (error) {
        wrong.set(name, error.message);
      }
    }
    return { spec, wrong };
  }

  #later() {
    clearTimeout(this.#waiting);
    this.#show(this.#read().spec);
    this.#waiting = setTimeout(() => this.#check(), CHECK_AFTER_MS);
  }

  #show(spec) {
    const yaml = yamlOf(spec);
    setText(this.yaml, yaml || "Nothing is filled in yet.");
    this.copy.disabled = yaml === "";
    this.how.hidden = yaml === "";
    setText(this.line, `oakum submit ${spec.name ? `${String(spec.name).replaceAll(/[^\w.-]/g, "-")}.yaml` : "trainer.yaml"}`);
  }

  /** Asks the service whether it would take the spec, and what the next plan would be with it. */
  async #check() {
    const check = ++this.#checks;
    const { spec, wrong } = this.#read();
    let outcome = [];
    if (wrong.size === 0) {
      try {
        const found = await this.api.send("POST", "v1/trainers/dry-run", { spec });
        outcome = foreseen(found);
      } catch (error) {
        outcome = this.faults.sort(error, wrong).map(asWrong);
      }
    }
    if (check !== this.#checks) return;
    this.#mark(wrong);
    this.verdict.replaceChildren(...(wrong.size ? [asWrong(`To be changed: ${[...wrong.keys()].join(", ")}.`)] : []), ...outcome);
  }

  /** A field that nobody has touched is not yet wrong. */
  #mark(wrong) {
    this.faults.mark(new Map([...wrong].filter(([name]) => this.isSent || this.#fields.get(name).control.value !== "")));
  }

  async #submit() {
    clearTimeout(this.#waiting);
    this.isSent = true;
    const { spec, wrong } = this.#read();
    let rest = [];
    this.send.disabled = true;
    try {
      if (wrong.size === 0) {
        const made = await this.api.send("POST", "v1/trainers", spec);
        forgetDraft(DRAFT);
        location.hash = address(["trainers", made.id]);
        return;
      }
    } catch (error) {
      rest = this.faults.sort(error, wrong);
    } finally {
      this.send.disabled = false;
    }
    this.#checks++;
    this.#mark(wrong);
    this.verdict.replaceChildren(h("p", { class: "wrong", role: "alert" }, "It was not submitted."), ...rest.map(asWrong));
    if (!this.faults.focus()) focusInstead(this.send, this.form);
  }
}

const asWrong = (line) => h("p", { class: "wrong" }, prose(line));

/** The line on which a place of the spec stands, or the smallest part around it; null where it does not. */
function lineAt(place, lines) {
  const parts = place.split(".");
  while (parts.length && !Object.hasOwn(lines, parts.join("."))) parts.pop();
  return lines[parts.join(".")] ?? null;
}

function foreseen({ nodes: granted, num_idle: idle, reason, start_in_s: start, finish_in_s: finish, held, changed }) {
  const got = granted.length ? `It would get ${nodes(granted.length)} of ${count(idle)}` : `It would get none of ${nodes(idle)}`;
  const when = start === null ? "" : `, and train in about ${duration(start)}`;
  const end = finish === null ? "" : `; it would end in about ${duration(finish)}`;
  const others = changed.length ? [h("p", {}, `Others would change in size: ${changed.map(({ name }) => name).join(", ")}.`)] : [];
  const hold = held ? [h("p", { class: "wrong" }, "The service is held: nothing starts before the hold ends.")] : [];
  return [h("p", { class: "good" }, "This service would take it."), h("p", {}, `${got}${when}${end}: ${reason}.`), ...others, ...hold];
}
