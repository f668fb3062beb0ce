"""Warm-ups: the node time before fragments join their first generation."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer


def warm_up_node_s(session: Session, trainers: Collection[str], now: float) -> dict[str, float]:
    """Trainer id -> node-seconds from the launch of its fragments to their first generation, or to their end
    before one."""
    until = func.coalesce(Fragment.training_at, now)
    past = select(Trainer.id, Trainer.past_warm_up_node_s).where(Trainer.id.in_(trainers))
    live = (
        select(Fragment.trainer_id, func.sum(Fragment.num_slots * (until - Fragment.launched_at)))
        .where(Fragment.trainer_id.in_(trainers), Fragment.ended_at.is_(None))
        .group_by(Fragment.trainer_id)
    )
    present = {trainer_id: max(0.0, seconds) for trainer_id, seconds in session.execute(live)}
    return {trainer_id: seconds + present.get(trainer_id, 0.0) for trainer_id, seconds in session.execute(past)}
