// How a trainer's time since its first start was spent: one bar for the whole, and a line for each part.

import { h, setChildren, setText } from "./dom.js";
import { count, duration, percent } from "./format.js";

const PARTS = [
  ["training", "Training"],
  ["grow", "Growing"],
  ["shrink", "Shrinking"],
  ["loss", "After losses"],
  ["cold_start", "Starting cold"],
  ["waiting", "Without nodes"],
];

export class Times {
  constructor() {
    this.whole = h("strong");
    this.since = h("span");
    this.bar = h("div", { class: "time-bar", role: "img" });
    this.parts = h("ul", { class: "time-parts" });
    this.element = h("figure", { class: "times" }, h("figcaption", {}, this.since, this.whole), this.bar, this.parts);
  }

  show(view) {
    const spent = view.time_spent;
    this.element.hidden = spent === null;
    if (spent === null) return;
    const seconds = PARTS.map(([part]) => spent[`${part}_s`]);
    const whole = seconds.reduce((sum, part) => sum + part, 0);
    const parts = PARTS.map(([part, name], i) => ({ part, name, seconds: seconds[i], share: whole ? seconds[i] / whole : 0 }));
    setText(this.since, spent.since_at === view.started_at ? "Time since its first start" : "Time since an update of the service");
    setText(this.whole, duration(whole));
    this.bar.setAttribute("aria-label", parts.map(({ name, share }) => `${name} ${percent(share, 1)}`).join(", "));
    setChildren(this.bar, parts.map(({ share }) => share.toFixed(4)), () => parts.filter(({ share }) => share > 0).map(segment));
    const lines = [...parts.filter((row) => row.seconds > 0 || row.part === "training").map((part) => describe(part, view)), warmUp(view)];
    setChildren(this.parts, lines, () => lines.map(line));
  }
}

function segment({ part, name, seconds, share }) {
  const element = h("span", { class: `use-${part}`, title: `${name}: ${duration(seconds)}, ${percent(share, 1)}` });
  element.style.flexGrow = share;
  return element;
}

function describe({ part, name, seconds, share }, view) {
  return { key: `use-${part}`, name, value: duration(seconds), note: [percent(share, 1), remark(part, view)].filter(Boolean).join(", ") };
}

function remark(part, { stalls, time_spent: spent }) {
  if (part === "training" && spent.redone_steps) {
    return `${duration(spent.redone_s)} of it for ${spent.redone_steps === 1 ? "1 step" : `${count(spent.redone_steps)} steps`} taken again`;
  }
  return stalls[part] ? each(stalls[part]) : "";
}

function each(known) {
  return `median ${duration(known.median_s)}, last ${duration(known.last_s)}`;
}

/** Warm-up is no part of the trainer's own time: its other nodes train meanwhile. */
function warmUp({ start_up: startUp, time_spent: spent }) {
  return { key: null, name: "Warm-up", value: duration(spent.warm_up_node_s), note: `node-time before nodes joined${startUp ? `; ${each(startUp)}` : ""}` };
}

function line({ key, name, value, note }) {
  return h(
    "li",
    {},
    h("span", { class: `key ${key ?? "none"}` }),
    h("span", { class: "use-name" }, name),
    h("span", { class: "use-time" }, value),
    h("span", { class: "use-note" }, note),
  );
}
