"""Checks that a plan obeys the rules of its problem and has the value that it claims.

Everything is recomputed from the plan and the problem, node by node, with code of its own, so that a bug in the
code that made the plan shows here. The only shared code is `objectives.worth`, for objectives that are not linear
in samples.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np

from oakum_solver.errors import InfeasiblePlanError
from oakum_solver.objectives import NamedObjective, TrainerFacts, worth
from oakum_solver.plan import Plan
from oakum_solver.problem import Curve, Host, NodeGroup, PlannedTrainer, Problem

Grants = Mapping[str, tuple[str, ...]]
"""Trainer id -> nodes."""

_TOLERANCE = 1e-6
"""Allowed relative difference between the plan's value and the recomputed one."""


def verify(problem: Problem, plan: Plan) -> None:
    """Raise `InfeasiblePlanError` with the first rule that the plan breaks."""
    expected = [trainer.id for trainer in problem.trainers]
    allocated = [allocation.trainer for allocation in plan.allocations]
    if allocated != expected:
        raise InfeasiblePlanError(f"the plan allocates to {allocated}: expected {expected}, in this order")
    _check_nodes(problem, plan)
    grants = {allocation.trainer: allocation.nodes for allocation in plan.allocations}
    for trainer in problem.trainers:
        _check_size(problem, grants, trainer)
        _check_no_migration(problem, grants, trainer)
        _check_access(problem, grants, trainer)
        _check_bundles(problem, grants, trainer)
    _check_caps(problem, grants)
    _check_value(problem, plan, grants)


def worth_of(problem: Problem, plan: Plan) -> float:
    """What a plan is worth for this problem, though it may have been made for other curves."""
    return _worth(problem, {allocation.trainer: allocation.nodes for allocation in plan.allocations})


def _worth(problem: Problem, grants: Grants) -> float:
    book = _Recomputation(problem)
    return math.fsum(book.value(trainer, grants[trainer.id]) for trainer in problem.trainers)


def _check_nodes(problem: Problem, plan: Plan) -> None:
    """Raise `InfeasiblePlanError` unless every granted node exists and is granted once."""
    existing = {node for group in problem.groups for node in group.nodes}
    granted_to: dict[str, str] = {}
    for allocation in plan.allocations:
        for node in allocation.nodes:
            if node not in existing:
                raise InfeasiblePlanError(f"{allocation.trainer} is granted {node}, which is in no group")
            if node in granted_to:
                raise InfeasiblePlanError(
                    f"{node} is granted to {granted_to[node]} and again to {allocation.trainer}"
                )
            granted_to[node] = allocation.trainer


def _check_size(problem: Problem, grants: Grants, trainer: PlannedTrainer) -> None:
    size = len(grants[trainer.id])
    if size and not trainer.min_nodes <= size <= trainer.max_nodes:
        raise InfeasiblePlanError(
            f"{trainer.label} is granted {size} nodes: expected 0 or {trainer.min_nodes} to {trainer.max_nodes}"
        )
    if size and trainer.sizes and size not in trainer.sizes:
        raise InfeasiblePlanError(
            f"{trainer.label} is granted {size} nodes: expected 0 or one of {', '.join(map(str, trainer.sizes))}"
        )


def _check_no_migration(problem: Problem, grants: Grants, trainer: PlannedTrainer) -> None:
    """Raise `InfeasiblePlanError` unless a growing trainer keeps all its nodes, and a shrinking or staying one
    gets no new node."""
    if problem.held[trainer.id] == grants[trainer.id]:
        return
    held, granted = set(problem.held[trainer.id]), set(grants[trainer.id])
    if not (held <= granted or granted <= held):
        raise InfeasiblePlanError(
            f"{trainer.label} gives up {sorted(held - granted)} and is granted {sorted(granted - held)}: "
            "expected it to keep its nodes where it gets others"
        )


def _check_access(problem: Problem, grants: Grants, trainer: PlannedTrainer) -> None:
    """Raise `InfeasiblePlanError` if the trainer is granted a new node that it may not have."""
    if trainer.access is None:
        return
    barred = {node for group in problem.groups if group.access not in trainer.access for node in group.nodes}
    if wrong := sorted(barred & set(grants[trainer.id]) - set(problem.held[trainer.id])):
        raise InfeasiblePlanError(f"{trainer.label} is granted {wrong[0]}, which it may not have")


def _check_bundles(problem: Problem, grants: Grants, trainer: PlannedTrainer) -> None:
    """Raise `InfeasiblePlanError` unless the trainer keeps each of its bundles as a whole or gives it up, and its
    new nodes on each host are bundles."""
    if trainer.bundle == 1:
        return
    held = set(problem.held[trainer.id])
    granted, new = set(grants[trainer.id]), set(grants[trainer.id]) - held
    for bundle in (set(bundle) for host in problem.hosts for bundle in host.bundles):
        if held >= bundle and granted & bundle and not granted >= bundle:
            raise InfeasiblePlanError(f"{trainer.label} is granted a part of its bundle {sorted(bundle)}")
    alone = new.difference(*(host.nodes for host in problem.hosts))
    for host in (*problem.hosts, *(Host((node,), 1) for node in alone)):
        slots = host.size if trainer.bundle == "host" else trainer.bundle
        if (of_host := sorted(new.intersection(host.nodes))) and len(of_host) % slots:
            raise InfeasiblePlanError(f"{trainer.label} is granted {of_host} of a host: expected {slots} together")


def _check_value(problem: Problem, plan: Plan, grants: Grants) -> None:
    value = _worth(problem, grants)
    slack = _TOLERANCE * max(1.0, abs(value))
    if not abs(plan.value - value) <= slack:
        raise InfeasiblePlanError(f"the plan claims the value {plan.value!r}: recomputed, it is {value!r}")
    if not plan.bound >= value - slack:
        raise InfeasiblePlanError(f"the plan claims the bound {plan.bound!r} and is worth {value!r}")


def _check_caps(problem: Problem, grants: Grants) -> None:
    """Raise `InfeasiblePlanError` if a user's trainers together have more nodes than the user's cap."""
    for user, cap in problem.user_caps.items():
        used = sum(len(grants[trainer.id]) for trainer in problem.trainers if trainer.user == user)
        if used > cap:
            raise InfeasiblePlanError(f"{user}'s trainers are granted {used} nodes: expected at most {cap}")


class _Recomputation:
    """Recomputes a plan's value node by node, by the definition in the docstring of `oakum_solver.value`."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.type_of: dict[str, str] = {}
        self.access_of: dict[str, str] = {}
        self.departure: dict[str, object] = {}
        """Node -> key that it shares with the nodes with which it leaves."""
        self.horizon_s: dict[object, float] = {}
        for group in problem.groups:
            departure = self._departure(group)
            self.horizon_s[departure] = min(group.horizon_s, self.horizon_s.get(departure, math.inf))
            for node in group.nodes:
                self.type_of[node] = group.node_type
                self.access_of[node] = group.access
                self.departure[node] = departure

    def _departure(self, group: NodeGroup) -> object:
        terms = self.problem.terms
        kind = group.node_type, group.access
        if terms.departures and group.cohort is not None:
            return kind, group.cohort
        return (kind, group.horizon_s) if terms.horizons or terms.departures else kind

    def value(self, trainer: PlannedTrainer, granted: tuple[str, ...]) -> float:
        """Value of the trainer with the nodes `granted`, in the objective's unit."""
        problem = self.problem
        samples = self._samples(trainer, granted)
        if problem.terms.completion:
            samples = min(samples, trainer.remaining_samples)
        match problem.objective:
            case NamedObjective.THROUGHPUT:
                return trainer.weight * samples
            case NamedObjective.SPEEDUP:
                return trainer.weight * samples / _rate_one(_fastest_curve(trainer))
            case NamedObjective.WEIGHTED:
                return trainer.weight * samples / _best_rate(trainer)
        facts = TrainerFacts(
            weight=trainer.weight,
            rate_one=_rate_one(_fastest_curve(trainer)),
            best_rate=_best_rate(trainer),
            attained_samples=trainer.attained_samples,
            remaining_samples=trainer.remaining_samples,
            deadline_in_s=trainer.deadline_in_s,
            waited_s=trainer.waited_s,
            priority=float(trainer.priority),
        )
        trained, nodes = np.array([[samples]]), np.array([[len(granted)]])
        return float(worth(problem.objective, facts, problem.look_ahead_s, trained, nodes)[0, 0])

    def _samples(self, trainer: PlannedTrainer, granted: tuple[str, ...]) -> float:
        terms, held = self.problem.terms, self.problem.held[trainer.id]
        before = self._rate(trainer, held)
        after = before if granted == held else self._rate(trainer, granted)
        samples = before * self._mean_s(held) if held else 0.0
        if len(granted) > len(held):
            new = set(granted) - set(held)
            startup_s = trainer.startup_s if terms.startup else 0.0
            samples += (after - before) * self._mean_s(new, startup_s)
            samples -= trainer.grow_stall_s * (after if terms.new_rate else before)
        elif len(granted) < len(held):
            lost = set(held) - set(granted)
            samples -= (before - after) * self._mean_s(lost)
            samples -= trainer.shrink_stall_s * (after if terms.new_rate else before)
        if terms.departures:
            for departure in {self.departure[node] for node in granted}:
                rest = tuple(node for node in granted if self.departure[node] != departure)
                leaves = 1.0 - self._stays(self.horizon_s[departure], self.problem.look_ahead_s)
                samples -= leaves * trainer.shrink_stall_s * self._rate(trainer, rest)
        return samples

    def _rate(self, trainer: PlannedTrainer, nodes: tuple[str, ...]) -> float:
        """The trainer's samples/s on these nodes; 0 below its minimum, and with a node that it cannot use."""
        if len(nodes) < trainer.min_nodes:
            return 0.0
        if trainer.access is not None and not {self.access_of[node] for node in nodes} <= trainer.access:
            return 0.0
        trained = max((size for size in trainer.sizes if size <= len(nodes)), default=len(nodes))
        if trained < trainer.min_nodes:
            return 0.0
        if trainer.curves_by_type is None:
            return trainer.curve.rate(trained)
        counts = Counter(self.type_of[node] for node in nodes)
        if not counts.keys() <= trainer.curves_by_type.keys() or (len(counts) > 1 and not trainer.mixes_types):
            return 0.0
        speeds = {kind: _rate_one(curve) for kind, curve in trainer.curves_by_type.items() if kind in counts}
        fastest = max(speeds, key=lambda node_type: speeds[node_type])
        curve = trainer.curves_by_type[fastest]
        effective = sum(count * speeds[node_type] for node_type, count in counts.items()) / speeds[fastest]
        effective *= trained / len(nodes)
        whole = int(effective + 1e-12)
        return curve.rate(whole) + (effective - whole) * (curve.rate(whole + 1) - curve.rate(whole))

    def _mean_s(self, nodes: Collection[str], from_s: float = 0.0) -> float:
        """Mean seconds after `from_s` for which the nodes stay idle within the look-ahead; all seconds of the
        look-ahead after `from_s` where the problem leaves forecasts out."""
        if not self.problem.terms.horizons:
            return max(0.0, self.problem.look_ahead_s - from_s)
        return sum(self._lasts_s(node, from_s) for node in nodes) / len(nodes)

    def _lasts_s(self, node: str, from_s: float = 0.0) -> float:
        """Expected seconds between `from_s` and the end of the look-ahead for which the node is still idle for
        us."""
        look_ahead_s = self.problem.look_ahead_s
        if from_s >= look_ahead_s:
            return 0.0
        horizon_s = self.horizon_s[self.departure[node]]
        if horizon_s == math.inf:
            return look_ahead_s - from_s
        if horizon_s <= 0:
            return 0.0
        return -horizon_s * self._stays(horizon_s, from_s) * math.expm1((from_s - look_ahead_s) / horizon_s)

    @staticmethod
    def _stays(horizon_s: float, seconds: float) -> float:
        """Probability exp(-seconds / horizon_s) that a hole of mean length `horizon_s` lasts longer than
        `seconds`."""
        return math.exp(-seconds / horizon_s) if horizon_s > 0 else 0.0


def _fastest_curve(trainer: PlannedTrainer) -> Curve:
    if trainer.curves_by_type is None:
        return trainer.curve
    return max(trainer.curves_by_type.values(), key=_rate_one)


def _best_rate(trainer: PlannedTrainer) -> float:
    return _fastest_curve(trainer).rate(trainer.max_nodes) or 1.0


@functools.lru_cache(maxsize=4096)
def _rate_one(curve: Curve) -> float:
    first_nodes, first_rate = next((point for point in curve.points if point[1] > 0), (1, 1.0))
    return curve.rate(1) or first_rate / first_nodes
