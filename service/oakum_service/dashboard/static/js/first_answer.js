// What stands in a view's place until its first answer has come: that it loads, or why it does not come.

import { button, link } from "./controls.js";
import { h } from "./dom.js";

const SAID_AFTER_MS = 300;

export class FirstAnswer {
  #timer = null;
  /** "loading", "failed" or "answered". */
  #state = "answered";
  #shown = null;
  #title = "";

  /** `root`: where it is said; `views`: elements that are not to be seen meanwhile, but are laid out; `retry` asks again. */
  constructor(root, views, retry) {
    Object.assign(this, { root, views, retry });
  }

  /** Whether an answer is on its way, of which nothing is known yet. */
  get isLoading() {
    return this.#state === "loading";
  }

  /** A view begins: what it would show now is of no answer. `shown` is called when it has come. */
  begin(title, shown = null) {
    this.#title = title;
    this.#state = "loading";
    this.#shown = shown;
    for (const view of this.views) view.classList.add("pending");
    clearTimeout(this.#timer);
    if (this.root.hidden) this.#timer = setTimeout(() => this.#load(), SAID_AFTER_MS);
    else this.#load(); // What it said would be of another view.
  }

  /** The view has its answer. */
  end() {
    if (this.#state === "answered") return;
    this.#state = "answered";
    clearTimeout(this.#timer);
    this.#show();
    for (const view of this.views) view.classList.remove("pending");
    this.#shown?.();
  }

  /** The view has none, and why; `isRefusal`: it alone has none. Returns whether that is said here: false for a view that has shown something. */
  fail(text, isRefusal) {
    if (this.#state === "answered") return false;
    this.#state = "failed";
    clearTimeout(this.#timer);
    const elsewhere = this.#title && isRefusal ? [link("To the overview", "#/")] : [];
    this.#show(h("p", { role: "alert" }, text), h("p", { class: "buttons" }, button("Try again", () => this.#tryAgain()), ...elsewhere));
    return true;
  }

  #tryAgain() {
    this.#state = "loading";
    this.#load();
    this.retry();
  }

  #load() {
    this.#show(h("p", { role: "status" }, this.#title ? `Loading: ${this.#title}…` : "Loading…"));
  }

  #show(...content) {
    this.root.replaceChildren(...content);
    this.root.hidden = content.length === 0;
  }
}
