// Which view an address shows, and the links that lead there.

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

// In order of the navigation's links; a view without a link is reached from another one. `needs` is what whoever is
// signed in has to have for the link to be shown.
const VIEWS = [
  { path: "trainers", View: TrainersView, link: "Trainers" },
  { path: /^trainers\/[^/]+$/, View: TrainerView },
  { path: "compare", View: CompareView, link: "Compare" },
  { path: "plans", View: PlansView, link: "Plans" },
  { path: /^plans\/\d+$/, View: PlanView },
  { path: "nodes", View: NodesView, link: "Nodes" },
  { path: "users", View: UsersView, link: "Users" },
  { path: "delays", View: DelaysView, link: "Delays" },
  { path: "tokens", View: TokensView, link: "Tokens" },
  { path: "audit", View: AuditView, link: "Audit" },
  { path: "submit", View: SubmitView, link: "New trainer", needs: "may_submit" },
];

/** The navigation's links for whoever is signed in: the overview, which is always there, then those of the views. */
export function viewLinks(me) {
  const shown = VIEWS.filter(({ link, needs }) => link && (needs === undefined || me[needs]));
  return [{ path: "", link: "Overview" }, ...shown].map(({ path, link }) => h("a", { href: `#/${path}`, "data-view": path }, link));
}

/** A new view for the place; null for the overview. */
export function viewAt(place, context) {
  if (place.parts.length === 0) return null;
  const asked = place.parts.join("/");
  const found = VIEWS.find(({ path }) => (path instanceof RegExp ? path.test(asked) : path === asked));
  const View = found?.View ?? NoView;
  return new View({ ...context, ...place });
}

class NoView {
  title = "No such view";

  constructor({ parts }) {
    this.element = h("section", {}, h("h2", { tabindex: -1 }, "No such view"), h("p", {}, `Nothing is at “${parts.join("/")}”. The links above lead on.`));
  }

  async refresh() {}
}
