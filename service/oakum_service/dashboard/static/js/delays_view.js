// How long foreground jobs waited for fragments to leave their nodes: the trend, and the jobs themselves.

import { h, setChildren, setText } from "./dom.js";
import { notLoaded } from "./faults.js";
import { count, duration, moment } from "./format.js";
import { Listing } from "./listing.js";
import { address, place } from "./router.js";

const REACHES = [["3600", "an hour"], ["86400", "a day"], ["604800", "7 days"]];
const ROWS = 1000;
const COLUMNS = [
  { key: "at", title: "Started", kind: "", of: ({ started_at: at }) => at, shown: ({ started_at: at }) => moment(at) },
  { key: "job", title: "Job", kind: "", of: ({ job }) => job },
  { key: "nodes", title: "Nodes", kind: "number", of: ({ num_nodes: nodes }) => nodes },
  { key: "delay", title: "Waited for us", kind: "number", of: ({ delay_s: delay }) => delay, shown: ({ delay_s: delay }) => duration(delay) },
];

export class DelaysView {
  title = "Foreground delays";

  constructor({ api, parts, query }) {
    this.api = api;
    this.reach = this.#known(query);
    this.list = new Listing({
      name: "Foreground jobs",
      columns: COLUMNS,
      idOf: ({ job, started_at: at }) => `${job} ${at}`,
      sort: "-delay",
      empty: "No foreground job has started in this time.",
      unit: (number) => (number === 1 ? "1 job" : `${count(number)} jobs`),
      searchHint: "job",
      parts,
      query,
    });
    this.choice = h("select", { id: "field-reach" }, ...REACHES.map(([seconds, text]) => h("option", { value: seconds }, text)));
    this.choice.value = this.reach;
    this.choice.addEventListener("change", () => {
      const asked = Object.fromEntries(place().query);
      location.hash = address(parts, { ...asked, within: this.choice.value === "86400" ? "" : this.choice.value });
    });
    this.worst = h("p", { id: "delay-sum", role: "status" });
    this.trend = h("div", { class: "scroll-x", tabindex: 0, role: "region", "aria-label": "Trend" });
    this.element = h(
      "section",
      { class: "view" },
      h("div", { class: "view-head" }, h("h2", { tabindex: -1 }, "Foreground delays"), h("div", { class: "field" }, h("label", { for: "field-reach" }, "Within"), this.choice)),
      h("p", {}, "The foreground jobs that started, and how long each waited for fragments to leave its nodes."),
      h("section", { class: "panel part" }, h("h3", {}, "Trend"), this.worst, this.trend),
      this.list.element,
    );
  }

  #known(query) {
    const asked = query.get("within");
    return REACHES.some(([seconds]) => seconds === asked) ? asked : "86400";
  }

  visit(query) {
    this.list.visit(query);
    const reach = this.#known(query);
    if (reach === this.reach) return;
    this.reach = reach;
    this.choice.value = reach;
    setText(this.worst, "Loading…");
    setChildren(this.trend, "", () => []);
    this.list.wait();
    this.#readNow(reach);
  }

  async #readNow(reach) {
    try {
      await this.refresh();
    } catch (error) {
      if (reach === this.reach) setText(this.worst, notLoaded(error.message));
    }
  }

  async refresh() {
    const reach = this.reach;
    const { starts, trend } = await this.api.get(`v1/foreground/starts?since_s=${reach}&order=longest&limit=${ROWS}`);
    if (reach !== this.reach) return;
    const jobs = trend.reduce((sum, period) => sum + period.starts, 0);
    const most = trend.reduce((worst, { max_s: max }) => Math.max(worst, max), 0);
    const some = jobs > starts.length ? `; the ${count(starts.length)} that waited longest are below` : "";
    setText(this.worst, jobs ? `${count(jobs)} ${jobs === 1 ? "job" : "jobs"} started; the longest wait was ${duration(most)}${some}.` : "No job has started in this time.");
    setChildren(this.trend, trend, () => (trend.length ? [trendOf(trend, most)] : []));
    this.list.show(starts);
  }
}

/** A row for each period; of several, each with a bar as long as its longest delay. */
function trendOf(trend, most) {
  const hasBars = trend.length > 1;
  const share = (seconds) => `${Math.max(1, (100 * (seconds ?? 0)) / (most || 1)).toFixed(1)}%`;
  return h(
    "table",
    { class: "trend" },
    h("caption", { class: "for-readers" }, "Delays by period"),
    h("thead", {}, h("tr", {}, ...["Period from", "Jobs", "Median wait", "p99", "Longest"].map((title, i) => h("th", { scope: "col", class: i ? "number" : "" }, title)), hasBars ? h("th", { scope: "col", class: "wide" }, "Longest, as a bar") : null)),
    h(
      "tbody",
      {},
      ...trend.toReversed().map((period) => {
        const bar = h("span", { class: "delay-bar" });
        bar.style.width = share(period.max_s);
        const cells = [count(period.starts), duration(period.p50_s), duration(period.p99_s), duration(period.max_s)];
        return h("tr", {}, h("th", { scope: "row" }, moment(period.from_at)), ...cells.map((cell) => h("td", { class: "number" }, cell)), hasBars ? h("td", { class: "wide", "aria-hidden": "true" }, bar) : null);
      }),
    ),
  );
}
