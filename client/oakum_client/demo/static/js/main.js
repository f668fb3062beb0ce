// Assembles the page: the drawing, the two networks that look at it, and the training that makes them better.

import { byId, setText } from "../../shared/js/dom.js";
import { count, prose } from "../../shared/js/format.js";
import { Encoding } from "./encoding.js";
import { EXAMPLES } from "./examples.js";
import { Autoencoder, Recogniser } from "./networks.js";
import { Pad } from "./pad.js";
import { showPixels } from "./pixels.js";
import { maybeDigit, seen } from "./preprocess.js";
import { Recognition } from "./recognition.js";
import { hintOf, showTrainers, whyNone } from "./training.js";
import { readState, readWeights } from "./weights.js";

const EVERY_MS = 700;
const FIRST_EXAMPLE = 3;
const SPEAK_AFTER_MS = 600;

const MAKERS = {
  recogniser: (tensors) => new Recogniser(tensors),
  autoencoder: (tensors) => new Autoencoder(tensors),
  stack: (tensors) => new Autoencoder(tensors),
};
/** Role -> {network, step, tag}, as far as there are weights. */
const loaded = {};
const recognition = new Recognition();
const encoding = new Encoding();
let state = null;
let image = null;
let isDigit = false;
let example = FIRST_EXAMPLE;
let speaking = null;
let asked = false;

const pad = new Pad(byId("pad"), (strokes) => {
  setText(byId("pad-hint"), pad.isExample ? "an example: draw your own over it" : "with mouse, pen or finger");
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    image = seen(strokes);
    isDigit = image !== null && maybeDigit(strokes);
    encoding.changed = null;
    compute();
  });
});

/** The encoder's network: the stack's until the autoencoder has weights. */
const coder = () => loaded.autoencoder ?? loaded.stack ?? null;

function compute() {
  showPixels(byId("seen"), image, image ? "The drawing as 8 by 8 pixels" : "Nothing is drawn yet");
  const digit = recognition.show(loaded.recogniser?.network ?? null, image, isDigit);
  encoding.update(coder()?.network ?? null, image);
  clearTimeout(speaking);
  speaking = setTimeout(() => speak(digit), SPEAK_AFTER_MS);
}

/** Says the answer to screen readers, when the pen rests. */
function speak(digit) {
  setText(byId("spoken"), digit === null ? "" : `Recognised: ${digit}, ${byId("certainty").textContent}`);
}

function showWeights() {
  const { recogniser } = loaded;
  setText(byId("recognition-weights"), recogniser ? `by weights of step ${count(recogniser.step)}` : whyNone(state, "recogniser"));
  const from = loaded.autoencoder ? "" : " of the stack, before fine-tuning";
  setText(byId("encoding-weights"), coder() ? `by weights of step ${count(coder().step)}${from}` : whyNone(state, "autoencoder"));
}

/** Reads the weights that have changed; returns whether any have. */
async function readNewWeights() {
  const changed = Object.entries(state.networks).filter(([role, { tag }]) => loaded[role]?.tag !== tag);
  for (const [role, { tag }] of changed) {
    if (role === "stack" && state.networks.autoencoder) continue;
    const { step, tensors } = await readWeights(role);
    loaded[role] = { network: MAKERS[role](tensors), step, tag };
  }
  return changed.length > 0;
}

async function refresh() {
  try {
    state = await readState();
    showTrainers(byId("trainers"), state);
    if (await readNewWeights()) compute();
    showWeights();
    show(byId("banner"), state.fault && `The Oakum service is away: ${prose(state.fault)} The page goes on with the weights it has.`);
    show(byId("hint"), hintOf(state));
    showLiveness(state.fault ? "down" : "live", state.fault ? "Service away" : "Live");
  } catch (error) {
    const known = Object.keys(loaded).length ? " Drawing goes on with the weights read before." : "";
    const reason = error instanceof TypeError ? "nothing answers" : error.message;
    show(byId("banner"), `This page's server is away (${reason}): start “oakum demo digits” again. Trying again.${known}`);
    showLiveness("down", "Offline");
  }
}

function show(element, text) {
  element.hidden = !text;
  if (text) setText(element, text);
}

function showLiveness(kind, text) {
  byId("liveness").className = `liveness ${kind}`;
  setText(byId("liveness"), text);
}

async function follow() {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise((resolve) => {
      setTimeout(resolve, EVERY_MS);
    });
  }
}

byId("clear").addEventListener("click", () => pad.clear());
byId("example").addEventListener("click", () => {
  example = (example + 1) % EXAMPLES.length;
  pad.show(EXAMPLES[example]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", compute);
pad.show(EXAMPLES[example]);
follow();
