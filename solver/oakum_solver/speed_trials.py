"""Speed trials: a trainer of unknown speed gets its minimum of nodes at once, so that it is measured.

No objective can value a trainer of unknown speed, so none decides over its first nodes. A trial ends when a rate
was measured, or after `LONGEST_S` on the minimum of nodes without a measurement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from oakum_solver.problem import NodeGroup, PlannedTrainer

LONGEST_S = 300.0
"""Longest trial in seconds: more than any start-up and a few slow steps. A slower trainer then waits like all
others."""


def is_tried(min_nodes: int, had_node_s: float) -> bool:
    """Whether the trial of a trainer that was never measured is over: it has had `had_node_s` node-seconds."""
    return had_node_s >= LONGEST_S * min_nodes


def with_trials(
    trainers: tuple[PlannedTrainer, ...], unknown: Collection[str], groups: Sequence[NodeGroup]
) -> tuple[PlannedTrainer, ...]:
    """The trainers, of which those chosen for a speed trial get their minimum of nodes guaranteed. `unknown` has
    the ids of trainers whose speed is not known; `groups` are the idle nodes."""
    open_to: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for group in groups:
        open_to[group.access] += len(group.nodes)
        if group.owner is not None:
            held[group.owner] += len(group.nodes)
    unknown = {t.id for t in trainers if t.id in unknown and _could_have(t, open_to) >= t.min_nodes}
    if not unknown:
        return trainers
    tried = guaranteed_now(trainers, unknown, held, open_to.total())
    return tuple(replace(t, guaranteed=True) if t.id in tried else t for t in trainers)


def _could_have(trainer: PlannedTrainer, num_nodes: Mapping[str, int]) -> int:
    """Number of nodes that the trainer may have, held by others or not; `num_nodes` are all, by their labels."""
    return sum(n for label, n in num_nodes.items() if trainer.access is None or label in trainer.access)


def guaranteed_now(
    trainers: Sequence[PlannedTrainer], unknown: Collection[str], held: Mapping[str, int], num_nodes: int
) -> set[str]:
    """Which of the unmeasured trainers get their minimum now; `trainers` are in order of submission.

    `held`: number of nodes of each trainer, of `num_nodes` in all. All trials together get at most half of the
    nodes, or what measured trainers leave idle if that is more, so that measured trainers keep something. A trial
    larger than that runs alone. No trial takes nodes that trainers of higher priority have or need for their
    minimum.
    """
    known_hold = sum(held.get(trainer.id, 0) for trainer in trainers if trainer.id not in unknown)
    room = max(num_nodes // 2, num_nodes - known_hold)
    chosen: set[str] = set()
    used = 0
    for trainer in trainers:
        if trainer.id not in unknown:
            continue
        higher = (other for other in trainers if other.priority > trainer.priority)
        claimed = sum(max(held.get(other.id, 0), other.min_nodes) for other in higher)
        if used + trainer.min_nodes <= min(room if chosen else num_nodes, num_nodes - claimed):
            chosen.add(trainer.id)
            used += trainer.min_nodes
    return chosen
