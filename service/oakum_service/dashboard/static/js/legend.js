// What the colours of the picture mean.

import { h, setChildren } from "./dom.js";
import { tone } from "./tones.js";

export function showLegend(element, timeline, nodes) {
  const trainers = [...new Set(timeline.fragments.map((fragment) => fragment.trainer))];
  const unavailable = nodes.some((node) => node.state === "unavailable");
  setChildren(element, [trainers, unavailable], () => [
    entry("foreground", "Foreground job"),
    entry("hole", "Idle"),
    unavailable ? entry("unavailable", "Unavailable") : "",
    ...trainers.map((name) => entry(`both ${tone(name)}`, name)),
    trainers.length ? h("li", { class: "hint" }, "lighter: warm-up") : "",
  ]);
}

function entry(kind, text) {
  return h("li", {}, h("span", { class: `key ${kind}` }), text);
}
