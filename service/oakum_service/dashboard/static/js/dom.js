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

/** Replaces children only where what they are made from differs. */
export function setChildren(element, key, make) {
  const fingerprint = JSON.stringify(key);
  if (element.dataset.made === fingerprint) return;
  element.dataset.made = fingerprint;
  element.replaceChildren(...make());
}

export function table(caption, columns, rows) {
  return h(
    "table",
    {},
    h("caption", { class: "for-readers" }, caption),
    h("thead", {}, h("tr", {}, ...columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))),
    h(
      "tbody",
      {},
      ...rows.map((row) =>
        h("tr", {}, ...row.map((cell, i) => (i ? h("td", { class: columns[i][1] }, cell) : h("th", { scope: "row" }, cell)))),
      ),
    ),
  );
}
