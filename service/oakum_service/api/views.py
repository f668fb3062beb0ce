"""Documents of the API made from rows of the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.api.schemas import AllocationView, Explanation, MeasuredRateView, PlanView, TrainerView
from oakum_service.control.rates import measured_rates
from oakum_service.db.models import Fragment, MeasuredRate, PlanRecord, Trainer
from oakum_service.errors import NotFound
from oakum_service.states import TrainerState
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
    members = [fragment for trainer in trainers for fragment in trainer.members]
    rows = session.execute(select(Fragment.id, Fragment.node).where(Fragment.id.in_(members)))
    nodes = dict(rows.all())
    plan = current_plan(session)
    allocations = plan.allocations if plan is not None else {}
    rates = measured_rates(session, [trainer.id for trainer in trainers])
    return [
        _view(trainer, nodes, allocations.get(trainer.id, {}), rates.get(trainer.id, [])) for trainer in trainers
    ]


def _view(
    trainer: Trainer, nodes: Mapping[str, str], allocation: Mapping[str, Any], rates: Sequence[MeasuredRate]
) -> TrainerView:
    progress = trainer.progress
    state = TrainerState(trainer.state)
    running = state is TrainerState.RUNNING
    return TrainerView(
        id=trainer.id,
        name=trainer.name,
        state=state,
        message=trainer.message,
        spec=TrainerSpec.model_validate(trainer.spec),
        user=trainer.user_name,
        submitted_at=trainer.submitted_at,
        started_at=trainer.started_at,
        ended_at=trainer.ended_at,
        generation=trainer.generation,
        nodes=[nodes[member] for member in trainer.members],
        granted=[] if state.ended else allocation.get("nodes", []),
        step=progress.get("step", 0),
        total_steps=progress.get("total_steps"),
        epoch=progress.get("epoch", 0),
        samples=progress.get("samples", 0),
        loss=progress.get("loss"),
        samples_per_s=progress.get("samples_per_s") if running else None,
        checkpoint_step=progress.get("checkpoint_step"),
        metrics=progress.get("metrics", {}),
        steps_at_size={int(size): steps for size, steps in trainer.steps_at_size.items()},
        measured_rates=[
            MeasuredRateView(nodes=rate.nodes, samples_per_s=rate.samples / rate.seconds, seconds=rate.seconds)
            for rate in rates
        ],
        nodes_lost=trainer.nodes_lost,
        nodes_gained=trainer.nodes_gained,
        rescales=trainer.rescales,
        stall_s=trainer.stall_s,
        last_stall_s=trainer.last_stall_s,
        reason="" if state.ended else allocation.get("reason", ""),
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
