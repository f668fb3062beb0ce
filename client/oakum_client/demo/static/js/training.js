// How far the trainers are: a card for each, in the order in which they begin.

import { h, setChildren } from "../../shared/js/dom.js";
import { count, decimal, metric, nodes, prose } from "../../shared/js/format.js";

const TITLES = { stack: "Stack of Boltzmann machines", recogniser: "Recogniser", autoencoder: "Autoencoder" };
const TONES = { stack: "tone-7", recogniser: "tone-0", autoencoder: "tone-2" };
const METRICS = { accuracy: "accuracy", reconstruction_mse: "squared error" };

export function showTrainers(element, state) {
  const shown = state.trainers.map((trainer) => ({ ...trainer, checkpoint: state.networks[trainer.role]?.step ?? null }));
  setChildren(element, [shown, state.networks], () => (shown.length ? shown.map(card) : folders(state)));
}

function card(trainer) {
  const share = trainer.total_steps ? Math.min(trainer.step / trainer.total_steps, 1) : 0;
  const bar = h("div", { class: "bar" });
  bar.style.width = `${100 * share}%`;
  return h(
    "article",
    { class: `panel trainer ${TONES[trainer.role]}`, "data-role": trainer.role },
    h(
      "header",
      {},
      h("h3", {}, TITLES[trainer.role]),
      h("span", { class: `badge ${trainer.status}` }, trainer.status),
      h("span", { class: "size" }, trainer.ended ? "" : nodes(trainer.nodes)),
    ),
    h("p", { class: "name" }, trainer.name),
    h("div", { class: "progress" }, bar),
    h("p", { class: "done" }, facts(trainer).join(" · ")),
  );
}

function facts(trainer) {
  const total = trainer.total_steps ? ` of ${count(trainer.total_steps)}` : "";
  const found = [`step ${count(trainer.step)}${total}`];
  if (trainer.loss !== null) found.push(`loss ${decimal(trainer.loss, 3)}`);
  for (const [name, title] of Object.entries(METRICS)) {
    if (name in trainer.metrics) found.push(`${title} ${metric(name, trainer.metrics[name])}`);
  }
  return found;
}

function folders(state) {
  return Object.entries(state.networks).map(([role, { step }]) =>
    h(
      "article",
      { class: `panel trainer ${TONES[role]}`, "data-role": role },
      h("header", {}, h("h3", {}, TITLES[role])),
      h("p", { class: "done" }, `a checkpoint after step ${count(step)}, from a folder`),
    ),
  );
}

/** What the reader has to know or to do: null where all goes well. */
export function hintOf(state) {
  const hints = [...state.trainers.map(({ hint }) => hint), ...Object.values(state.faults)].filter(Boolean);
  return hints.length ? prose([...new Set(hints)].join(" ")) : null;
}

/** Why a role has no weights yet, in a sentence. */
export function whyNone(state, role) {
  if (state === null) return "";
  const own = state.trainers.find((trainer) => trainer.role === role);
  if (own) return `No weights yet: ${own.name} is ${own.status}. They come with its first checkpoint.`;
  const stack = state.trainers.find((trainer) => trainer.role === "stack");
  if (stack) return `No weights yet: the ${role} begins when ${stack.name} has finished.`;
  if (state.fault) return "No weights yet: the Oakum service is away.";
  return `No weights: start the demonstration with --${role} FOLDER, too.`;
}
