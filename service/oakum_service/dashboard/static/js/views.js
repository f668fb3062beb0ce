// Which view an address shows.

import { AuditView } from "./audit_view.js";
import { CompareView } from "./compare_view.js";
import { DelaysView } from "./delays_view.js";
import { h } from "./dom.js";
import { NodesView } from "./nodes_view.js";
import { PlanView } from "./plan_view.js";
import { PlansView } from "./plans_view.js";
import { SubmitView } from "./submit_view.js";
import { TokensView } from "./tokens_view.js";
import { TrainerView } from "./trainer_view.js";
import { TrainersView } from "./trainers_view.js";
import { UsersView } from "./users_view.js";

const VIEWS = [
  [/^trainers\/[^/]+$/, TrainerView],
  [/^trainers$/, TrainersView],
  [/^nodes$/, NodesView],
  [/^users$/, UsersView],
  [/^delays$/, DelaysView],
  [/^tokens$/, TokensView],
  [/^audit$/, AuditView],
  [/^submit$/, SubmitView],
  [/^compare$/, CompareView],
  [/^plans$/, PlansView],
  [/^plans\/\d+$/, PlanView],
];

/** A new view for the place; null for the overview, which is always there. */
export function viewAt(place, context) {
  if (place.parts.length === 0) return null;
  const path = place.parts.join("/");
  const found = VIEWS.find(([pattern]) => pattern.test(path));
  const [, View] = found ?? [null, NoView];
  return new View({ ...context, ...place });
}

class NoView {
  title = "No such view";

  constructor({ parts }) {
    this.element = h("section", {}, h("h2", { tabindex: -1 }, "No such view"), h("p", {}, `Nothing is at “${parts.join("/")}”. The links above lead on.`));
  }

  async refresh() {}
}
