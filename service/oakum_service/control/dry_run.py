"""What a trainer would get if it were submitted now: the present allocation problem with it added, solved and
not recorded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from sqlalchemy.orm import Session

from oakum_service import clock
from oakum_service.config import Settings
from oakum_service.control.new_trainers import new_trainer
from oakum_service.control.observe import Observation, newest_observation
from oakum_service.control.plan import pose
from oakum_service.db.models.trainers import Trainer
from oakum_service.errors import Conflict
from oakum_solver import problem as solver
from oakum_solver.plan import Allocation, Plan
from oakum_solver.solve import solve
from oakum_worker.spec import TrainerSpec

_LONGEST_SOLVE_S = 2.0


@dataclass(frozen=True)
class Prospect:
    """What the candidate would get from a plan made with it, and the plan and the problem behind it. Times are
    seconds from now; None where not known."""

    plan: Plan
    problem: solver.Problem
    candidate: str
    """The candidate's id in plan and problem."""
    nodes: tuple[str, ...]
    start_in_s: float | None
    samples_per_s: float | None
    finish_in_s: float | None
    hole_ends_in_s: float | None
    slots_reason: str
    """Why each of its fragments would take so many slots; empty if its spec says that."""

    @property
    def given(self) -> Allocation:
        """What the plan gives the candidate."""
        return _allocation_of(self.plan, self.candidate)

    @property
    def changed(self) -> list[tuple[str, int, int]]:
        """(name, nodes now, nodes then) for each other trainer whose size would change."""
        names = {trainer.id: trainer.label for trainer in self.problem.trainers}
        others = [allocation for allocation in self.plan.allocations if allocation.trainer != self.candidate]
        sizes = [(names[a.trainer], len(self.problem.held[a.trainer]), len(a.nodes)) for a in others]
        return [size for size in sizes if size[1] != size[2]]


def pose_with_candidate(
    session: Session, settings: Settings, spec: TrainerSpec, user: str
) -> tuple[solver.Problem, Observation, Trainer]:
    """The present allocation problem with the candidate added, what it was made from, and the candidate.
    Raises `Conflict` before the first snapshot."""
    observed = newest_observation(session)
    if observed is None:
        raise Conflict("the scheduler has not been read yet: ask again in a moment")
    now = clock.now()
    candidate = new_trainer(spec, user, now)
    problem = pose(session, observed, settings, now, [candidate])
    limit_s = min(problem.time_limit_s, _LONGEST_SOLVE_S)
    return dataclasses.replace(problem, time_limit_s=limit_s), observed, candidate


def solve_for_candidate(
    problem: solver.Problem, observed: Observation, candidate: Trainer, total_samples: int | None
) -> Prospect:
    """Make the plan, and say what it means for the candidate, the problem's last trainer. Raises `ProblemError`
    if an administrator's objective has no value for it. Returns what the candidate would get."""
    plan = solve(problem)
    nodes = _allocation_of(plan, candidate.id).nodes
    startup_s = next(trainer.startup_s for trainer in problem.trainers if trainer.id == candidate.id)
    rate = _rate(candidate.spec, nodes, observed)
    start_s = startup_s if nodes else None
    finish_s = None
    if total_samples is not None and rate is not None and start_s is not None:
        finish_s = start_s + total_samples / rate
    granted = [observed.snapshot.node(name) for name in nodes]
    wanted_at = [node.announced_at for node in granted if node is not None and node.announced_at is not None]
    return Prospect(
        plan=plan,
        problem=problem,
        candidate=candidate.id,
        nodes=nodes,
        start_in_s=start_s,
        samples_per_s=rate,
        finish_in_s=finish_s,
        hole_ends_in_s=max(0.0, min(wanted_at) - clock.now()) if wanted_at else None,
        slots_reason=candidate.slots_reason,
    )


def _allocation_of(plan: Plan, trainer_id: str) -> Allocation:
    return next(allocation for allocation in plan.allocations if allocation.trainer == trainer_id)


def _rate(spec: TrainerSpec, nodes: tuple[str, ...], observed: Observation) -> float | None:
    """Samples/s on these nodes by the spec's curve; None if the spec has no curve for them."""
    if not nodes:
        return None
    points = spec.curve
    if spec.curves_by_type:
        granted = [observed.snapshot.node(name) for name in nodes]
        types = {node.node_type for node in granted if node is not None}
        points = spec.curves_by_type.get(types.pop(), ()) if len(types) == 1 else ()
    return solver.Curve(points).rate(len(nodes)) if points else None
