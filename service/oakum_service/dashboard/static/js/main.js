// Puts the page together: token, refreshes, events, and what is said when the service cannot be reached.

import { Api, Unauthorised, Unreachable } from "./api.js";
import { byId, setText } from "./dom.js";
import { EventFeed } from "./events.js";
import { clock, duration, percent } from "./format.js";
import { showLegend } from "./legend.js";
import { follow, Refresher } from "./live.js";
import { showNodes } from "./nodes.js";
import { showMode } from "./mode.js";
import { forgetToken, keepToken, takeToken } from "./session.js";
import { showSummary } from "./summary.js";
import { Timeline } from "./timeline.js";
import { assignTones } from "./tones.js";
import { Trainers } from "./trainers.js";

const timeline = new Timeline(byId("timeline"));
const trainers = new Trainers(byId("trainers"), byId("ended"));
const feed = new EventFeed(byId("events"));
let streaming = false;
let updatedAt = null;
let session = null;

function span() {
  return Number(document.querySelector("input[name=range]:checked").value);
}

async function refresh(api) {
  const seconds = span();
  const [cluster, listing, picture, nodes, plans] = await Promise.all(
    ["v1/cluster", "v1/trainers", `v1/timeline?since_s=${seconds}`, "v1/nodes", "v1/plans?limit=1"].map((path) => api.get(path)),
  );
  assignTones(listing.trainers);
  byId("main").hidden = false;
  setText(byId("scheduler"), `${cluster.scheduler} cluster`);
  document.title = `Oakum: ${cluster.num_training} of ${cluster.num_holes} idle nodes train`;
  showMode(byId("mode"), cluster);
  showSummary(byId("summary"), cluster, listing.trainers);
  showLegend(byId("legend"), picture, nodes.nodes);
  timeline.show(picture, nodes.nodes, seconds);
  showNodes(byId("nodes"), nodes);
  showPlan(plans.plans[0]);
  trainers.show(listing.trainers);
  await trainers.showSeries(api);
}

/** The newest events, then each as it happens: the stream begins where the list ends, so none is missed. */
async function startEvents(api, session) {
  const { events } = await api.get("v1/events/recent?limit=50");
  for (const event of events.sort((a, b) => a.id - b.id)) feed.add(event);
  session.following = true;
  follow(api, feed.newest ?? 0, {
    signal: session.ending.signal,
    onState: (open) => {
      streaming = open;
      showLiveness();
    },
    onEvent: (event) => {
      feed.add(event);
      session.refresher.request();
    },
  });
}

function showPlan(plan) {
  const quality = plan && (plan.optimal ? "optimal" : `within ${percent(plan.gap, 1)} of the bound`);
  const text = plan
    ? `Plan ${plan.id} of ${clock(plan.made_at)}: ${quality}, solved in ${duration(plan.solve_s)} by ${plan.solver}`
    : "No plan yet";
  setText(byId("plan"), text);
}

/** A refresh whose failure is told on the page, where the next one may succeed. */
async function tryRefresh(api, session) {
  const { signal } = session.ending;
  try {
    await refresh(api);
    if (!session.following) await startEvents(api, session);
    if (signal.aborted) return;
    updatedAt = Date.now() / 1000;
    byId("banner").hidden = true;
    byId("main").classList.remove("stale");
  } catch (error) {
    if (signal.aborted) return;
    if (error instanceof Unauthorised) {
      signOut("The service does not accept this token.");
      return;
    }
    showOutage(error);
  }
  showLiveness();
}

function showOutage(error) {
  timeline.freeze();
  const since = updatedAt === null ? "" : ` Shown is the state of ${clock(updatedAt)}.`;
  const unreachable = error instanceof Unreachable;
  const what = unreachable ? `Cannot reach the Oakum service at ${location.host}` : "Cannot show what the service answers";
  setText(byId("banner"), `${what}: ${error.message}. Trying again.${since}`);
  byId("banner").hidden = false;
  byId("main").classList.add("stale");
}

function showLiveness() {
  const element = byId("liveness");
  const down = !byId("banner").hidden;
  element.className = `liveness ${down ? "down" : streaming ? "live" : "polling"}`;
  setText(element, down ? "Offline" : streaming ? "Live" : "Polling");
  element.title = updatedAt === null ? "" : `Last update ${clock(updatedAt)}`;
}

function signIn(token) {
  const api = new Api(token);
  feed.clear();
  session = { ending: new AbortController(), following: false };
  const mine = session;
  session.refresher = new Refresher(() => tryRefresh(api, mine));
  byId("sign-in").hidden = true;
}

function signOut(message) {
  session?.refresher.stop();
  session?.ending.abort();
  session = null;
  forgetToken();
  byId("main").hidden = true;
  byId("mode").hidden = true;
  byId("banner").hidden = true;
  askForToken(message);
}

function askForToken(message) {
  setText(byId("sign-in-message"), `${message} Paste the one that “oakum serve” printed.`);
  byId("sign-in").hidden = false;
  byId("token").focus();
}

byId("sign-in-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("token").value);
  byId("token").value = "";
  signIn(takeToken());
});
byId("ranges").addEventListener("change", () => session?.refresher.now());
document.querySelector(".node-table").addEventListener("toggle", () => session?.refresher.now());
addEventListener("hashchange", () => location.hash.includes("token=") && location.reload());

const token = takeToken();
if (token) signIn(token);
else askForToken("This page needs a token.");
