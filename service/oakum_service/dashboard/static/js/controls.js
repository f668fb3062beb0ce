// Buttons, links and fields, and the dialog that asks before something is done.

import { focusInstead, h, setText } from "./dom.js";
import { forgetDraft, keepDraft, restoreDraft } from "./drafts.js";
import { FieldFaults } from "./faults.js";

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
  if (!choices) control.defaultValue = value;
  return h("div", { class: "field" }, h("label", { for: id }, label), control, hint ? h("p", { class: "hint", id: `${id}-hint` }, hint) : null);
}

/** What a form's fields hold: numbers as numbers, empty fields left out. */
export function valuesOf(form) {
  const named = [...form.elements].filter((element) => element.name && element.value.trim() !== "");
  return Object.fromEntries(named.map((element) => [element.name, element.type === "number" ? Number(element.value) : element.value.trim()]));
}

/**
 * Asks in a dialog, and calls `act` with the fields' values when the reader agrees. What the browser or the service says
 * against a value stands at its field, the rest below, and the dialog stays open. What has been typed is kept until it is
 * carried out or given up. A field's `sends` is the name that the service has for it, if it is another.
 */
export function ask({ title, text, fields = [], action, danger = false }, act) {
  const opener = document.activeElement;
  const near = opener.parentElement?.closest("[id]");
  const faults = new FieldFaults();
  const wrong = h("p", { class: "wrong", role: "alert", hidden: "" });
  const agree = h("button", { type: "submit", class: danger ? "button danger" : "button primary" }, action);
  const form = h(
    "form",
    { method: "dialog", novalidate: "" },
    h("h2", { id: "dialog-title" }, title),
    text ? h("p", {}, text) : null,
    ...fields.map(({ sends, ...field }) => faults.add(sends ?? field.name, input(field))),
    wrong,
    h("div", { class: "buttons" }, button("Leave it", () => dialog.close()), agree),
  );
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title" }, form);
  const refuse = (marked, rest) => {
    faults.mark(marked);
    setText(wrong, rest.join("\n"));
    wrong.hidden = rest.length === 0;
    if (!faults.focus()) agree.focus();
  };
  form.addEventListener("input", ({ target }) => {
    faults.unmark(target);
    keepDraft(title, form);
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const marked = faults.unusable();
    if (marked.size) {
      refuse(marked, []);
      return;
    }
    agree.disabled = true;
    try {
      await act(valuesOf(form));
      dialog.close();
    } catch (error) {
      agree.disabled = false;
      const rest = faults.sort(error, marked);
      refuse(marked, rest);
    }
  });
  dialog.addEventListener("close", () => {
    forgetDraft(title);
    dialog.remove();
    focusInstead(opener, near);
  });
  document.body.append(dialog);
  restoreDraft(title, form);
  dialog.showModal();
}
