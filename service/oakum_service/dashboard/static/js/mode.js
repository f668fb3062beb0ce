// Notices that plans are not being carried out, or that the page is not up to date.

import { setText } from "./dom.js";
import { duration, prose } from "./format.js";

export function showMode(element, cluster) {
  const said = [fault(cluster), held(cluster), dryRun(cluster), silent(cluster)].filter(Boolean);
  element.hidden = said.length === 0;
  element.classList.toggle("fault", cluster.fault !== null);
  setText(element, said.join(" "));
}

/** Makes a sentence of a clause from the service, which lacks the first capital and the full stop. */
function fault(cluster) {
  if (cluster.fault === null) return null;
  return `${cluster.fault.charAt(0).toUpperCase()}${prose(cluster.fault.slice(1))}.`;
}

function held(cluster) {
  if (cluster.hold === null) return null;
  const left = cluster.num_fragments === 1 ? "1 fragment is" : `${cluster.num_fragments} fragments are`;
  const state = cluster.num_fragments ? `${left} leaving.` : "Every node has been given back.";
  return `${prose(cluster.hold.sentence)} ${state}`;
}

function dryRun(cluster) {
  return cluster.dry_run ? "Dry run: plans are made and shown, and not carried out." : null;
}

function silent({ silence }) {
  if (!silence) return null;
  return `The scheduler has not answered for ${duration(silence.for_s)}: trainers go on, nothing new is launched. ${prose(silence.tried)}.`;
}
