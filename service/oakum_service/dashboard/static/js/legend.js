// What the colours of the picture mean.

import { h, setChildren } from "./dom.js";
import { tone } from "./tones.js";

const MOST_TRAINERS = 12;

/**
 * What the `picture` shows of the nodes, also trainers that have no node now; `announced` has the kinds of what the
 * scheduler announces; the picture marks the trainer that the reader wants to tell from the others.
 */
export function showLegend(element, nodes, picture, announced) {
  const unknown = picture.hasUnknown;
  const present = [...new Set([...nodes.map((node) => node.trainer).filter(Boolean), ...picture.drawnTrainers])].sort();
  const { marked } = picture;
  const first = present.slice(0, MOST_TRAINERS);
  // The marked one stays, so that the mark can be taken off.
  const trainers = marked === null || first.includes(marked) ? first : [...first, marked];
  const unavailable = nodes.some((node) => node.state === "unavailable");
  const expected = nodes.some((node) => node.hole_ends_at !== null && node.hole_ends_at !== undefined);
  const [job, reservation] = ["job", "reservation"].map((kind) => announced.has(kind));
  setChildren(element, [trainers, present.length, unavailable, unknown, expected, job, reservation], () => [
    entry("foreground", "Foreground job"),
    entry("hole", "Idle"),
    unavailable ? entry("unavailable", "Unavailable") : "",
    unknown ? entry("unknown", "Not known") : "",
    expected ? entry("expected", "Foreground job expected") : "",
    job ? entry("announced", "Foreground job announced") : "",
    reservation ? entry("reserved", "Reservation") : "",
    ...trainers.map((name) => h("li", {}, choice(element, name, picture))),
    trainers.length ? h("li", { class: "hint" }, "outlined: warm-up") : "",
    present.length > MOST_TRAINERS ? h("li", { class: "hint" }, `and ${present.length - MOST_TRAINERS} more trainers`) : "",
  ]);
}

function choice(element, name, picture) {
  const made = h("button", { type: "button", class: "legend-trainer", "aria-pressed": String(picture.marked === name), title: `Show ${name} alone` }, h("span", { class: `key both ${tone(name)}` }), name);
  made.addEventListener("click", () => {
    picture.mark(picture.marked === name ? null : name);
    for (const other of element.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === made && picture.marked === name));
  });
  return made;
}

function entry(kind, text) {
  return h("li", {}, h("span", { class: `key ${kind}` }), text);
}
