// What the caller may do to a trainer, each confirmed where it costs something.

import { Unusable, ask, button } from "./controls.js";
import { nodes } from "./format.js";

const ENDED = new Set(["finished", "failed", "diverged", "cancelled"]);
const RETRIED = new Set(["failed", "cancelled"]);

export function mayChange(view, me) {
  return me.role === "admin" || (me.role === "user" && view.user === me.name);
}

/** Buttons for what the caller may do to the trainer now; `done` is called after each. */
export function trainerButtons(view, me, api, done) {
  if (!mayChange(view, me)) return [];
  const path = `v1/trainers/${encodeURIComponent(view.id)}`;
  const carry = async (method, end, body, etag = null) => {
    await api.send(method, path + end, body, etag);
    await done();
  };
  const seen = () => {
    const etag = api.etagOf(path);
    etag.catch(() => {}); // told when the change is sent
    return etag;
  };
  if (ENDED.has(view.state)) return RETRIED.has(view.state) && me.may_submit ? [retry(view, carry)] : [];
  if (view.state === "cancelling") return [];
  return [
    view.status === "paused" ? unpause(view, carry) : pause(view, carry, seen),
    scale(view, me, carry, seen),
    cancel(view, carry),
  ];
}

/** `seen()` tells what is changed, as it is when the dialog opens: what others have changed since is not overwritten. */
function pause(view, carry, seen) {
  const costs = view.nodes.length ? ` It checkpoints and gives back ${nodes(view.nodes.length)}.` : "";
  return button("Pause", () => {
    const etag = seen();
    ask(
      {
        title: `Pause ${view.name}?`,
        text: `It gets no node until someone ends the pause.${costs}`,
        fields: [{ name: "reason", label: "Reason", maxlength: 500 }],
        action: "Pause",
      },
      async ({ reason = "" }) => carry("PUT", "/pause", { reason }, await etag),
    );
  });
}

function unpause(view, carry) {
  return button("End pause", () =>
    ask({ title: `End the pause of ${view.name}?`, text: "The planner grants it nodes again.", action: "End pause" }, () => carry("DELETE", "/pause")),
  );
}

function scale(view, me, carry, seen) {
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
  return button("Scale", () => {
    const etag = seen();
    ask(
      { title: `Scale ${view.name}`, text: "Other bounds take effect with the next plan, at a step boundary.", fields, action: "Change" },
      async (values) => {
        const changed = Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== before[name]));
        if (Object.keys(changed).length === 0) throw new Unusable("Nothing is different yet: change a value, or leave it.");
        if ("sizes" in changed) changed.sizes = sizesFrom(changed.sizes);
        await carry("PATCH", "", changed, await etag);
      },
    );
  });
}

/** The sizes that a text lists; a word, or what is no number, as it is, for the service to judge. */
function sizesFrom(text) {
  const parts = text.replace(/^\[|\]$/g, "").split(/[\s,]+/).filter(Boolean);
  return parts.every((part) => /^\d+$/.test(part)) ? parts.map(Number) : text;
}

function cancel(view, carry) {
  return button(
    "Cancel",
    () =>
      ask(
        {
          title: `Cancel ${view.name}?`,
          text: "It ends at its next step boundary and gives back its nodes. Its newest checkpoint is kept, and a retry goes on from there.",
          action: "Cancel the trainer",
          danger: true,
        },
        () => carry("POST", "/cancel"),
      ),
    { class: "button danger" },
  );
}

function retry(view, carry) {
  const from = view.checkpoint_step === null ? "from its beginning, as it has no checkpoint" : `from its checkpoint of step ${view.checkpoint_step}`;
  return button("Retry", () => ask({ title: `Retry ${view.name}?`, text: `It goes on ${from}.`, action: "Retry" }, () => carry("POST", "/retry")));
}

/** The button that holds the service, or ends a hold; for administrators. */
export function holdButton(cluster, api, done) {
  const carry = async (method, body) => {
    await api.send(method, "v1/hold", body);
    await done();
  };
  if (cluster.held) {
    return button("Resume", () =>
      ask({ title: "End the hold?", text: "Plans are carried out again, and fragments launched.", action: "Resume" }, () => carry("DELETE")),
    );
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
    { class: "button danger" },
  );
}
