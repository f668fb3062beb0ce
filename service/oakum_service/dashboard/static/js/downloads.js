// Files that a reader takes away of a trainer: its spec, its points, its log.

import { button } from "./controls.js";
import { h, setText } from "./dom.js";
import { told } from "./faults.js";

const MOST_POINTS = 2000;
const MOST_LINES = 5000;
const QUOTED = /[",\n]/;

/** Buttons that save a trainer's files; `path` is its address in the API. */
export function downloads(view, api, path) {
  const said = h("span", { role: "status" });
  const saving = (name, type, text) => async () => {
    setText(said, "");
    try {
      save(`${view.name}.${name}`, type, await text());
    } catch (error) {
      setText(said, `Not saved: ${told(error)}`);
    }
  };
  return h(
    "div",
    { class: "buttons" },
    button("Spec (JSON)", saving("spec.json", "application/json", () => `${JSON.stringify(view.spec, null, 2)}\n`)),
    button("Points (CSV)", saving("points.csv", "text/csv", async () => csvOf((await api.get(`${path}/series?from_at=0&limit=${MOST_POINTS}`)).points))),
    button("Log", saving("log", "text/plain", async () => `${(await api.get(`${path}/logs?tail=${MOST_LINES}`)).lines.join("\n")}\n`)),
    said,
  );
}

/** Rows, each an object, as CSV with a column for each key; nulls are empty. */
export function csvOf(rows) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  return [names, ...rows.map((row) => names.map((name) => row[name]))].map((row) => `${row.map(cell).join(",")}\n`).join("");
}

function cell(value) {
  const text = String(value ?? "");
  return QUOTED.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function save(name, type, content) {
  const href = URL.createObjectURL(new Blob([content], { type }));
  const way = h("a", { href, download: name });
  document.body.append(way);
  way.click();
  way.remove();
  URL.revokeObjectURL(href);
}
