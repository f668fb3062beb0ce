// Which nodes the picture shows, in which order and groups. Pure: nodes in, rows out.

export const SHOWN = [
  ["all", "All nodes"],
  ["trainers", "With trainers"],
  ["unused", "Idle and unused"],
  ["foreground", "With foreground jobs"],
  ["unavailable", "Unavailable"],
];
export const ORDERS = [
  ["name", "By name"],
  ["state", "By state"],
  ["rack", "By rack"],
  ["type", "By node type"],
];

const STATES = ["training", "unused", "foreground", "unavailable"];
const TITLES = { training: "With trainers", unused: "Idle and unused", foreground: "With foreground jobs", unavailable: "Unavailable" };
const IS_SHOWN = {
  all: () => true,
  trainers: (node) => node.trainer !== null,
  unused: (node) => node.state === "hole" && node.trainer === null,
  foreground: (node) => node.state === "foreground",
  unavailable: (node) => node.state === "unavailable",
};

/**
 * Rows of one node each, `{ node }`, and before each group, if there are several, one `{ title, size }`. `found` has
 * the nodes on which the text of `find` was found; before that is known, it is looked for in what is there now.
 */
export function rowsOf(nodes, { show = "all", order = "name", find = "" } = {}, found = null) {
  const wanted = find.trim().toLowerCase();
  const isThere = (node) => [node.name, node.trainer, node.foreground_job].some((text) => text?.toLowerCase().includes(wanted));
  const matches = (node) => !wanted || (found?.has(node.name) ?? isThere(node));
  const shown = nodes.filter((node) => (IS_SHOWN[show] ?? IS_SHOWN.all)(node) && matches(node));
  if (order === "name") return shown.map((node) => ({ node: node.name }));
  const groups = new Map();
  for (const node of shown) {
    const title = groupOf(node, order);
    if (!groups.has(title)) groups.set(title, []);
    groups.get(title).push({ node: node.name });
  }
  const titles = [...groups.keys()].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b, "en", { numeric: true }));
  const rows = [];
  for (const title of titles) rows.push({ title, size: groups.get(title).length }, ...groups.get(title));
  return rows;
}

function groupOf(node, order) {
  if (order === "type") return node.node_type || "no type";
  if (order === "rack") return rackOf(node.name);
  return TITLES[stateOf(node)];
}

function stateOf(node) {
  if (node.trainer !== null) return "training";
  return node.state === "hole" ? "unused" : node.state;
}

function rank(title) {
  const place = STATES.findIndex((state) => TITLES[state] === title);
  return place < 0 ? STATES.length : place;
}

/** A node's name without its last number: r12n03 stands in r12. */
export function rackOf(name) {
  return name.replace(/[^0-9A-Za-z]*[A-Za-z]*\d+$/, "") || name.replace(/\d+$/, "") || name;
}
