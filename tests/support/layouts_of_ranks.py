"""The best layouts of one number of ranks after the other, as an arranger searches them."""

from __future__ import annotations

from oakum_worker.parallel.link_costs import LinkCosts
from oakum_worker.parallel.pipeline.costs import ModelProfile
from oakum_worker.parallel.pipeline.layouts import Choices, Layout, choose


def best_layouts(num_ranks: int, profile: ModelProfile, links: LinkCosts, choices: Choices) -> tuple[Layout, ...]:
    """The best layouts of 1, 2, ... `num_ranks` ranks, each found with what is known of fewer."""
    known: dict[int, Layout] = {}
    for count in range(1, num_ranks + 1):
        known[count] = choose(count, profile, links, choices, known)
    return tuple(known.values())
