// Buttons, links and fields, and the dialog that asks before something is done.

import { Refused, Unauthorised } from "./api.js";
import { h } from "./dom.js";

export function button(text, onClick, attributes = {}) {
  const made = h("button", { type: "button", class: "button", ...attributes }, text);
  made.addEventListener("click", onClick);
  return made;
}

export function link(text, href, attributes = {}) {
  return h("a", { href, ...attributes }, text);
}

/** A labelled input; `field` has name, label and the input's attributes, `choices` for a list, `rows` for long text. */
export function input({ name, label, hint = "", choices = null, rows = null, value = "", ...attributes }) {
  const id = `field-${name}`;
  const described = hint ? { "aria-describedby": `${id}-hint` } : {};
  const common = { id, name, ...described, ...attributes };
  const control = choices
    ? h("select", common, ...choices.map((choice) => h("option", { value: choice, selected: choice === value && "" }, choice)))
    : rows
      ? h("textarea", { ...common, rows, spellcheck: "false" })
      : h("input", { autocomplete: "off", spellcheck: "false", ...common });
  if (!choices) control.value = value;
  return h("div", { class: "field" }, h("label", { for: id }, label), control, hint ? h("p", { class: "hint", id: `${id}-hint` }, hint) : null);
}

/** What a form's fields hold: numbers as numbers, empty fields left out. */
export function valuesOf(form) {
  const named = [...form.elements].filter((element) => element.name && element.value.trim() !== "");
  return Object.fromEntries(named.map((element) => [element.name, element.type === "number" ? Number(element.value) : element.value.trim()]));
}

/** What to tell of an error: the service's sentence and the lines of what to change. */
export function told(error) {
  if (error instanceof Refused && error.errors.length) return error.errors.join("\n");
  return error instanceof Unauthorised ? "You are signed out." : error.message;
}

/** What is wrong with what was entered, for the dialog that asked for it. */
export class Unusable extends Error {}

/**
 * Asks in a dialog, and calls `act` with the fields' values when the reader agrees. What the service says against it,
 * or an `Unusable`, is shown in the dialog, which then stays open.
 */
export function ask({ title, text, fields = [], action, danger = false }, act) {
  const wrong = h("p", { class: "wrong", role: "alert", hidden: "" });
  const agree = h("button", { type: "submit", class: danger ? "button danger" : "button primary" }, action);
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "dialog-title" }, title),
    text ? h("p", {}, text) : null,
    ...fields.map(input),
    wrong,
    h("div", { class: "buttons" }, button("Leave it", () => dialog.close()), agree),
  );
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title" }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    agree.disabled = true;
    try {
      await act(valuesOf(form));
      dialog.close();
    } catch (error) {
      wrong.textContent = told(error);
      wrong.hidden = false;
    } finally {
      agree.disabled = false;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
