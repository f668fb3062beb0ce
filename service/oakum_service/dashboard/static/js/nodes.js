// The nodes as a table: the same as the picture's right edge, for those who cannot see or point at it.

import { setChildren, table } from "./dom.js";
import { duration } from "./format.js";

const COLUMNS = [["Node", ""], ["State", ""], ["For", "number"], ["Used by", ""], ["Hole expected to last", "number"]];

export function showNodes(element, { nodes, taken_at }) {
  if (!element.closest("details").open) return;
  // `taken_at` is the last change; nothing changing does not make time stand still.
  const now = Math.max(taken_at, Date.now() / 1000);
  const rows = nodes.map((node) => [
    node.name,
    node.state === "hole" ? "idle" : node.state,
    duration(Math.round(now - node.since)),
    usedBy(node),
    node.hole_ends_at === null ? "–" : `${duration(Math.max(0, Math.round(node.hole_ends_at - now)))} more`,
  ]);
  setChildren(element, rows, () => [table("Nodes now", COLUMNS, rows)]);
}

function usedBy(node) {
  if (node.trainer) return node.fragment_phase ? `${node.trainer} (${node.fragment_phase})` : node.trainer;
  return node.foreground_job ? `job ${node.foreground_job}` : "–";
}
