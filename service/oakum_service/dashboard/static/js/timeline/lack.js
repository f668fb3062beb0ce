// Says over the picture that what is in view loads, or why it does not come: a row without a bar would look as if nothing
// had been there.

import { button } from "../controls.js";
import { h, setChildren } from "../dom.js";
import { notLoaded } from "../faults.js";

export class Lack {
  /** Why the last answer did not come; null if it did. */
  fault = null;

  constructor(root, retry) {
    this.root = root;
    this.retry = retry;
    this.element = h("p", { class: "lack", role: "status", hidden: "" });
    root.append(this.element);
  }

  show(isLacking) {
    const { fault } = this;
    this.root.setAttribute("aria-busy", String(isLacking && fault === null));
    this.element.hidden = !isLacking;
    this.element.classList.toggle("fault", fault !== null);
    setChildren(this.element, fault, () => (fault === null ? ["Loading…"] : [notLoaded(fault), " ", button("Try again", this.retry)]));
  }
}
