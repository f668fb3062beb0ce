"""Plan: the problem that the present state poses, and the solver's answer written down."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.config import Settings
from oakum_service.control import journal
from oakum_service.control.curves import curves_to_plan_with
from oakum_service.control.durations import START_UP, expected_s
from oakum_service.control.forecast import idle_nodes
from oakum_service.control.observe import Observed
from oakum_service.control.waits import wait_of
from oakum_service.db.models import PlanRecord, Trainer
from oakum_service.states import LIVE_STATES, TimeUse
from oakum_solver import problem as solver
from oakum_solver.forecast import group_nodes
from oakum_solver.plan import Plan
from oakum_worker.spec import TrainerSpec

_MOST_SAMPLES = 2**53
"""A trainer that tells of more, or of less than none, is not believed."""


def pose(session: Session, observed: Observed, settings: Settings) -> solver.Problem:
    """The allocation problem of this moment. Trainers go by name: those that have not ended have one each."""
    rows = session.execute(
        select(Trainer).where(Trainer.state.in_(LIVE_STATES)).order_by(Trainer.submitted_at, Trainer.id)
    )
    live = list(rows.scalars())
    names = {row.id: row.name for row in live}
    nodes = [
        dataclasses.replace(node, owner=names.get(node.owner)) if node.owner is not None else node
        for node in idle_nodes(session, observed.snapshot, 2 * settings.look_ahead_s, learned=settings.groups)
        if node.owner is None or node.owner in names
    ]
    curves = curves_to_plan_with(session, live, settings)
    trainers = tuple(_trainer(row, curves[row.id], settings) for row in live)
    return solver.Problem(
        trainers=trainers,
        groups=group_nodes(nodes),
        look_ahead_s=settings.look_ahead_s,
        objective=settings.objective,
        time_limit_s=settings.solver_limit_s,
        terms=settings.terms,
        user_caps=_user_caps(trainers, settings.user_cap),
        milp_solver=settings.milp_solver,
    )


def _user_caps(trainers: Iterable[solver.Trainer], cap: int | None) -> dict[str, int]:
    """The cap of each user whose trainers could take more."""
    if cap is None:
        return {}
    wanted: Counter[str] = Counter()
    for trainer in trainers:
        if trainer.user is not None:
            wanted[trainer.user] += trainer.max_nodes
    return {user: cap for user, nodes in wanted.items() if nodes > cap}


def _trainer(row: Trainer, curve: solver.Curve, settings: Settings) -> solver.Trainer:
    now = time.time()
    spec = TrainerSpec.model_validate(row.spec)
    curves_by_type = {node_type: solver.Curve(points) for node_type, points in spec.curves_by_type.items()}
    deadline_in_s = math.inf if spec.deadline is None else spec.deadline.timestamp() - now
    best_rate = max(known.rate(spec.max_nodes) for known in curves_by_type.values() or [curve])
    return solver.Trainer(
        id=row.name,
        curve=curve,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        weight=spec.weight,
        grow_stall_s=expected_s(row.durations, TimeUse.GROW, settings.stall_s),
        shrink_stall_s=expected_s(row.durations, TimeUse.SHRINK, settings.stall_s),
        startup_s=min(expected_s(row.durations, START_UP, settings.start_up_s), settings.look_ahead_s / 2),
        curves_by_type=curves_by_type or None,
        mixes_types=spec.mixes_types,
        priority=spec.priority,
        user=row.user_name,
        guaranteed=settings.starvation_guard.guarantees(wait_of(row)),
        attained_samples=_believed(row.progress.get("samples", 0)),
        remaining_samples=_remaining_samples(row, spec, best_rate * max(deadline_in_s, settings.look_ahead_s)),
        deadline_in_s=deadline_in_s,
        waited_s=0.0 if row.waiting_since is None else max(0.0, now - row.waiting_since),
    )


def _remaining_samples(row: Trainer, spec: TrainerSpec, most: float) -> float:
    """Samples to the trainer's end; where only its steps are known, each batch is taken as a whole one.

    Nobody knows them of a trainer that was never built. It is taken to need `most`, all that it can make until its
    deadline: if it had no end, the objective `deadline` would care for it least of all.
    """
    if not row.progress:
        return most
    if (total := row.progress.get("total_samples")) is not None:
        return _believed(total - row.progress["samples"])
    return _believed((row.progress["total_steps"] - row.progress["step"]) * spec.global_batch)


def _believed(samples: int) -> float:
    return float(min(max(0, samples), _MOST_SAMPLES))


def write_plan(session: Session, plan: Plan, problem: solver.Problem, observed: Observed) -> PlanRecord:
    """Record the plan if it decides anything new; returns the plan that holds."""
    parent = session.execute(select(PlanRecord).order_by(PlanRecord.id.desc()).limit(1)).scalar_one_or_none()
    ids = _ids(session, [allocation.trainer for allocation in plan.allocations])
    allocations = {
        ids[allocation.trainer]: {
            "nodes": list(allocation.nodes),
            "why": allocation.reason.why,
            "reason": allocation.reason.text,
        }
        for allocation in plan.allocations
        if allocation.trainer in ids  # else it ended while the solver worked
    }
    if parent is not None and _same(parent.allocations, allocations):
        return parent
    row = PlanRecord(
        parent_id=parent.id if parent is not None else None,
        snapshot=observed.number,
        made_at=time.time(),
        objective=str(problem.objective),
        look_ahead_s=problem.look_ahead_s,
        value=plan.value,
        bound=plan.bound,
        solver=plan.solver,
        solve_s=plan.solve_s,
        optimal=plan.optimal,
        allocations=allocations,
    )
    session.add(row)
    session.flush()
    names = dict(session.execute(select(Trainer.id, Trainer.name).where(Trainer.id.in_(allocations))).all())
    sizes = ", ".join(f"{names[trainer]} {len(given['nodes'])}" for trainer, given in allocations.items())
    journal.record(session, "plan.made", f"plan {row.id}", sizes or "no trainer", plan=row.id)
    return row


def _ids(session: Session, names: list[str]) -> dict[str, str]:
    """Name -> id of the trainers that have not ended, in the order of `names`."""
    rows = session.execute(
        select(Trainer.name, Trainer.id).where(Trainer.name.in_(names), Trainer.state.in_(LIVE_STATES))
    )
    found = dict(rows.all())
    return {name: found[name] for name in names if name in found}


def _same(before: Mapping[str, Mapping[str, object]], now: Mapping[str, Mapping[str, object]]) -> bool:
    """Whether two plans grant the same for the same reasons; the numbers in the sentences may differ."""
    return {t: (g["nodes"], g["why"]) for t, g in before.items()} == {
        t: (g["nodes"], g["why"]) for t, g in now.items()
    }
