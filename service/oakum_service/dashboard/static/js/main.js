// Assembles the page: signing in, views, refreshes, events, and the message shown when the service cannot be reached.

import { holdButton } from "./actions.js";
import { Api, Refused, Unauthorised, Unreachable } from "./api.js";
import { button } from "./controls.js";
import { byId, h, setChildren, setText } from "./dom.js";
import { EventFeed } from "./events.js";
import { FirstAnswer } from "./first_answer.js";
import { clock } from "./format.js";
import { follow, Refresher } from "./live.js";
import { showMode } from "./mode.js";
import { Overview } from "./overview.js";
import { place } from "./router.js";
import { enter, leave, takeToken } from "./session.js";
import { serviceNow } from "./time.js";
import { viewAt } from "./views.js";

const RETRY_MS = 2000;
const api = new Api();
const overview = new Overview();
const feed = new EventFeed(byId("events"));
const firstAnswer = new FirstAnswer(byId("first-answer"), [byId("view"), byId("overview")], () => session?.refresher.now());
let streaming = false;
let offline = false;
let updatedAt = null;
let session = null;
let path = null;

async function refresh(mine) {
  const { view } = mine;
  const cluster = await api.get("v1/cluster");
  setText(byId("scheduler"), `${cluster.scheduler} cluster`);
  document.title = titleOf(cluster, view);
  showMode(byId("mode"), cluster);
  showAccount(mine, cluster);
  await (view ?? overview).refresh(api, cluster);
}

/** A hold is told first, so that a tab among many shows it. */
function titleOf(cluster, view) {
  const held = cluster.held ? "HELD: " : "";
  return held + (view ? `${view.title} – Oakum` : `Oakum: ${cluster.num_training} of ${cluster.num_holes} idle nodes train`);
}

function showAccount(mine, cluster) {
  const { me } = mine;
  const done = () => mine.refresher.now();
  setChildren(byId("account"), [me, cluster.held, cluster.num_fragments], () => [
    ...(me.role === "admin" ? [holdButton(cluster, api, done)] : []),
    h("span", { class: "who" }, `${me.name}, ${me.role}`),
    button("Sign out", signOut),
  ]);
}

/** The newest events, then each as it happens: the stream begins where the list ends, so none is missed. */
async function startEvents(mine) {
  const { events } = await api.get("v1/events/recent?limit=50");
  for (const event of events.sort((a, b) => a.id - b.id)) feed.add(event);
  mine.following = true;
  follow(api, feed.newest ?? 0, {
    signal: mine.ending.signal,
    onState: (open) => {
      streaming = open;
      showLiveness();
    },
    onEvent: (event) => {
      feed.add(event);
      mine.refresher.request();
    },
  });
}

/** Refreshes the page; shows a failure there, because the next refresh may succeed. */
async function tryRefresh(mine) {
  const { signal } = mine.ending;
  const { view } = mine;
  try {
    await refresh(mine);
    if (!mine.following) await startEvents(mine);
    if (signal.aborted) return;
    if (view === mine.view) firstAnswer.end();
    updatedAt = serviceNow();
    offline = false;
    byId("banner").hidden = true;
    byId("main").classList.remove("stale");
  } catch (error) {
    if (signal.aborted || view !== mine.view) return;
    if (error instanceof Unauthorised) {
      signInAnew();
      return;
    }
    showFault(error);
  }
  showLiveness();
}

/** Another tab may have signed in as somebody else, or out: this page then begins anew as what the browser is now. */
function signInAnew() {
  end("You are signed out.");
  start(null, "You are signed out.");
}

/** Tells what is wrong. Only where nothing answers is the page offline: a refusal is about what was asked for. */
function showFault(error) {
  offline = !(error instanceof Refused);
  if (offline) overview.freeze();
  const since = updatedAt === null ? "" : ` Shown is the state of ${clock(updatedAt)}.`;
  const what = error instanceof Unreachable ? `Cannot reach the Oakum service at ${location.host}: ` : "Cannot show what the service answers: ";
  const text = error instanceof Refused ? `${sentence(error.message)}.` : `${what}${error.message}. Trying again.${since}`;
  const isSaid = firstAnswer.fail(text) && !offline;
  setText(byId("banner"), text);
  byId("banner").hidden = isSaid;
  byId("main").classList.toggle("stale", offline);
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function showLiveness() {
  const element = byId("liveness");
  element.className = `liveness ${offline ? "down" : streaming ? "live" : "polling"}`;
  setText(element, offline ? "Offline" : streaming ? "Live" : "Polling");
  element.title = updatedAt === null ? "" : `Last update ${clock(updatedAt)}`;
}

/** Shows the view that the address names, a new one for each path; of a path's query the view is told. */
function showView() {
  const here = place();
  const now = here.parts.join("/");
  if (session === null) return;
  if (now === path) {
    session.view?.visit?.(here.query);
    return;
  }
  const isFirst = path === null;
  path = now;
  byId("banner").hidden = byId("banner").hidden || !offline;
  session.view = viewAt(here, { api, me: session.me, refresh: () => session?.refresher.now() });
  const shown = session.view?.element;
  byId("overview").hidden = shown !== undefined;
  byId("view").hidden = shown === undefined;
  byId("view").replaceChildren(...(shown ? [shown] : []));
  for (const entry of byId("views").children) {
    if (entry.dataset.view === (here.parts[0] ?? "")) entry.setAttribute("aria-current", "page");
    else entry.removeAttribute("aria-current");
  }
  const focus = () => shown?.querySelector("h2")?.focus({ preventScroll: true });
  firstAnswer.begin(session.view?.title ?? "", isFirst ? null : focus);
  document.title = session.view ? `${session.view.title} – Oakum` : "Oakum";
  if (!isFirst) {
    scrollTo(0, 0);
    session.refresher.now();
  }
}

function begin(me) {
  feed.clear();
  api.session = me.id;
  session = { me, view: null, ending: new AbortController(), following: false };
  const mine = session;
  byId("sign-in").hidden = true;
  byId("views").hidden = false;
  for (const entry of byId("views").querySelectorAll("[data-for=submit]")) entry.hidden = !me.may_submit;
  byId("account").hidden = false;
  byId("main").hidden = false;
  byId("banner").hidden = true;
  path = null;
  showView();
  session.refresher = new Refresher(() => tryRefresh(mine));
}

async function signOut() {
  try {
    await leave(api);
  } catch (error) {
    if (!(error instanceof Unauthorised)) {
      showFault(error);
      return;
    }
  }
  end("You are signed out.");
}

function end(message) {
  api.session = "1";
  session?.refresher.stop();
  session?.ending.abort();
  session = null;
  for (const id of ["main", "mode", "banner", "views", "account"]) byId(id).hidden = true;
  document.title = "Oakum";
  document.querySelector("dialog")?.remove();
  byId("view").replaceChildren();
  askForToken(message);
}

function askForToken(message) {
  setText(byId("sign-in-message"), `${message} Paste the token that “oakum serve” printed, or one of your own.`);
  byId("sign-in").hidden = false;
  byId("token").focus();
}

/** Signs in with the token, or with the cookie of an earlier time; waits while the service does not answer. */
async function start(token, otherwise = "This page needs a token.") {
  try {
    begin(await enter(api, token));
  } catch (error) {
    if (error instanceof Unauthorised) {
      askForToken(token ? "The service does not accept this token." : otherwise);
    } else if (error instanceof Refused) {
      askForToken(`${sentence(error.message)}.`);
    } else {
      showFault(error);
      setTimeout(() => start(token, otherwise), RETRY_MS);
    }
  }
}

byId("sign-in-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = byId("token").value.trim();
  byId("token").value = "";
  start(given);
});
// No link: the page's addresses are in the fragment.
byId("skip").addEventListener("click", () => {
  const heading = document.querySelector("#view:not([hidden]) h2, #sign-in:not([hidden]) h2, #overview h2");
  heading.tabIndex = -1;
  heading.focus();
});
document.querySelector(".node-table").addEventListener("toggle", () => session?.refresher.now());
addEventListener("hashchange", () => {
  if (location.hash.includes("token=")) location.reload();
  else showView();
});

start(takeToken());
