"""Speed trials: a trainer of unknown speed gets its minimum of nodes at once, so that it is measured.

No objective can value a trainer of unknown speed, so none decides over its first nodes. A trial ends when a rate
was measured, or after `LONGEST_S` on the minimum of nodes without a measurement.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.progress import MeasuredRate
from oakum_service.db.models.trainers import Trainer
from oakum_solver import problem as solver

LONGEST_S = 300.0
"""Longest trial in seconds: more than any start-up and a few slow steps. A slower trainer then waits like all
others."""


def unmeasured(session: Session, trainers: Sequence[Trainer], now: float) -> set[str]:
    """Ids of the trainers whose speed was neither given, predicted nor measured, and whose trial is not over."""
    unknown = {
        trainer.id: trainer.spec.min_nodes
        for trainer in trainers
        if not trainer.spec.curve
        and not trainer.spec.curves_by_type
        and not (trainer.progress is not None and trainer.progress.predicted_curve)
    }
    if not unknown:
        return set()
    measured = session.execute(select(MeasuredRate.trainer_id).where(MeasuredRate.trainer_id.in_(unknown)))
    have = session.execute(
        select(Fragment.trainer_id, func.sum(Fragment.num_slots * (now - Fragment.launched_at)))
        .where(Fragment.trainer_id.in_(unknown), Fragment.ended_at.is_(None))
        .group_by(Fragment.trainer_id)
    )
    node_s: dict[str, float] = dict(have.all())
    for trainer in trainers:
        node_s[trainer.id] = node_s.get(trainer.id, 0.0) + trainer.past_node_s
    tried = {trainer for trainer in unknown if node_s[trainer] >= LONGEST_S * unknown[trainer]}
    return set(unknown) - set(measured.scalars()) - tried


def guaranteed_now(
    trainers: Sequence[solver.PlannedTrainer], unknown: Collection[str], held: Mapping[str, int], num_nodes: int
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
