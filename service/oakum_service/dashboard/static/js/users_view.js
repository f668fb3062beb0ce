// Users: what each has now, may have, and had of the cluster.

import { h } from "./dom.js";
import { count, percent } from "./format.js";
import { Listing } from "./listing.js";

const MONTHS = 24;
const LEDGER_EVERY_MS = 60_000;
const NOBODY = "(no user)";
const hours = (number) => (number === null ? "–" : number.toFixed(number < 10 ? 2 : 0));
const within = (used, limit) => (limit === null ? used : `${used} of ${count(limit)}`);
const COLUMNS = [
  { key: "user", title: "User", kind: "", of: ({ user }) => user },
  { key: "trainers", title: "Live trainers", kind: "number", of: ({ trainers }) => trainers, shown: ({ trainers, limits }) => within(count(trainers), limits.trainers) },
  { key: "nodes", title: "Nodes now", kind: "number", of: ({ nodes }) => nodes, shown: ({ nodes, limits }) => within(count(nodes), limits.nodes) },
  { key: "share", title: "Share of nodes now", kind: "number", of: ({ share }) => share, shown: ({ share }) => percent(share) },
  { key: "week", title: "Node-hours this week", kind: "number", of: ({ week }) => week, shown: ({ week, limits }) => within(hours(week), limits.node_hours) },
  { key: "month", title: "Node-hours this month", kind: "number", of: ({ month }) => month, shown: ({ month }) => hours(month) },
  { key: "all", title: "Node-hours, two years", kind: "number", of: ({ all }) => all, shown: ({ all }) => hours(all) },
  { key: "trained", title: "Trained", kind: "number", of: ({ trained }) => trained, shown: ({ trained }) => percent(trained) },
  { key: "delay", title: "Delay caused, s", kind: "number", of: ({ delay }) => delay, shown: ({ delay }) => delay.toFixed(1) },
];

export class UsersView {
  title = "Users";

  constructor({ api, parts, query }) {
    this.api = api;
    this.list = new Listing({
      name: "Users",
      columns: COLUMNS,
      idOf: ({ user }) => user,
      sort: "user",
      empty: "No user has had a trainer or a quota yet.",
      unit: (number) => (number === 1 ? "1 user" : `${count(number)} users`),
      searchHint: "name",
      parts,
      query,
    });
    const told = "Node-hours are those lent to the user’s trainers. “Trained” is the part of them in which the trainers trained; it and the delay caused are of the last two years. Quotas are set by “oakum quota set”.";
    this.element = h("section", { class: "view" }, h("div", { class: "view-head" }, h("h2", { tabindex: -1 }, "Users")), h("p", {}, told), this.list.element);
  }

  visit(query) {
    this.list.visit(query);
  }

  async #readLedger() {
    if (this.ledger && performance.now() - this.readAt < LEDGER_EVERY_MS) return this.ledger;
    this.ledger = await this.api.get(`v1/ledger?months=${MONTHS}`);
    this.readAt = performance.now();
    return this.ledger;
  }

  async refresh(_, asked) {
    const [cluster, { quotas }, ledger] = await Promise.all([asked, this.api.get("v1/quotas"), this.#readLedger()]);
    const rows = new Map();
    const rowOf = (user) => {
      if (!rows.has(user)) rows.set(user, { user, trainers: 0, nodes: 0, week: 0, month: 0, all: 0, good: 0, delay: 0, limits: { trainers: null, nodes: null, node_hours: null } });
      return rows.get(user);
    };
    for (const { user, limits, used } of quotas) Object.assign(rowOf(user), { limits, trainers: used.trainers, nodes: used.nodes, week: used.node_hours });
    for (const entry of ledger.entries) {
      const row = rowOf(entry.user || NOBODY);
      row.all += entry.lent_node_h;
      row.good += entry.trained_node_h;
      row.delay += entry.foreground_delay_s;
      if (entry.month === ledger.to_month) row.month += entry.lent_node_h;
    }
    for (const row of rows.values()) {
      row.share = cluster.num_fragments ? Math.min(1, row.nodes / cluster.num_fragments) : null;
      row.trained = row.all ? row.good / row.all : null;
    }
    this.list.show([...rows.values()]);
  }
}
