// Elements from names, attributes and text. Data only ever becomes text nodes and attribute values.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function s(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets text only where it differs, so that a reader's selection survives a refresh. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replaces children only where what they are made from differs. A focus on one of them goes to its successor. */
export function setChildren(element, key, make) {
  const fingerprint = JSON.stringify(key);
  if (element.dataset.made === fingerprint) return;
  element.dataset.made = fingerprint;
  const focused = element.querySelector(":focus");
  element.replaceChildren(...make());
  if (focused !== null) focusInstead(focused, element);
}

const FOCUSABLE = "a[href], button:not(:disabled), input:not(:disabled), select:not(:disabled), textarea:not(:disabled), summary, [tabindex]";

/**
 * Puts the focus, if nothing else has it, where a reader goes on whose element is gone or was disabled: on itself if it can
 * be used again, on its like within `near`, on what comes first there, or on the heading of the view.
 */
export function focusInstead(gone, near) {
  if (![null, document.body, gone].includes(document.activeElement)) return;
  const there = near?.isConnected ? [...near.querySelectorAll(FOCUSABLE)].filter((one) => one.checkVisibility()) : [];
  const next = there.find((one) => one === gone || likeness(one) === likeness(gone)) ?? there[0] ?? heading();
  next?.focus();
}

const likeness = ({ tagName, id, value, textContent, ariaLabel }) => JSON.stringify([tagName, id, value, textContent, ariaLabel]);

/** The heading of what is shown, which can take the focus. */
export function heading() {
  const found = document.querySelector("#view:not([hidden]) h2, #sign-in:not([hidden]) h2, #overview h2");
  found.tabIndex = -1;
  return found;
}

/** The class of a table whose rows are cards on a phone. */
export const CARDS = "cards-on-phones";

export function table(caption, columns, rows, style = "") {
  return h(
    "table",
    { class: style },
    h("caption", { class: "for-readers" }, caption),
    h("thead", {}, h("tr", {}, ...columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))),
    h(
      "tbody",
      {},
      ...rows.map((row) =>
        h("tr", {}, ...row.map((cell, i) => (i ? h("td", { class: columns[i][1], "data-title": columns[i][0] }, cell) : h("th", { scope: "row", class: columns[0][1] }, cell)))),
      ),
    ),
  );
}
