// The nodes' present states as a table, for readers who cannot see the picture or point at it.

import { link } from "./controls.js";
import { h, setChildren, table } from "./dom.js";
import { duration } from "./format.js";
import { NO_NODE, stateOf, usedBy } from "./nodes_view.js";
import { address } from "./router.js";
import { serviceNow } from "./time.js";

const COLUMNS = [["Node", ""], ["State", ""], ["Idle or busy for", "number"], ["Used by", ""], ["Expected to stay idle", "number"]];

export function showNodes(element, { nodes, takenAt }) {
  if (!element.closest("details").open) return;
  // `takenAt` is the time of the last change, so the present time is used where it is later.
  const now = Math.max(takenAt ?? 0, serviceNow());
  const rows = nodes.map((node) => [
    node.name,
    stateOf(node),
    duration(Math.round(now - node.since)),
    usedBy({ ...node, avoidedFor: Math.max(0, (node.avoided_until ?? now) - now) }) ?? "–",
    node.hole_ends_at === null ? "–" : `${duration(Math.max(0, Math.round(node.hole_ends_at - now)))} more`,
  ]);
  setChildren(element, [takenAt === null, rows], () => (rows.length ? [h("p", {}, link("Search and sort the nodes", address(["nodes"]))), table("Nodes now", COLUMNS, rows)] : [h("p", { class: "empty" }, takenAt === null ? "Loading…" : NO_NODE)]));
}
