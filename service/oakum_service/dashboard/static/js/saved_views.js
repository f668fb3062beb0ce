// Views of a table under names: what its address asks for. This browser keeps them, for each user; the service knows none.

import { ask, button } from "./controls.js";
import { Unusable } from "./faults.js";
import { h, setChildren, setText } from "./dom.js";
import { address, place } from "./router.js";

const MOST_VIEWS = 50;
const LONGEST_NAME = 60;
const LONGEST_QUERY = 2000;

export class SavedViews {
  /** For the table at the address's `parts`; each `user` of this browser has views of its own. */
  constructor({ parts, user }) {
    this.parts = parts;
    this.key = `oakum.views.${parts.join("/")}.${user}`;
    this.select = h("select", { id: `field-${parts[0]}-view` });
    this.select.addEventListener("change", () => this.#go(this.select.value));
    this.forget = button("Forget", () => this.#askToForget());
    this.said = h("span", { role: "status", class: "hint" });
    this.element = h(
      "div",
      { class: "saved-views" },
      h("div", { class: "field" }, h("label", { for: this.select.id }, "View"), this.select),
      h("div", { class: "buttons" }, button("Save view…", () => this.#askForName()), this.forget, button("Copy link", () => this.#copy()), this.said),
    );
  }

  /** What is asked has changed: a saved view that asks for the same is the one that is shown. */
  visit() {
    const views = this.#read();
    const query = asked();
    const shown = views.find((view) => view.query === query)?.name ?? "";
    setText(this.said, "");
    setChildren(this.select, [views.map(({ name }) => name), shown], () => [
      h("option", { value: "", selected: shown === "" && "" }, views.length ? "not a saved one" : "none is saved"),
      ...views.map(({ name }) => h("option", { value: name, selected: shown === name && "" }, name)),
    ]);
    this.select.value = shown;
    this.forget.hidden = shown === "";
  }

  #go(name) {
    const view = this.#read().find((each) => each.name === name);
    if (view) location.hash = address(this.parts, Object.fromEntries(new URLSearchParams(view.query)));
    else this.visit();
  }

  #askForName() {
    const fields = [{ name: "name", label: "Name", required: "", maxlength: LONGEST_NAME, value: this.select.value, hint: "A view of this name is replaced." }];
    const text = "The view is what is searched for, filtered, sorted, grouped and shown. This browser alone keeps it, under your user name; the page's address has it, too, for others.";
    ask({ title: "Save this view", text, fields, action: "Save" }, ({ name }) => {
      const query = asked();
      const others = this.#read().filter((view) => view.name !== name);
      if (others.length >= MOST_VIEWS) throw new Unusable(`There are ${MOST_VIEWS} views: forget one first.`);
      if (query.length > LONGEST_QUERY) throw new Unusable("The view is too long to be kept: search for less.");
      this.#write([...others, { name, query }].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true })));
    });
  }

  #askToForget() {
    const name = this.select.value;
    ask({ title: `Forget the view “${name}”?`, text: "Trainers stay as they are, and links to the view go on working.", action: "Forget it" }, () => this.#write(this.#read().filter((view) => view.name !== name)));
  }

  async #copy() {
    try {
      await navigator.clipboard.writeText(location.href);
      setText(this.said, "Copied: whoever may open this page sees this view there.");
    } catch {
      setText(this.said, "Copy it from the address bar, which has the whole view.");
    }
  }

  #read() {
    try {
      const views = JSON.parse(localStorage.getItem(this.key) ?? "[]");
      return views.filter(({ name, query }) => typeof name === "string" && typeof query === "string");
    } catch {
      return []; // no storage here, or something else wrote there
    }
  }

  #write(views) {
    try {
      localStorage.setItem(this.key, JSON.stringify(views));
    } catch {
      throw new Unusable("This browser keeps nothing for this page: copy the link in place of it.");
    }
    this.visit();
  }
}

/** What the address asks for, in one order, since the same view can be asked for in several. */
function asked() {
  const { query } = place();
  query.sort();
  return query.toString();
}
