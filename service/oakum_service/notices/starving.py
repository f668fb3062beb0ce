"""Finds starved trainers: those without nodes for long although they could run on nodes that are idle."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.orders import hold
from oakum_service.states import LIVE_STATES
from oakum_solver.plan import Why


def starving(session: Session, now: float, after_s: float) -> list[tuple[Trainer, str]]:
    """Starved trainers, each with the text of its notice: they have waited `after_s` seconds or more, and the
    newest plan could have given them nodes. During a hold there are none."""
    if hold.current(session) is not None:
        return []
    plan = session.scalars(select(PlanRecord).order_by(PlanRecord.id.desc()).limit(1)).first()
    if plan is None:
        return []
    granted = sum(len(grant.nodes) for grant in plan.allocations.values())
    waiting = select(Trainer).where(Trainer.state.in_(LIVE_STATES), Trainer.waiting_since <= now - after_s)
    notices = []
    for trainer in session.scalars(waiting):
        grant = plan.allocations.get(trainer.id)
        if grant is None or grant.nodes or grant.why == Why.NO_IDLE_NODE:
            continue
        if grant.why == Why.BELOW_MINIMUM and granted < trainer.spec.min_nodes:
            continue  # all nodes together are too few for this trainer, whoever has them
        waited_min = (now - (trainer.waiting_since or now)) / 60
        notices.append((trainer, f"has waited {waited_min:.0f} min, though nodes are idle: {grant.reason}"))
    return notices
