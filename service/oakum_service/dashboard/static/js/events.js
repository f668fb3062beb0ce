// What happened, newest first.

import { button } from "./controls.js";
import { h } from "./dom.js";
import { notLoaded } from "./faults.js";
import { lately, prose } from "./format.js";
import { serviceNow } from "./time.js";

const KEPT = 200;
/** Kinds whose words are not those of their code. */
const WORDS = { "node.hole": "Node idle", "node.foreground": "Node taken", "trainer.unpaused": "Pause ended", "generation.formed": "Nodes changed", "fragment.left": "Fragment ended" };
const MOODS = {
  good: ["running", "finished", "resumed", "answers"],
  warn: ["waiting", "paused", "held", "cancelling", "cancelled", "warning", "avoided", "unavailable", "stopping"],
  bad: ["failed", "diverged", "crashed", "lost", "silent"],
};

export class EventFeed {
  #newest = null;
  #isRead = false;
  /** Why there is none to show, as it is told; null where nothing is. */
  #fault = null;

  constructor(root) {
    this.root = root;
  }

  /** Id of the newest event shown. */
  get newest() {
    return this.#newest;
  }

  clear() {
    this.#newest = null;
    this.#isRead = false;
    this.#fault = null;
    this.root.replaceChildren(h("p", { class: "empty" }, "Loading…"));
  }

  /** Says why there is none to show, and offers to try again; what has been read stays. */
  fail(why, retry) {
    if (this.#isRead || this.#fault === why) return; // what is told already keeps its button and the focus
    this.#fault = why;
    this.root.replaceChildren(h("p", { class: "empty" }, notLoaded(why), " ", button("Try again", retry)));
  }

  /** Shows the newest events, in any order. */
  begin(events) {
    this.#isRead = true;
    this.#fault = null;
    this.root.replaceChildren(...(events.length ? [] : [h("p", { class: "empty" }, "Nothing has happened yet: submits, plans, launches and ends will be told here.")]));
    for (const event of events.toSorted((a, b) => a.id - b.id)) this.add(event);
  }

  add(event) {
    if (this.#newest !== null && event.id <= this.#newest) return;
    this.#newest = event.id;
    this.root.querySelector(".empty")?.remove();
    this.root.prepend(item(event));
    while (this.root.children.length > KEPT) this.root.lastElementChild.remove();
  }
}

export function item(event) {
  const moment = new Date(event.at * 1000);
  return h(
    "div",
    { class: `event mood-${moodOf(event.kind)}`, "data-event": event.id },
    h("time", { datetime: moment.toISOString(), title: moment.toUTCString() }, lately(event.at, serviceNow())),
    h("p", {}, h("span", { class: "kind", title: event.kind }, wordsOf(event.kind)), " ", h("strong", {}, event.subject), " ", prose(event.message)),
  );
}

/** What a kind such as "fragment.left" is called. */
function wordsOf(kind) {
  return WORDS[kind] ?? `${kind.charAt(0).toUpperCase()}${kind.slice(1).replaceAll(/[._]/g, " ")}`;
}

function moodOf(kind) {
  const what = kind.split(".").at(-1);
  return Object.keys(MOODS).find((mood) => MOODS[mood].includes(what)) ?? "none";
}
