"""Which plan would be made now, and which if trainers, bounds, nodes or the objective were others: computed,
recorded nowhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlalchemy.orm import Session

from oakum_service import clock
from oakum_service.config import Settings
from oakum_service.control.new_trainers import new_trainer
from oakum_service.control.observe import newest_observation
from oakum_service.control.plan import pose
from oakum_service.documents.slots import node_of, nodes_of
from oakum_service.errors import Conflict
from oakum_solver.bundles import possible_sizes
from oakum_solver.errors import ProblemError
from oakum_solver.objectives import Objective
from oakum_solver.plan import Plan
from oakum_solver.problem import Host, NodeGroup, PlannedTrainer, Problem
from oakum_solver.solve import solve
from oakum_worker.spec import TrainerSpec

_LONGEST_SOLVE_S = 2.0


@dataclass(frozen=True)
class Hypothesis:
    """What is assumed to be otherwise. Trainers are named by their ids."""

    added: Sequence[TrainerSpec] = ()
    removed: Collection[str] = ()
    changed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Trainer -> `PlannedTrainer`'s fields and what they would be: min_nodes, max_nodes, weight, priority."""
    drained: Collection[str] = ()
    """Nodes that nobody could use."""
    num_drained: int = 0
    """Further nodes that nobody could use: free ones, then others. Of more than there are, all."""
    objective: Objective | None = None


@dataclass(frozen=True)
class Outcome:
    """A plan that was not recorded, and the problem it solves."""

    plan: Plan
    problem: Problem
    new: frozenset[str]
    """Ids of the trainers that were added."""
    nodes_now: Mapping[str, tuple[str, ...]]
    """Trainer -> the nodes that it holds now, drained ones included."""

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """Trainer's id -> its name."""
        return {trainer.id: trainer.label for trainer in self.problem.trainers}


def foresee(
    session: Session, settings: Settings, hypothesis: Hypothesis, user: str
) -> tuple[Problem, Problem, frozenset[str]]:
    """The present allocation problem, the one that the hypothesis makes of it, and the ids of added trainers,
    which are the user's. Raises `Conflict` before the first snapshot and for a node that no plan can give, and
    `ProblemError` for bounds that contradict each other."""
    observed = newest_observation(session)
    if observed is None:
        raise Conflict("the scheduler has not been read yet: ask again in a moment")
    now = clock.now()
    added = [new_trainer(spec, user, now) for spec in hypothesis.added]
    present = pose(session, observed, settings, now, added)
    limit_s = min(present.time_limit_s, _LONGEST_SOLVE_S)
    trainers = tuple(
        _changed(trainer, hypothesis.changed.get(trainer.id, {}), present.hosts)
        for trainer in present.trainers
        if trainer.id not in hypothesis.removed
    )
    groups = _groups(present.groups, hypothesis)
    supposed = dataclasses.replace(
        present,
        trainers=trainers,
        groups=groups,
        hosts=_hosts(present.hosts, groups),
        objective=present.objective if hypothesis.objective is None else hypothesis.objective,
        time_limit_s=limit_s,
    )
    return present, supposed, frozenset(row.id for row in added)


def outcome(present: Problem, supposed: Problem, new: frozenset[str]) -> Outcome:
    """Make the plan. Raises `ProblemError` if the objective has no value for some trainer."""
    return Outcome(solve(supposed), supposed, new, present.held)


def _changed(trainer: PlannedTrainer, fields: Mapping[str, Any], hosts: Sequence[Host]) -> PlannedTrainer:
    """The trainer with these fields; where its fragments have several slots, with the numbers of slots that new
    bounds leave. Raises `ProblemError` where that is none."""
    if trainer.bundle == 1 or fields.keys().isdisjoint({"min_nodes", "max_nodes", "sizes"}):
        return dataclasses.replace(trainer, **fields)
    low, high = fields.get("min_nodes", trainer.min_nodes), fields.get("max_nodes", trainer.max_nodes)
    listed = fields.get("sizes") or ()
    possible = possible_sizes(trainer.bundle, hosts, high)
    if not (sizes := [size for size in possible if low <= size and (not listed or size in listed)]):
        raise ProblemError(f"trainer {trainer.label}: no {low} to {high} slots are made of whole fragments")
    bounds = {"min_nodes": sizes[0], "max_nodes": sizes[-1], "sizes": tuple(sizes), "limit": ""}
    return dataclasses.replace(trainer, **{**fields, **bounds})


def _hosts(hosts: Sequence[Host], groups: Sequence[NodeGroup]) -> tuple[Host, ...]:
    """The hosts without the slots that are in no group."""
    left = {node for group in groups for node in group.nodes}
    return tuple(
        Host(
            tuple(node for node in host.nodes if node in left),
            host.size,
            tuple(bundle for bundle in host.bundles if left.issuperset(bundle)),
        )
        for host in hosts
    )


def _groups(groups: Sequence[NodeGroup], hypothesis: Hypothesis) -> tuple[NodeGroup, ...]:
    """The groups without the drained nodes, or slots; nodes of removed trainers are free."""
    plannable = {node for group in groups for node in group.nodes}
    if unknown := sorted(set(hypothesis.drained) - plannable - set(nodes_of(plannable))):
        raise Conflict(
            f"no plan can give {', '.join(unknown[:3])} to a trainer now, so draining it changes nothing: "
            "`oakum nodes` shows which nodes are holes"
        )
    freed = [
        dataclasses.replace(group, owner=None) if group.owner in hypothesis.removed else group for group in groups
    ]
    drained = {node for node in plannable if not {node, node_of(node)}.isdisjoint(hypothesis.drained)}
    left_nodes = [[node for node in group.nodes if node not in drained] for group in freed]
    missing = hypothesis.num_drained
    for at in sorted(range(len(freed)), key=lambda index: freed[index].owner is not None):
        taken = min(missing, len(left_nodes[at]))
        left_nodes[at] = left_nodes[at][: len(left_nodes[at]) - taken]
        missing -= taken
    return tuple(
        dataclasses.replace(group, nodes=tuple(nodes))
        for group, nodes in zip(freed, left_nodes, strict=True)
        if nodes
    )
