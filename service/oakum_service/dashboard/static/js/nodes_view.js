// All nodes: what each is used for, since when, and how long its hole is expected to last.

import { link } from "./controls.js";
import { h } from "./dom.js";
import { count, duration, prose } from "./format.js";
import { Listing } from "./listing.js";
import { NodeList } from "./node_list.js";
import { address } from "./router.js";
import { serviceNow } from "./time.js";

export const NO_NODE = "The scheduler has shown no node yet. If it has some, the service's log says why they cannot be read.";
const COLUMNS = [
  { key: "name", title: "Node", kind: "", of: ({ name }) => name },
  { key: "state", title: "State", kind: "", of: stateOf },
  { key: "for", title: "Idle or busy for", kind: "number", of: ({ age }) => age, shown: ({ age }) => duration(Math.round(age)) },
  { key: "used", title: "Used by", kind: "", of: usedBy, shown: userOf },
  { key: "left", title: "Expected to stay idle", kind: "number", of: ({ left }) => left, shown: ({ left }) => (left === null ? "–" : `${duration(Math.round(left))} more`) },
];

const isHole = ({ state }) => state === "hole";
const FILTER = {
  key: "state",
  label: "State",
  choices: [
    ["", "all", () => true],
    ["foreground", "foreground job", ({ state }) => state === "foreground"],
    ["lent", "lent (warming, training, …)", (node) => isHole(node) && node.trainer !== null],
    ["unused", "unused", (node) => isHole(node) && node.trainer === null],
    ["avoided", "avoided after failures", ({ avoided_until: until }) => until !== null],
    ["unavailable", "unavailable", ({ state }) => state === "unavailable"],
  ],
};

export class NodesView {
  title = "Nodes";

  constructor({ api, parts, query }) {
    this.api = api;
    this.known = new NodeList();
    this.list = new Listing({
      name: "Nodes",
      columns: COLUMNS,
      idOf: ({ name }) => name,
      sort: "name",
      filter: FILTER,
      empty: NO_NODE,
      unit: (number) => (number === 1 ? "1 node" : `${count(number)} nodes`),
      searchHint: "node, job or trainer",
      parts,
      query,
    });
    this.element = h("section", { class: "view" }, h("div", { class: "view-head" }, h("h2", { tabindex: -1 }, "Nodes")), this.list.element);
  }

  visit(query) {
    this.list.visit(query);
  }

  async refresh() {
    await this.known.refresh(this.api);
    // The last change may be long ago, so the present time is used where it is later.
    const now = Math.max(this.known.takenAt, serviceNow());
    const { nodes } = this.known;
    for (const node of nodes) {
      node.age = Math.max(0, now - node.since);
      node.avoidedFor = Math.max(0, (node.avoided_until ?? now) - now);
      node.left = node.hole_ends_at === null ? null : Math.max(0, node.hole_ends_at - now);
    }
    this.list.show(nodes);
  }
}

/** A node without a foreground job is called unused only if no fragment is on it. */
export function stateOf({ state, trainer, fragment_phase: phase }) {
  if (state === "foreground") return "foreground job";
  if (state !== "hole") return state;
  return trainer === null ? "unused" : (phase ?? "lent");
}

/** The trainer or job that has the node, or why nothing is launched there; null for a node that anybody may have. */
export function usedBy({ trainer, foreground_job: job, avoided_until: until, avoided_because: why, avoidedFor }) {
  if (trainer ?? job) return trainer ?? `job ${job}`;
  return until === null ? null : `avoided for ${duration(Math.round(avoidedFor))}: ${prose(why)}`;
}

function userOf(node) {
  const { trainer } = node;
  if (trainer === null) return usedBy(node);
  return { key: trainer, make: () => link(trainer, address(["trainers", trainer])) };
}
