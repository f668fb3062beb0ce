// What the caller may do to a trainer, each confirmed where it costs something.

import { ask, button } from "./controls.js";
import { Unusable } from "./faults.js";
import { nodes } from "./format.js";
import { SeenTrainer } from "./seen_trainer.js";
import { tagsOf } from "./tags.js";

const ENDED = new Set(["finished", "failed", "diverged", "cancelled"]);

export function mayChange(view, me) {
  return me.role === "admin" || (me.role === "user" && view.user === me.name);
}

/** Buttons for what the caller may do to the trainer now; `done` is called after each. */
export function trainerButtons(view, me, api, done) {
  if (!mayChange(view, me)) return [];
  const asking = asker(view, api, done);
  return [...orders(view, me, asking), annotate(view, asking)];
}

/** The button that lets a trainer that has ended go on; none where it cannot, or the caller may not. */
export function retryButtons(view, me, api, done) {
  return view.may_retry && me.may_submit && mayChange(view, me) ? [retry(view, asker(view, api, done))] : [];
}

/** Makes buttons whose dialog asks first; `act` is given the trainer as it is when the dialog opens. */
function asker(view, api, done) {
  return (text, dialog, act, attributes = {}) =>
    button(
      text,
      () => {
        const trainer = new SeenTrainer(api, view.id);
        ask(dialog, async (values) => {
          await act(trainer, values);
          await done();
        });
      },
      attributes,
    );
}

function orders(view, me, asking) {
  if (ENDED.has(view.state)) return view.may_retry && me.may_submit ? [retry(view, asking)] : [];
  if (view.state === "cancelling") return [];
  return [view.status === "paused" ? unpause(view, asking) : pause(view, asking), scale(view, me, asking), cancel(view, asking)];
}

function annotate(view, asking) {
  const before = { tags: tagsOf(view), notes: view.spec.notes ?? "" };
  const fields = [
    { name: "tags", label: "Tags", value: before.tags.join(", "), hint: "At most 16, of lower-case letters, digits and hyphens, such as baseline, sweep-3." },
    { name: "notes", label: "Notes", rows: 6, maxlength: 4000, value: before.notes },
  ];
  const dialog = { title: `Tags and notes of ${view.name}`, text: "They are for people: training goes on as it is.", fields, action: "Keep" };
  return asking("Tags and notes", dialog, (trainer, { tags = "", notes = "" }) => {
    const after = { tags: tags.split(/[\s,]+/).filter(Boolean), notes };
    const changed = Object.keys(after).filter((name) => String(after[name]) !== String(before[name]));
    if (changed.length === 0) throw new Unusable("Nothing is different yet: change a value, or leave it.");
    return trainer.change(Object.fromEntries(changed.map((name) => [name, after[name]])));
  });
}

function pause(view, asking) {
  const costs = view.nodes.length ? ` It checkpoints and gives back ${nodes(view.nodes.length)}.` : "";
  return asking(
    "Pause",
    {
      title: `Pause ${view.name}?`,
      text: `It gets no node until someone ends the pause.${costs}`,
      fields: [{ name: "reason", label: "Reason", maxlength: 500 }],
      action: "Pause",
    },
    (trainer, { reason = "" }) => trainer.pause(reason),
  );
}

function unpause(view, asking) {
  const dialog = { title: `End the pause of ${view.name}?`, text: "The planner grants it nodes again.", action: "End pause" };
  return asking("End pause", dialog, (trainer) => trainer.unpause());
}

function scale(view, me, asking) {
  const { min_nodes: least, max_nodes: most, weight, priority } = view.spec;
  const sizes = typeof view.spec.sizes === "string" ? view.spec.sizes : view.spec.sizes.join(", ");
  const fields = [
    { name: "min_nodes", label: "Fewest nodes", type: "number", min: 1, required: "", value: least },
    { name: "max_nodes", label: "Most nodes", type: "number", min: 1, required: "", value: most },
    {
      name: "sizes",
      label: "Numbers of nodes",
      required: "",
      value: sizes,
      hint: "The only ones it may have, such as 1, 2, 4, 8; powers_of_two, or any. Bounds that you leave as they are follow from a list.",
    },
    { name: "weight", label: "Weight", type: "number", step: "any", required: "", value: weight },
    {
      name: "priority",
      label: "Priority",
      type: "number",
      required: "",
      min: -100,
      max: me.role === "admin" ? 100 : Math.max(0, priority),
      value: priority,
      hint: me.role === "admin" ? "Trainers of a higher priority choose their nodes first." : "Only administrators give a priority above 0.",
    },
  ];
  const before = { min_nodes: least, max_nodes: most, sizes, weight, priority };
  const dialog = { title: `Scale ${view.name}`, text: "Other bounds take effect with the next plan, at a step boundary.", fields, action: "Change" };
  return asking("Scale", dialog, (trainer, values) => {
    const changed = Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== before[name]));
    if (Object.keys(changed).length === 0) throw new Unusable("Nothing is different yet: change a value, or leave it.", "min_nodes");
    if ("sizes" in changed) changed.sizes = sizesFrom(changed.sizes);
    return trainer.change(changed);
  });
}

/** The sizes that a text lists; a word, or what is no number, as it is, for the service to judge. */
function sizesFrom(text) {
  const parts = text.replace(/^\[|\]$/g, "").split(/[\s,]+/).filter(Boolean);
  return parts.every((part) => /^\d+$/.test(part)) ? parts.map(Number) : text;
}

function cancel(view, asking) {
  return asking(
    "Cancel",
    {
      title: `Cancel ${view.name}?`,
      text: "It ends at its next step boundary and gives back its nodes. Its newest checkpoint is kept, and a retry goes on from there.",
      action: "Cancel the trainer",
      danger: true,
    },
    (trainer) => trainer.cancel(),
    { class: "button danger" },
  );
}

function retry(view, asking) {
  const from = view.checkpoint_step === null ? "from its beginning, as it has no checkpoint" : `from its checkpoint of step ${view.checkpoint_step}`;
  return asking("Retry", { title: `Retry ${view.name}?`, text: `It goes on ${from}.`, action: "Retry" }, (trainer) => trainer.retry());
}

/** The button that holds the service, or ends a hold; for administrators. */
export function holdButton(cluster, api, done) {
  const carry = async (method, body) => {
    await api.send(method, "v1/hold", body);
    await done();
  };
  if (cluster.held) {
    const dialog = { title: "End the hold?", text: "Plans are carried out again, and fragments launched.", action: "Resume" };
    return button("Resume", () => ask(dialog, () => carry("DELETE")), { id: "hold" });
  }
  const now = cluster.num_fragments ? `${cluster.num_fragments === 1 ? "1 fragment checkpoints and leaves" : `${cluster.num_fragments} fragments checkpoint and leave`}. ` : "";
  return button(
    "Hold…",
    () =>
      ask(
        {
          title: "Hold the whole service?",
          text: `${now}Nothing is launched until an administrator ends the hold.`,
          fields: [{ name: "reason", label: "Reason, which every user sees", maxlength: 500, required: "" }],
          action: "Hold",
          danger: true,
        },
        ({ reason = "" }) => carry("PUT", { reason }),
      ),
    { id: "hold", class: "button danger" },
  );
}
