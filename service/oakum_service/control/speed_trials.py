"""Which trainers have a speed trial before them, from the database; `oakum_solver.speed_trials` has the rules."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.progress import MeasuredRate
from oakum_service.db.models.trainers import Trainer
from oakum_solver.speed_trials import is_tried


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
    tried = {trainer for trainer in unknown if is_tried(unknown[trainer], node_s[trainer])}
    return set(unknown) - set(measured.scalars()) - tried
