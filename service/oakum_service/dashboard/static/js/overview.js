// The first view: the cluster in figures, nodes over time, a card for each trainer, the events.

import { retryButtons } from "./actions.js";
import { byId, setText } from "./dom.js";
import { lately, prose } from "./format.js";
import { showLegend } from "./legend.js";
import { showNodes } from "./nodes.js";
import { showSummary } from "./summary.js";
import { serviceNow } from "./time.js";
import { NodeList } from "./node_list.js";
import { TimelinePanel } from "./timeline/panel.js";
import { assignTones } from "./tones.js";
import { ALL_TRAINERS, TrainerList } from "./trainer_list.js";
import { Trainers } from "./trainers.js";

const PLAN_EVERY_MS = 6000;
const PLAN = "v1/plans?limit=1";
/** What the numbers wait for, beside the cluster. */
export const NEEDED = [ALL_TRAINERS, PLAN];

export class Overview {
  /** `askAgain` refreshes the page. */
  constructor(askAgain) {
    this.element = byId("overview");
    this.nodes = new NodeList();
    this.list = new TrainerList();
    this.planAt = -Infinity;
    this.timeline = new TimelinePanel(askAgain);
    this.trainers = new Trainers(byId("trainers"), byId("ended"));
  }

  /** `me`: who reads; `done` is called after each thing that the reader does. */
  async refresh(api, asked, me, done) {
    const [cluster, trainers] = await Promise.all([asked, this.list.refresh(api), this.#refreshPlan(api)]);
    assignTones(trainers);
    showSummary(byId("summary"), cluster, trainers, me.role === "admin");
    this.trainers.show(trainers, (view) => retryButtons(view, me, api, done));
  }

  /** The nodes, their picture and the cards' charts, for which the numbers do not wait: they are many times the size of the page. */
  async refreshPictures(api) {
    try {
      await this.#refreshNodes(api);
      await this.timeline.refresh(api, this.nodes);
    } finally {
      this.#showLegend();
      await this.trainers.showSeries(api); // Meanwhile the browser has told which of the new cards are in view.
    }
  }

  async #refreshNodes(api) {
    try {
      await this.nodes.refresh(api);
    } catch (error) {
      this.timeline.fail(error.message);
      throw error;
    }
    this.showNodes();
    this.#showLegend();
  }

  /** The nodes as a table, if that is open. */
  showNodes() {
    showNodes(byId("nodes"), this.nodes);
  }

  #showLegend() {
    const { picture, store } = this.timeline;
    showLegend(byId("legend"), this.nodes.nodes, picture, store.announcedKinds);
  }

  /** Another plan than the one that is shown has been made: the next refresh asks for it. */
  expectPlan() {
    this.planAt = -Infinity;
  }

  async #refreshPlan(api) {
    if (performance.now() - this.planAt < PLAN_EVERY_MS) return;
    this.planAt = performance.now();
    showPlan((await api.get(PLAN)).plans[0]);
  }

  /** Stops the clock at the time of which the shown state is, and tells `why`. */
  freeze(why, at) {
    this.timeline.freeze(why, at);
  }
}

function showPlan(plan) {
  const text = plan
    ? `Plan ${plan.id} of ${lately(plan.made_at, serviceNow())}. ${prose(plan.summary)}`
    : "No plan yet: the first is made when a trainer waits and a node is idle.";
  setText(byId("plan"), text);
}
