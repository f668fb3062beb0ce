"""Documents of the API made from rows of the database."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.api.schemas import (
    AllocationView,
    DurationView,
    Explanation,
    MeasuredRateView,
    PlanView,
    TimeSpent,
    TrainerView,
    WarmingFragment,
)
from oakum_service.control.accounts import Account, warm_up_node_s
from oakum_service.control.durations import START_UP, duration
from oakum_service.control.rates import measured_rates
from oakum_service.db.models import Fragment, FragmentState, MeasuredRate, PlanRecord, Trainer
from oakum_service.errors import NotFound
from oakum_service.states import STALLS, TimeUse, TrainerState
from oakum_worker.spec import TrainerSpec


def find_trainer(session: Session, ref: str) -> Trainer:
    """The trainer of that id, or the newest of that name. Raises `NotFound`."""
    trainer = session.get(Trainer, ref)
    if trainer is None:
        by_name = select(Trainer).where(Trainer.name == ref).order_by(Trainer.submitted_at.desc()).limit(1)
        trainer = session.execute(by_name).scalar_one_or_none()
    if trainer is None:
        raise NotFound(f"no trainer has the name or id {ref!r}: `oakum ps --all` lists them")
    return trainer


def current_plan(session: Session) -> PlanRecord | None:
    """The plan that holds."""
    return session.execute(select(PlanRecord).order_by(PlanRecord.id.desc()).limit(1)).scalar_one_or_none()


def trainer_view(session: Session, trainer: Trainer) -> TrainerView:
    """One trainer's document."""
    return trainer_views(session, [trainer])[0]


def trainer_views(session: Session, trainers: list[Trainer]) -> list[TrainerView]:
    """Several trainers' documents, with few queries."""
    ids = [trainer.id for trainer in trainers]
    members = [fragment for trainer in trainers for fragment in trainer.members]
    rows = session.execute(select(Fragment.id, Fragment.node).where(Fragment.id.in_(members)))
    nodes = dict(rows.all())
    plan = current_plan(session)
    allocations = plan.allocations if plan is not None else {}
    now = time.time()
    facts = _Facts(now, measured_rates(session, ids), _warming(session, ids), warm_up_node_s(session, ids, now))
    return [_view(trainer, nodes, allocations.get(trainer.id, {}), facts) for trainer in trainers]


@dataclass(frozen=True)
class _Facts:
    """What is known of several trainers beside their rows, by trainer id."""

    now: float
    rates: Mapping[str, Sequence[MeasuredRate]]
    warming: Mapping[str, Sequence[WarmingFragment]]
    warm_up_node_s: Mapping[str, float]


def _warming(session: Session, trainers: list[str]) -> dict[str, list[WarmingFragment]]:
    rows = session.execute(
        select(Fragment)
        .where(
            Fragment.trainer_id.in_(trainers),
            Fragment.state != FragmentState.ENDED,
            Fragment.training_at.is_(None),
            Fragment.released.is_(False),
        )
        .order_by(Fragment.launched_at, Fragment.node)
    ).scalars()
    found: dict[str, list[WarmingFragment]] = {}
    for row in rows:
        found.setdefault(row.trainer_id, []).append(WarmingFragment(node=row.node, launched_at=row.launched_at))
    return found


def _view(trainer: Trainer, nodes: Mapping[str, str], allocation: Mapping[str, Any], facts: _Facts) -> TrainerView:
    progress = trainer.progress
    state = TrainerState(trainer.state)
    running = state is TrainerState.RUNNING
    spec = TrainerSpec.model_validate(trainer.spec)
    return TrainerView(
        id=trainer.id,
        name=trainer.name,
        state=state,
        message=trainer.message,
        spec=spec,
        user=trainer.user_name,
        submitted_at=trainer.submitted_at,
        started_at=trainer.started_at,
        ended_at=trainer.ended_at,
        generation=trainer.generation,
        nodes=[nodes[member] for member in trainer.members],
        granted=[] if state.ended else allocation.get("nodes", []),
        warming=[] if state.ended else [*facts.warming.get(trainer.id, ())],
        step=progress.get("step", 0),
        total_steps=progress.get("total_steps"),
        epoch=progress.get("epoch", 0),
        samples=progress.get("samples", 0),
        total_samples=progress.get("total_samples"),
        global_batch=progress.get("global_batch") or spec.global_batch,
        learning_rate=progress.get("learning_rate"),
        loss=progress.get("loss"),
        samples_per_s=progress.get("samples_per_s") if running else None,
        checkpoint_step=trainer.checkpoint_step,
        checkpoint_at=trainer.checkpoint_at,
        metrics=progress.get("metrics", {}),
        steps_at_size={int(size): steps for size, steps in trainer.steps_at_size.items()},
        measured_rates=[
            MeasuredRateView(nodes=rate.nodes, samples_per_s=rate.samples / rate.seconds, seconds=rate.seconds)
            for rate in facts.rates.get(trainer.id, ())
        ],
        nodes_lost=trainer.nodes_lost,
        nodes_gained=trainer.nodes_gained,
        rescales=trainer.rescales,
        stall_s=trainer.stall_s,
        last_stall_s=trainer.last_stall_s,
        stalls={kind: stall for kind in STALLS if (stall := _duration(trainer, kind)) is not None},
        start_up=_duration(trainer, START_UP),
        time_spent=_time_spent(trainer, facts),
        reason="" if state.ended else allocation.get("reason", ""),
    )


def _duration(trainer: Trainer, kind: str) -> DurationView | None:
    known = duration(trainer.durations, kind)
    return None if known is None else DurationView(**dataclasses.asdict(known))


def _time_spent(trainer: Trainer, facts: _Facts) -> TimeSpent | None:
    account = Account.of(trainer.account)
    if account is None:
        return None
    spent_s = account.spent_s(facts.now)
    return TimeSpent(
        since_at=account.began_at,
        training_s=max(0.0, spent_s[TimeUse.TRAINING]),
        grow_s=spent_s[TimeUse.GROW],
        shrink_s=spent_s[TimeUse.SHRINK],
        loss_s=spent_s[TimeUse.LOSS],
        cold_start_s=spent_s[TimeUse.COLD_START],
        waiting_s=spent_s[TimeUse.WAITING],
        redone_s=account.redone_s,
        redone_steps=account.redone_steps,
        warm_up_node_s=facts.warm_up_node_s.get(trainer.id, 0.0),
    )


def plan_view(session: Session, plan: PlanRecord) -> PlanView:
    """A plan's document, with the trainers' names."""
    rows = session.execute(select(Trainer.id, Trainer.name).where(Trainer.id.in_(plan.allocations)))
    names = dict(rows.all())
    return PlanView(
        id=plan.id,
        parent=plan.parent_id,
        snapshot=plan.snapshot,
        made_at=plan.made_at,
        solver=plan.solver,
        value=plan.value,
        bound=plan.bound,
        gap=max(0.0, plan.bound - plan.value) / max(abs(plan.bound), 1e-12),
        optimal=plan.optimal,
        solve_s=plan.solve_s,
        look_ahead_s=plan.look_ahead_s,
        objective=plan.objective,
        allocations=[
            AllocationView(
                trainer=names.get(trainer, trainer), nodes=given["nodes"], why=given["why"], reason=given["reason"]
            )
            for trainer, given in plan.allocations.items()
        ],
    )


def explanation(session: Session, trainer: Trainer) -> Explanation:
    """Why a trainer has its size, from the plan that holds."""
    plan = current_plan(session)
    given = plan.allocations.get(trainer.id) if plan is not None else None
    if given is None or TrainerState(trainer.state).ended:
        reason = (
            f"the trainer is {trainer.state}: {trainer.message}"
            if TrainerState(trainer.state).ended
            else "no plan has considered the trainer yet"
        )
        return Explanation(
            trainer=trainer.name, nodes=len(trainer.members), granted=0, why="no_plan", reason=reason, plan=None
        )
    assert plan is not None
    return Explanation(
        trainer=trainer.name,
        nodes=len(trainer.members),
        granted=len(given["nodes"]),
        why=given["why"],
        reason=given["reason"],
        plan=plan.id,
    )
