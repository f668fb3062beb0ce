// What keeps plans from being carried out as they are made.

import { setText } from "./dom.js";
import { duration } from "./format.js";

const OLD_S = 60;

export function showMode(element, cluster) {
  const said = [held(cluster), dryRun(cluster), old(cluster)].filter(Boolean);
  element.hidden = said.length === 0;
  setText(element, said.join(" "));
}

function held(cluster) {
  if (!cluster.held) return null;
  const left = cluster.num_fragments === 1 ? "1 fragment is" : `${cluster.num_fragments} fragments are`;
  const state = cluster.num_fragments ? `${left} leaving` : "every node has been given back";
  return `Held by an administrator: ${state}; nothing is launched until “oakum resume”.`;
}

function dryRun(cluster) {
  return cluster.dry_run ? "Dry run: plans are made and shown, and not carried out." : null;
}

function old(cluster) {
  if (cluster.snapshot_age_s === null || cluster.snapshot_age_s < OLD_S) return null;
  return `The scheduler has not answered for ${duration(cluster.snapshot_age_s)}: trainers go on, nothing new is launched.`;
}
