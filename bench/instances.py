"""Draws random allocation problems like those of the BFTrainer paper (arXiv:2106.12091).

A problem shows a cluster just after an event: the idle nodes arrived in cohorts, one cohort has left, and trainers
hold blocks of the remaining nodes. Trainers hold four fifths of the nodes, or fewer if all have their maximum.
"""

from __future__ import annotations

import numpy as np

from oakum_solver.problem import Curve, NodeGroup, PlannedTrainer, Problem, Terms
from oakum_solver.replay.workload import PAPER_NODES, PAPER_RATES

NUM_COHORTS = 8
_HELD = 0.8
_BLOCK_NODES = 8
"""Largest block of neighbouring nodes that one trainer holds; blocks have 1 to this many nodes."""
_CURVE_SPREAD = 0.05
"""Relative random variation of the rate at each breakpoint, so that no two trainers are exactly alike."""
_HORIZON_S = (60.0, 3600.0)


def random_problem(num_trainers: int, num_nodes: int, seed: int, terms: Terms) -> Problem:
    """A random problem on at least `NUM_COHORTS` nodes; equal arguments give equal problems.

    Besides the problem's own terms, `terms` changes only the start-up times, which are 0 s where they do not
    count.
    """
    rng = np.random.default_rng((seed, num_trainers, num_nodes))
    startup_s = 20.0 if terms.startup else 0.0
    trainers = tuple(_trainer(rng, index, startup_s) for index in range(num_trainers))
    leaving = num_nodes // NUM_COHORTS
    owners = _owners(rng, trainers, num_nodes + leaving)[:num_nodes]
    return Problem(trainers, _groups(rng, owners), look_ahead_s=120.0, terms=terms)


def _trainer(rng: np.random.Generator, index: int, startup_s: float) -> PlannedTrainer:
    name = str(rng.choice(list(PAPER_RATES)))
    rates = np.array(PAPER_RATES[name]) * rng.uniform(1 - _CURVE_SPREAD, 1 + _CURVE_SPREAD, len(PAPER_NODES))
    return PlannedTrainer(
        f"{name}-{index}",
        Curve(tuple(zip(PAPER_NODES, rates.tolist(), strict=True))),
        max_nodes=PAPER_NODES[-1],
        grow_stall_s=rng.uniform(17.0, 19.0),
        shrink_stall_s=rng.uniform(11.0, 13.0),
        startup_s=startup_s,
    )


def _owners(rng: np.random.Generator, trainers: tuple[PlannedTrainer, ...], num_nodes: int) -> list[str | None]:
    """For each node the trainer that holds it, in blocks of random length and order."""
    room = {trainer.id: trainer.max_nodes for trainer in trainers}
    left = round(_HELD * num_nodes)
    blocks: list[list[str | None]] = []
    while left and room:
        owner = str(rng.choice(list(room)))
        size = min(int(rng.integers(1, _BLOCK_NODES + 1)), room[owner], left)
        blocks.append([owner] * size)
        left -= size
        room[owner] -= size
        if not room[owner]:
            del room[owner]
    free = num_nodes - sum(map(len, blocks))
    blocks += [[None] * min(_BLOCK_NODES, free - start) for start in range(0, free, _BLOCK_NODES)]
    return [owner for index in rng.permutation(len(blocks)) for owner in blocks[index]]


def _groups(rng: np.random.Generator, owners: list[str | None]) -> tuple[NodeGroup, ...]:
    """Cohorts of random size and forecast end, each split by owner."""
    cuts = np.sort(rng.choice(np.arange(1, len(owners)), NUM_COHORTS - 1, replace=False))
    cohorts = np.searchsorted(cuts, np.arange(len(owners)), side="right")
    shortest_s, longest_s = _HORIZON_S
    horizons_s = shortest_s * (longest_s / shortest_s) ** rng.uniform(0.0, 1.0, NUM_COHORTS)
    nodes: dict[tuple[int, str | None], list[str]] = {}
    for index, owner in enumerate(owners):
        nodes.setdefault((int(cohorts[index]), owner), []).append(f"n{index:05d}")
    return tuple(
        NodeGroup(tuple(names), owner, horizon_s=float(horizons_s[cohort]), cohort=f"cohort-{cohort}")
        for (cohort, owner), names in nodes.items()
    )
