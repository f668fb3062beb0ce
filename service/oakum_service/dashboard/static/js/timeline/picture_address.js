// The time and the rows of the picture as the overview's address has them: a link shows what the reader sees.

import { address, place } from "../router.js";
import { ORDERS, SHOWN } from "./node_rows.js";
import { TimeWindow } from "./time_window.js";

const FIRST_SPAN_S = 180;
export const ALL_SHOWN = [...SHOWN, ["dense", "All at once"]];

/** The window and the options that the address asks for; nonsense in it asks for the present, and all nodes. */
export function askedFor(now) {
  const { parts, query } = place();
  const asked = parts.length ? new URLSearchParams() : query;
  const numberOf = (name) => (Number.isFinite(Number(asked.get(name))) ? Number(asked.get(name)) : 0);
  const window = new TimeWindow(numberOf("span") || FIRST_SPAN_S);
  if (numberOf("from") && numberOf("to") > numberOf("from")) window.show(numberOf("from"), numberOf("to"), now);
  const options = { show: known(ALL_SHOWN, asked.get("show")) ?? "all", order: known(ORDERS, asked.get("order")) ?? "name", find: asked.get("find") ?? "" };
  return { window, options };
}

/** Puts them into the address, if that is the overview's. */
export function keepInAddress(window, { show, order, find }, now) {
  if (place().parts.length) return;
  const { from, to } = window.at(now);
  const time = window.follows ? { span: window.span === FIRST_SPAN_S ? "" : Math.round(window.span) } : { from: Math.round(from), to: Math.round(to) };
  const rows = { show: show === "all" ? "" : show, order: order === "name" ? "" : order, find };
  history.replaceState(null, "", address([], { ...time, ...rows }));
}

function known(choices, text) {
  return choices.some(([value]) => value === text) ? text : null;
}
