// Which field each line of a refusal is about, and how a form shows it.

import { Refused, Unauthorised, Unreachable } from "./api.js";
import { h, setText } from "./dom.js";

const WORD = /[A-Za-z_]\w*/g;
const QUOTED = /(["'])(.+?)\1/g;
/** Answers that are about no value: what one may not do, and what has changed meanwhile. */
const ABOUT_NO_VALUE = new Set([403, 412]);

/** What is wrong with what was entered, for the form that asked for it; `field` is the field that it is about, if it is one. */
export class Unusable extends Error {
  constructor(message, field = null) {
    super(message);
    this.field = field;
  }
}

/** What to tell of an error: the service's sentence, or a line for each thing to change. */
export function linesOf(error) {
  if (error instanceof Refused && error.errors.length) return error.errors;
  if (error instanceof Unauthorised) return ["You are signed out."];
  return [error instanceof Unreachable ? `Cannot reach the service: ${error.message}. Try again.` : error.message];
}

export function told(error) {
  return linesOf(error).join("\n");
}

/** What to tell in the place of a part of a view that does not come, and why. Refreshes ask again by themselves. */
export function notLoaded(why) {
  return `Not loaded: ${why}.`;
}

/** The place, such as "checkpoint.every_s", with which a line of the service begins or that it calls unknown; "" if there is none. */
export function placeOf(line) {
  const [, , unknown = null] = /^unknown field (["'])(.+?)\1/.exec(line) ?? [];
  return unknown ?? /^(?:spec: |body\.)?([A-Za-z_]\w*(?:\.\w+)*)[:\s]/.exec(line)?.[1] ?? "";
}

/** Which of the fields, name -> value, a line is about: whose place it begins with, whose value it quotes, or that it names first; null if it is none. */
function fieldOf(line, values) {
  const [first] = placeOf(line).split(".");
  if (values.has(first)) return first;
  const quoted = new Set([...line.matchAll(QUOTED)].map(([, , text]) => text));
  const quotes = (value) => [value.trim(), ...value.split(/[\s,]+/)].some((part) => quoted.has(part));
  const [own] = [...values].find(([, value]) => quotes(value)) ?? [];
  return own ?? line.match(WORD)?.find((word) => values.has(word)) ?? null;
}

function objectionTo(control) {
  const isBlank = control.required && control.value.trim() === "" && !control.validity.badInput;
  return isBlank ? "Fill it in." : control.validationMessage;
}

/** The fields of a form, to which it puts what is wrong with each, where the reader and a screen reader find it. */
export class FieldFaults {
  #fields = new Map();

  /** Takes a field as `input` makes it, by the name that the service has for it. Returns the field. */
  add(name, field) {
    const control = field.querySelector("input, select, textarea");
    const place = h("p", { class: "wrong", id: `wrong-${control.name}`, hidden: "" });
    control.setAttribute("aria-describedby", [control.getAttribute("aria-describedby"), place.id].filter(Boolean).join(" "));
    field.append(place);
    this.#fields.set(name, { control, place });
    return field;
  }

  /** Name -> what the browser has against the value: it is missing, no number, or out of bounds. */
  unusable() {
    return new Map([...this.#fields].map(([name, { control }]) => [name, objectionTo(control)]).filter(([, line]) => line));
  }

  /** Adds to `wrong`, name -> what is wrong, the error's lines that are about a field; returns the others. */
  sort(error, wrong) {
    if (error instanceof Unusable && error.field !== null) {
      wrong.set(error.field, error.message);
      return [];
    }
    const rest = [];
    const isAboutValues = error instanceof Refused && !ABOUT_NO_VALUE.has(error.status);
    const values = new Map([...this.#fields].map(([name, { control }]) => [name, control.value]));
    for (const line of linesOf(error)) {
      const name = isAboutValues ? fieldOf(line, values) : null;
      if (name === null) rest.push(line);
      else wrong.set(name, wrong.has(name) ? `${wrong.get(name)}\n${line}` : line);
    }
    return rest;
  }

  /** Marks the fields of `wrong`, and no others. */
  mark(wrong) {
    for (const [name, { control, place }] of this.#fields) {
      const line = wrong.get(name) ?? "";
      setText(place, line);
      place.hidden = line === "";
      if (line) control.setAttribute("aria-invalid", "true");
      else control.removeAttribute("aria-invalid");
    }
  }

  /** Takes the mark from a control, whose value is being changed. */
  unmark(changed) {
    for (const { control, place } of this.#fields.values()) {
      if (control !== changed) continue;
      control.removeAttribute("aria-invalid");
      place.hidden = true;
    }
  }

  /** Puts the focus on the first field that is marked; returns whether there is one. */
  focus() {
    const first = [...this.#fields.values()].find(({ place }) => !place.hidden)?.control;
    first?.closest("details")?.setAttribute("open", "");
    first?.focus();
    return first !== undefined;
  }
}
