// A trainer's tags: words by which it is found.

import { link } from "./controls.js";
import { address } from "./router.js";

/** The tags of a trainer; none where an older service tells of it. */
export const tagsOf = ({ spec }) => spec.tags ?? [];

/** A chip for each tag, which leads to the trainers that have it. */
export function chips(tags) {
  return tags.map((tag) => link(tag, address(["trainers"], { q: tag, state: "all" }), { class: "chip" }));
}
