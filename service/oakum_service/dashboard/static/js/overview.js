// The first view: the cluster in figures, nodes over time, a card for each trainer, the events.

import { byId, setText } from "./dom.js";
import { clock, duration, percent } from "./format.js";
import { showLegend } from "./legend.js";
import { showNodes } from "./nodes.js";
import { showSummary } from "./summary.js";
import { NodeList } from "./node_list.js";
import { TimelinePanel } from "./timeline/panel.js";
import { assignTones } from "./tones.js";
import { TrainerList } from "./trainer_list.js";
import { Trainers } from "./trainers.js";

const PLAN_EVERY_MS = 6000;

export class Overview {
  constructor() {
    this.element = byId("overview");
    this.nodes = new NodeList();
    this.list = new TrainerList();
    this.planAt = -Infinity;
    this.timeline = new TimelinePanel();
    this.trainers = new Trainers(byId("trainers"), byId("ended"));
  }

  async refresh(api, cluster) {
    const [trainers] = await Promise.all([this.list.refresh(api), this.nodes.refresh(api), this.#refreshPlan(api)]);
    const { nodes, takenAt } = this.nodes;
    assignTones(trainers);
    showSummary(byId("summary"), cluster, trainers);
    showLegend(byId("legend"), nodes, (trainer) => this.timeline.picture.mark(trainer));
    await this.timeline.refresh(api, this.nodes);
    showNodes(byId("nodes"), { nodes, taken_at: takenAt });
    this.trainers.show(trainers);
    await this.trainers.showSeries(api);
  }

  async #refreshPlan(api) {
    if (performance.now() - this.planAt < PLAN_EVERY_MS) return;
    this.planAt = performance.now();
    showPlan((await api.get("v1/plans?limit=1")).plans[0]);
  }

  /** Stops the clock, when the shown state may be outdated. */
  freeze() {
    this.timeline.freeze();
  }
}

function showPlan(plan) {
  const quality = plan && (plan.optimal ? "optimal" : `within ${percent(plan.gap, 1)} of the bound`);
  const text = plan
    ? `Plan ${plan.id} of ${clock(plan.made_at)}: ${quality}, solved in ${duration(plan.solve_s)} by ${plan.solver}`
    : "No plan yet";
  setText(byId("plan"), text);
}
