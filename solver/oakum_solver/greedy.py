"""A good plan in one pass: the incumbent that the MILP has to beat, and the answer where the MILP fails."""

from __future__ import annotations

from oakum_solver.relaxation import Relaxation
from oakum_solver.value import ValueTable, total_value

Sizes = dict[str, int]
"""Trainer id -> number of nodes."""


def greedy_sizes(values: ValueTable, held: Sizes, num_nodes: int, relaxation: Relaxation) -> Sizes:
    """The better of two fillings: the relaxation's whole steps, and everyone staying as it is.

    Both are filled up with the jumps of the best value per node, a jump going as far as a minimum size or a
    bend of a non-concave curve demands. So the answer is never worth less than changing nothing.
    """
    candidates = [relaxation.sizes, _staying(values, held)]
    filled = [fill(values, sizes, num_nodes) for sizes in candidates]
    return max(filled, key=lambda sizes: total_value(values, sizes))


def _staying(values: ValueTable, held: Sizes) -> Sizes:
    """Every trainer at the largest allowed size that it already has."""
    return {trainer: max(nodes for nodes in table if nodes <= held[trainer]) for trainer, table in values.items()}


def fill(values: ValueTable, sizes: Sizes, num_nodes: int) -> Sizes:
    sizes = dict(sizes)
    left = num_nodes - sum(sizes.values())
    jumps = {trainer: _best_jump(table, sizes[trainer], left) for trainer, table in values.items()}
    while left > 0 and any(slope > 0 for slope, _ in jumps.values()):
        trainer = max(jumps, key=lambda trainer: jumps[trainer][0])
        left -= jumps[trainer][1] - sizes[trainer]
        sizes[trainer] = jumps[trainer][1]
        for other, (_, end) in jumps.items():
            if other == trainer or end - sizes[other] > left:
                jumps[other] = _best_jump(values[other], sizes[other], left)
    return sizes


def _best_jump(table: dict[int, float], start: int, left: int) -> tuple[float, int]:
    """The jump from `start` by at most `left` nodes with the most value per node: (value per node, end)."""
    jumps = (
        ((value - table[start]) / (end - start), end)
        for end, value in table.items()
        if start < end <= start + left
    )
    return max(jumps, key=lambda jump: (jump[0], -jump[1]), default=(0.0, start))
