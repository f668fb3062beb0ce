// Assembles the page: signing in, views, refreshes, events, and the message shown when the service cannot be reached.

import { holdButton } from "./actions.js";
import { Api, NO_KEY, Refused, Unauthorised, Unreachable } from "./api.js";
import { button } from "./controls.js";
import { byId, h, heading, setChildren, setText } from "./dom.js";
import { beginDrafts, forgetDrafts } from "./drafts.js";
import { EventFeed } from "./events.js";
import { FirstAnswer } from "./first_answer.js";
import { clock, prose } from "./format.js";
import { follow, Refresher } from "./live.js";
import { showMode } from "./mode.js";
import { NEEDED, Overview } from "./overview.js";
import { place } from "./router.js";
import { enter, leave, replacement, takeToken } from "./session.js";
import { serviceNow } from "./time.js";
import { viewAt, viewLinks } from "./views.js";

const RETRY_MS = 2000;
const api = new Api();
const feed = new EventFeed(byId("events"));
const firstAnswer = new FirstAnswer(byId("first-answer"), [byId("view"), byId("overview")], () => askAgain());
let streaming = false;
let offline = false;
let updatedAt = null;
let session = null;
/** Signs in as was tried last, where nothing has answered; `retrying` is the timer of doing so. */
let again = () => {};
let retrying = null;
const askAgain = () => {
  showLiveness();
  return session ? session.refresher.anew() : again();
};
const overview = new Overview(askAgain);
let path = null;
/** Id of what had the focus when a session ended, which gets it back in the next one; null for a page that has just been opened. */
let left = null;

/** Asks for the cluster and for what the view shows at once; a view that needs the cluster waits for its promise. */
async function refresh(mine) {
  if (!streaming) overview.expectPlan(); // no event will tell of another one
  const asked = api.get("v1/cluster");
  const around = asked.then((cluster) => showCluster(mine, cluster));
  await Promise.all([around, (mine.view ?? overview).refresh(api, asked, mine.me, () => mine.refresher.now())]);
  showTitle(mine); // a view may have learned its name
}

/** What every view has around it, also one that is refused. */
function showCluster(mine, cluster) {
  if (mine.ending.signal.aborted) return;
  mine.cluster = cluster;
  setText(byId("scheduler"), `${cluster.scheduler} cluster`);
  showTitle(mine);
  showMode(byId("mode"), cluster);
  showAccount(mine);
}

/** The tab's title. A hold is told first, so that a tab among many shows it. */
function showTitle({ cluster, view, ending }) {
  if (ending.signal.aborted) return;
  const held = cluster?.held ? "HELD: " : "";
  const numbers = cluster ? `Oakum: ${Math.min(cluster.num_training, cluster.num_holes)} of ${cluster.num_holes} idle nodes train` : "Oakum";
  document.title = held + (view ? `${view.title} – Oakum` : numbers);
}

/** Who is signed in, and the way out; before the cluster's first answer it is not known whether the service is held. */
function showAccount(mine) {
  const { me, cluster } = mine;
  const done = () => mine.refresher.now();
  setChildren(byId("account"), [me, cluster?.held, cluster?.num_fragments], () => [
    ...(me.role === "admin" && cluster ? [holdButton(cluster, api, done)] : []),
    h("span", { class: "who" }, `${me.name}, ${me.role}`),
    button("Sign out", signOut),
  ]);
  showLiveness(); // also whether a hold can be asked for
}

/** The newest events, then each as it happens: the stream begins where the list ends, so none is missed. */
async function startEvents(mine) {
  mine.following = true;
  let events;
  try {
    ({ events } = await api.get("v1/events/recent?limit=50"));
  } catch (error) {
    mine.following = false;
    if (!mine.ending.signal.aborted) feed.fail(error.message, askAgain);
    throw error;
  }
  if (mine.ending.signal.aborted) return;
  feed.begin(events);
  follow(api, feed.newest ?? 0, {
    signal: mine.ending.signal,
    onState: (open) => {
      streaming = open;
      showLiveness();
    },
    onEvent: (event) => {
      feed.add(event);
      if (event.kind === "plan.made") overview.expectPlan();
      mine.refresher.request();
    },
  });
}

/** Refreshes the page; shows a failure there, because the next refresh may succeed. */
async function tryRefresh(mine) {
  const { signal } = mine.ending;
  const { view, visit } = mine;
  const isOvertaken = () => signal.aborted || visit !== mine.visit;
  try {
    await refresh(mine);
    api.ahead([]); // What was not taken is of no view any more.
    if (isOvertaken()) return; // What another view was told, or this one before, says nothing of it now.
    firstAnswer.end();
    updatedAt = serviceNow();
    offline = false;
    showLiveness();
    byId("banner").hidden = true;
    byId("main").classList.remove("stale");
    await new Promise((painted) => setTimeout(painted)); // The figures do not wait for what pictures need.
    if (signal.aborted) return;
    const parts = [view === null ? overview.refreshPictures(api) : null, mine.following ? null : startEvents(mine)];
    await Promise.all(parts.map((part) => part?.catch(toldInPlace)));
    if (signal.aborted) return;
  } catch (error) {
    if (isOvertaken()) return;
    if (error instanceof Unauthorised) {
      signInAnew();
      return;
    }
    showFault(error);
  }
  showLiveness();
}

/** What does not come of a part of the page is told there: the rest is current. */
function toldInPlace(error) {
  if (!(error instanceof Unreachable)) throw error;
}

/** Another tab may have signed in as somebody else, or out: this page then begins anew as what the browser is now. */
function signInAnew() {
  end("You are signed out.");
  start(null, "You are signed out.");
}

/** Tells what is wrong. Only where nothing answers is the page offline: a refusal is about what was asked for. */
function showFault(error) {
  offline = !(error instanceof Refused);
  if (offline) {
    overview.freeze(error.message, updatedAt);
    feed.fail(error.message, askAgain);
  }
  const what = error instanceof Unreachable ? `Cannot reach the Oakum service at ${location.host}: ` : "Cannot show what the service answers: ";
  const text = error instanceof Refused ? `${sentence(prose(error.message))}.` : `${what}${error.message}. It is asked again every few seconds.${error instanceof Unreachable ? " Check that it runs, and that this computer reaches it." : ""}`;
  const isSaid = !byId("main").hidden && firstAnswer.fail(text, !offline);
  setText(byId("banner"), text + (updatedAt === null || isSaid ? "" : ` Shown is the state of ${clock(updatedAt)}.`));
  byId("banner").hidden = isSaid;
  byId("main").classList.toggle("stale", offline);
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** [class, words]. Nothing is live before the view's first answer has come. */
function livenessOf() {
  if (firstAnswer.isLoading && !byId("main").hidden) return ["", "Loading…"];
  if (offline) return ["down", "Offline"];
  return streaming ? ["live", "Live"] : ["polling", "Every 2 s"];
}

function showLiveness() {
  const element = byId("liveness");
  const [kind, words] = livenessOf();
  element.className = `liveness ${kind}`;
  setText(element, words);
  element.title = updatedAt === null ? "" : `Last update ${clock(updatedAt)}`;
  const hold = byId("hold");
  if (hold) hold.disabled = offline;
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
  session.visit += 1;
  session.view = viewAt(here, { api, me: session.me, refresh: () => session?.refresher.now() });
  const shown = session.view?.element;
  byId("overview").hidden = shown !== undefined;
  byId("view").hidden = shown === undefined;
  byId("view").replaceChildren(...(shown ? [shown] : []));
  for (const entry of byId("views").children) {
    if (entry.dataset.view === (here.parts[0] ?? "")) entry.setAttribute("aria-current", "page");
    else entry.removeAttribute("aria-current");
  }
  const before = isFirst ? left : "";
  left = null;
  firstAnswer.begin(session.view?.title ?? "", before === null ? null : () => focusOn(before));
  showLiveness();
  showTitle(session);
  if (!isFirst) {
    scrollTo(0, 0);
    session.refresher.anew();
  }
}

/** Puts the focus on the element of the id if it is shown, else on the view's heading. */
function focusOn(id) {
  const wanted = id ? byId(id) : null;
  (wanted?.checkVisibility() ? wanted : heading()).focus({ preventScroll: true });
}

function begin(me) {
  beginDrafts(me.name);
  feed.clear();
  session = { me, view: null, visit: 0, cluster: null, ending: new AbortController(), following: false };
  const mine = session;
  showAccount(mine);
  byId("sign-in").hidden = true;
  byId("views").hidden = false;
  byId("views").replaceChildren(...viewLinks(me));
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
  forgetDrafts();
  end("You are signed out.");
  left = "";
}

function end(message) {
  left = document.activeElement?.id ?? "";
  api.key = NO_KEY;
  session?.refresher.stop();
  session?.ending.abort();
  session = null;
  updatedAt = null;
  streaming = false;
  for (const id of ["mode", "views", "account"]) byId(id).hidden = true;
  setText(byId("scheduler"), "");
  document.title = "Oakum";
  document.querySelector("dialog")?.remove();
  byId("view").replaceChildren();
  askForToken(message);
}

function askForToken(message, isRefused = false) {
  for (const id of ["main", "banner"]) byId(id).hidden = true;
  offline = false;
  setText(byId("sign-in-message"), `${message} Paste the token that “oakum serve” printed, or one of your own.`);
  byId("sign-in-message").classList.toggle("wrong", isRefused);
  setText(byId("liveness"), "");
  byId("token").setAttribute("aria-invalid", isRefused);
  byId("sign-in").hidden = false;
  byId("token").focus();
}

/** Whether somebody who follows a link means to act as another than before: the link may be anybody's. */
function isMeant({ before, after }) {
  return confirm(`You are signed in as ${before.name} (${before.role}). The link that you followed signs you in as ${after.name} (${after.role}). Do you want that?`);
}

/** Asks for what the page shows first while it is not known yet who is signed in: that takes as long again. */
function askAhead() {
  if (api.key !== NO_KEY) api.ahead(["v1/cluster", ...(place().parts.length === 0 ? NEEDED : [])]);
}

/** Signs in with the token, or with the cookie of an earlier time; waits while the service does not answer. */
async function start(token, otherwise = "This page needs a token.") {
  clearTimeout(retrying);
  if (!offline) {
    byId("liveness").className = "liveness";
    setText(byId("liveness"), "Connecting…");
  }
  if (byId("sign-in").hidden && byId("main").hidden) awaitSession();
  try {
    const other = token ? await replacement(api, token) : null;
    const entering = enter(api, other && !isMeant(other) ? null : token);
    askAhead();
    begin(await entering);
  } catch (error) {
    api.ahead([]);
    if (error instanceof Unauthorised) {
      askForToken(token ? "The service does not accept this token." : otherwise, token !== null);
    } else if (error instanceof Refused) {
      askForToken(`${sentence(error.message)}.`);
    } else {
      showFault(error);
      showLiveness();
      again = () => start(token, otherwise);
      retrying = setTimeout(again, RETRY_MS);
    }
  }
}

/** Says in the place of the views that the page waits for who is signed in. */
function awaitSession() {
  byId("overview").hidden = true;
  byId("main").hidden = false;
  firstAnswer.begin("");
}

byId("sign-in-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = byId("token").value.trim();
  left ??= "";
  byId("token").value = "";
  start(given);
});
// No link: the page's addresses are in the fragment.
byId("skip").addEventListener("click", () => {
  heading().focus();
});
document.querySelector(".node-table").addEventListener("toggle", () => overview.showNodes());
addEventListener("hashchange", () => {
  if (location.hash.includes("token=")) location.reload();
  else showView();
});

start(takeToken());
