// The panel of nodes over time: its picture, the strip, and what chooses the time and the rows.

import { byId, h, setText } from "../dom.js";
import { clock, count, day, duration } from "../format.js";
import { address, place } from "../router.js";
import { serviceNow } from "../time.js";
import { BarKeys } from "./bar_keys.js";
import { BarStore } from "./bar_store.js";
import { Density } from "./density.js";
import { Finder } from "./finder.js";
import { Gestures } from "./gestures.js";
import { Lack } from "./lack.js";
import { ORDERS, rowsOf } from "./node_rows.js";
import { Picture } from "./picture.js";
import { ALL_SHOWN, askedFor, keepInAddress } from "./picture_address.js";
import { Strip } from "./strip.js";
import { Tip, linesAbout } from "./tooltip.js";

const SLIDE_EVERY_MS = 80;
const LOAD_AFTER_MS = 120;
const DENSITY_EVERY_S = 12;

export class TimelinePanel {
  #api = null;
  #nodes = null;
  #rows = [];
  #frozenAt = null;
  #waiting = null;
  #loading = null;
  #densityAt = 0;

  /** `askAgain` refreshes the page, from which the panel is told of the nodes. */
  constructor(askAgain) {
    this.askAgain = askAgain;
    this.root = byId("timeline");
    this.store = new BarStore();
    this.finder = new Finder();
    this.picture = new Picture(this.root);
    this.keys = new BarKeys(this.picture, this.#forKeys());
    this.density = new Density(this.root);
    this.lack = new Lack(this.root, () => this.#tryAgain());
    this.tip = new Tip(this.root);
    this.strip = new Strip(byId("strip"), {
      show: (from, to) => this.#change(() => this.window.show(from, to, this.#now())),
      released: () => this.#settle(),
    });
    this.#fromAddress();
    this.#listen();
    addEventListener("hashchange", () => this.#follow());
    this.lack.show(true);
    new ResizeObserver(() => this.#draw()).observe(this.root);
    // Frames that are asked for one after the other would keep the browser drawing the page sixty times a second.
    setInterval(() => this.#slide(), SLIDE_EVERY_MS);
  }

  /** Gets what is new and draws it. `nodes` is the list of the nodes' present states. */
  async refresh(api, nodes) {
    this.#api = api;
    this.#nodes = nodes;
    if (this.#frozenAt !== null) this.lack.fault = null;
    this.#frozenAt = null;
    this.#draw();
    await this.#load();
  }

  /** Shows the state as of the time `at` (Unix seconds; null: the present) from now on, and tells `why` nothing newer comes. */
  freeze(why, at) {
    this.#frozenAt ??= at ?? this.#now();
    this.fail(why);
  }

  #tryAgain() {
    this.lack.fault = null;
    this.lack.show(this.#isLacking());
    if (this.#nodes === null) this.askAgain();
    this.#load().catch(() => {}); // it is told there again
  }

  /** Tells `why` what is still lacking does not come. */
  fail(why) {
    this.lack.fault = why;
    this.strip.fail(why, () => this.#tryAgain());
    this.lack.show(this.#isLacking());
  }

  get #isDense() {
    return this.options.show === "dense";
  }

  #now() {
    return this.#frozenAt ?? serviceNow();
  }

  /** Up to when things are known, and what that time is called. */
  get #present() {
    return { at: this.#now(), name: this.#frozenAt === null ? "now" : clock(this.#frozenAt) };
  }

  /** One after the other: a load that is wanted while another runs follows it. */
  async #load() {
    if (this.#loading) {
      this.again = true;
      await this.#loading;
      return;
    }
    this.#loading = this.#loadOnce();
    try {
      await this.#loading;
      this.lack.fault = null;
    } catch (error) {
      this.fail(error.message);
      throw error;
    } finally {
      this.#loading = null;
      this.lack.show(this.#isLacking());
    }
    if (this.again) {
      this.again = false;
      await this.#load();
    }
  }

  async #loadOnce() {
    if (this.#api === null || byId("overview").hidden) return;
    const now = this.#now();
    const shown = this.window.at(now);
    if (this.#isDense) await this.#loadDensity(shown, now);
    else {
      await this.finder.load(this.#api, this.options.find, shown);
      this.#draw();
      await this.store.load(this.#api, this.picture.namesInView, shown, this.window.span / this.picture.width, now);
    }
    this.#draw();
    await this.strip.load(this.#api, this.window, now);
    this.strip.mark(this.window, this.#now());
  }

  async #loadDensity(shown, now) {
    if (now - this.#densityAt < DENSITY_EVERY_S && !this.again) return;
    await this.density.load(this.#api, shown, now, this.#nodes.nodes.length, this.picture.left, this.picture.width);
    this.#densityAt = now;
  }

  #draw() {
    if (this.#nodes === null) return;
    const now = this.#now();
    this.window.foresee(this.#isDense ? null : this.store.soonest, now);
    const nodes = this.#nodes.nodes;
    this.#rows = this.#isDense ? [] : rowsOf(nodes, this.options, this.finder.of(this.options.find));
    const longest = nodes.reduce((most, { name }) => Math.max(most, name.length), 0);
    if (!this.picture.layOut(this.#rows, longest)) return;
    const shown = this.window.at(now);
    const forecast = (node) => this.#nodes.get(node)?.hole_ends_at;
    this.picture.draw(shown, this.#present, this.store, forecast, this.#inWords(nodes));
    this.picture.scroller.hidden = this.#isDense;
    this.density.element.hidden = !this.#isDense || this.density.isEmpty;
    byId("legend").hidden = this.#isDense; // Its colours are those of the strip, which names them.
    for (const id of ["rows-order", "rows-find"]) byId(id).disabled = this.#isDense; // They are about rows.
    this.density.place(shown, now, this.picture.left, this.picture.width);
    this.keys.frame();
    this.strip.mark(this.window, now);
    this.#tellWindow(shown, now, nodes.length);
    this.lack.show(this.#isLacking());
  }

  #isLacking() {
    if (this.#nodes === null) return true;
    if (this.#isDense) return this.density.isEmpty && this.#nodes.nodes.length > 0;
    const now = this.#now();
    return this.store.lacks(this.picture.namesInView, this.window.at(now), now);
  }

  #tellWindow({ from, to }, now, numNodes) {
    const when = (at) => (this.window.span > 72_000 || now - at > 72_000 ? `${day(at)} ${clock(at, false)}` : clock(at, this.window.span < 900));
    const rows = this.#rows.filter(({ node }) => node !== undefined).length;
    const some = !this.#isDense && rows !== numNodes ? `${count(rows)} of ${count(numNodes)} nodes; ` : "";
    const kept = this.store.keptFrom !== null && from < this.store.keptFrom ? `; rows are kept since ${day(this.store.keptFrom)} ${clock(this.store.keptFrom, false)}` : "";
    const searched = this.#isDense || this.finder.isComplete ? "" : "; only what ended last in this time was searched";
    const { leftOut } = this.store;
    const later = !this.#isDense && this.window.follows && leftOut ? `; ${count(leftOut)} more are announced, later` : "";
    const { follows, span } = this.window;
    const ahead = follows ? `, and ${duration(to - now)} ahead` : "";
    setText(byId("window"), `${some}${duration(span)} in all: ${when(from)} to ${follows ? this.#present.name : when(to)}${ahead}${later}${kept}${searched}`);
    byId("to-now").disabled = this.window.follows;
    for (const input of byId("ranges").querySelectorAll("input")) input.checked = this.window.follows && Number(input.value) === this.window.span;
    const none = byId("no-rows");
    none.hidden = rows > 0 || (this.#isDense && numNodes > 0);
    const like = this.options.find ? "No node is like that in the time shown. Show all nodes, another time, or search for something else." : "No node is like that. Show all nodes.";
    setText(none, numNodes ? like : "The scheduler has shown no node yet.");
  }

  #inWords(nodes) {
    const busy = nodes.filter(({ state }) => state === "foreground").length;
    const training = nodes.filter(({ trainer }) => trainer !== null).length;
    return `${nodes.length} nodes over ${duration(this.window.span)}: ${busy} run foreground jobs now, ${training} hold trainers`;
  }

  /** Shows another window at once, and gets what is missing when the reader has come to rest. */
  #change(how) {
    how();
    const now = this.#now();
    const shown = this.window.at(now);
    if (this.#isDense || shown.to - shown.from !== this.picture.to - this.picture.from || !this.picture.move(shown.from)) this.#requestDraw();
    this.keys.frame();
    this.strip.mark(this.window, now);
  }

  #requestDraw() {
    this.drawing ??= requestAnimationFrame(() => {
      this.drawing = null;
      this.#draw();
    });
  }

  #settle() {
    clearTimeout(this.#waiting);
    this.#waiting = setTimeout(() => {
      keepInAddress(this.window, this.options, this.#now());
      this.#draw();
      this.#densityAt = 0;
      this.#load().catch(() => {}); // the next refresh tells of what is wrong
    }, LOAD_AFTER_MS);
  }

  #listen() {
    const { picture } = this;
    const at = (clientX) => (clientX === null ? this.#middle() : picture.at(clientX, 0).at);
    const seconds = (px) => (px / picture.width) * this.window.span;
    const on = {
      zoom: (factor, clientX) => {
        this.#change(() => this.window.zoom(factor, at(clientX), this.#now()));
        this.#settle();
      },
      pan: (px) => this.#change(() => this.window.pan(seconds(px), this.#now())),
      panShare: (share) => this.#change(() => this.window.pan(share * this.window.span, this.#now())),
      now: () => this.#change(() => this.window.follow()),
      released: () => this.#settle(),
      clicked: (event) => this.#select(this.#about(event)),
      step: (rows, bars) => this.keys.step(rows, bars),
      open: () => this.keys.open(),
      leave: () => this.keys.leave(),
    };
    this.gestures = new Gestures(picture.scroller, picture.axisBox, on);
    picture.scroller.addEventListener("scroll", () => {
      this.#requestDraw();
      this.#settle();
    }, { passive: true });
    this.root.addEventListener("pointermove", (event) => this.#point(event));
    this.root.addEventListener("pointerleave", () => this.tip.hide());
    picture.scroller.addEventListener("blur", () => this.tip.hide());
    for (const [id, act] of [["zoom-in", () => on.zoom(1 / 2, null)], ["zoom-out", () => on.zoom(2, null)], ["earlier", () => on.panShare(-0.5)], ["later", () => on.panShare(0.5)], ["to-now", on.now]]) {
      byId(id).addEventListener("click", () => {
        act();
        this.#settle();
      });
    }
    byId("ranges").addEventListener("change", (event) => {
      this.#change(() => this.window.follow(Number(event.target.value)));
      this.#settle();
    });
    for (const name of ["show", "order", "find"]) {
      byId(`rows-${name}`).addEventListener("input", (event) => {
        this.options[name] = event.target.value;
        picture.scroller.scrollTop = 0;
        this.#requestDraw();
        this.#settle();
      });
    }
    this.density.canvas.addEventListener("dblclick", (event) => this.#open(this.density.about(event.clientX, event.clientY).node));
  }

  #forKeys() {
    const panel = this;
    return {
      get window() { return panel.window; },
      get now() { return panel.#now(); },
      get rows() { return panel.#rows; },
      get middle() { return panel.#middle(); },
      bars: (node) => this.store.of(node),
      about: (node, at) => this.#aboutAt(node, at),
      change: (how) => this.#change(how),
      tell: (lines, left, top) => this.tip.show(lines, left, top),
      select: (about) => this.#select(about),
    };
  }

  #middle() {
    const now = this.#now();
    const { from, to } = this.window.at(now);
    return this.window.follows ? now : (from + to) / 2;
  }

  /** Leaves the picture of all nodes for the rows, at one of them. */
  #open(node) {
    if (node === null) return;
    this.options.show = "all";
    byId("rows-show").value = "all";
    this.#draw();
    const found = this.#rows.findIndex((row) => row.node === node);
    this.picture.scroller.scrollTop = Math.max(0, found) * this.picture.row;
    this.#settle();
  }

  /** Shows what an address says that the reader has come to while the page was open. */
  #follow() {
    if (place().parts.length) return;
    this.#fromAddress();
    this.#requestDraw();
    this.#settle();
  }

  #fromAddress() {
    ({ window: this.window, options: this.options } = askedFor(this.#now()));
    fill(byId("rows-show"), ALL_SHOWN, this.options.show);
    fill(byId("rows-order"), ORDERS, this.options.order);
    byId("rows-find").value = this.options.find;
  }

  #slide() {
    const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (isStill || !this.window.follows || this.#frozenAt !== null || document.hidden || this.gestures.isDragging) return;
    if (this.picture.sliding && !this.#isDense) this.picture.move(this.window.at(this.#now()).from);
    this.keys.frame();
  }

  #point(event) {
    this.tip.show(this.gestures.isDragging ? [] : this.#about(event).lines, event.clientX + 14, event.clientY + 18);
  }

  #about(event) {
    if (this.#nodes === null) return { lines: [] };
    if (this.#isDense) return event.target === this.density.canvas ? this.density.about(event.clientX, event.clientY) : { lines: [] };
    const { row, at, isInside } = this.picture.at(event.clientX, event.clientY);
    if (!isInside || row?.node === undefined || !this.picture.scroller.contains(event.target)) return { lines: [] };
    return this.#aboutAt(row.node, at);
  }

  #aboutAt(node, at) {
    if (at < this.store.completeFrom) return { lines: [] };
    const bars = this.store.of(node);
    const fragment = bars?.fragments.findLast((bar) => bar.start_at <= at && (bar.end_at === null || at < bar.end_at));
    return { lines: linesAbout(node, at, this.#present, bars, this.#nodes?.get(node)), trainer: fragment?.trainer ?? null };
  }

  /** Keeps what was chosen below the picture, with the way to its trainer. */
  #select({ lines, trainer }) {
    if (!lines.length) return;
    const text = lines.filter(Boolean).join("; ");
    const way = trainer ? [" ", h("a", { href: address(["trainers", trainer]) }, "Open the trainer")] : [];
    byId("selected").replaceChildren(text, ...way);
    byId("selected").hidden = false;
  }
}

function fill(select, choices, chosen) {
  select.replaceChildren(...choices.map(([value, text]) => h("option", { value, selected: value === chosen && "" }, text)));
  select.value = chosen;
}
