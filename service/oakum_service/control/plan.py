"""Plan: poses the present state as an allocation problem, and records the solver's answer."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.config import Settings
from oakum_service.control import fragment_slots
from oakum_service.control.curves import curves_to_plan_with
from oakum_service.control.forecast import held_together, idle_nodes, mean_rest_s, past_holes
from oakum_service.control.hosts import sizes_of
from oakum_service.control.launch_records import left_out, suspects
from oakum_service.control.node_access import NodeAccess
from oakum_service.control.observe import Observation
from oakum_service.control.renewal import Successors, endings, renewals, with_successors
from oakum_service.control.speed_trials import unmeasured
from oakum_service.control.waiting_times import wait_of
from oakum_service.db import event_log
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.durations import START_UP, expected_s
from oakum_service.documents.grant import Grant
from oakum_service.documents.slots import node_of
from oakum_service.orders import quotas
from oakum_service.orders.quotas import NodeHours
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import LIVE_STATES, TimeUse
from oakum_solver import problem as solver
from oakum_solver.forecast import HoleForecast, IdleNode, group_nodes, worth_starting
from oakum_solver.hosts import hosts_of, leaving_together, within_hosts
from oakum_solver.plan import Plan
from oakum_solver.speed_trials import with_trials
from oakum_solver.wording import counted
from oakum_worker.spec import TrainerSpec

_STALLS = 4
"""A stall counts with at most this part of the look-ahead. One that was measured while a machine slept would else
outweigh all that nodes gain, and no other would ever be measured."""
_MOST_SAMPLES = 2**53
"""Larger numbers of samples in a report, and negative ones, are not believed."""


def pose(
    session: Session,
    observed: Observation,
    settings: Settings,
    now: float,
    candidates: Sequence[Trainer] = (),
    node_hours: NodeHours | None = None,
) -> solver.Problem:
    """The present allocation problem; `candidates` are added to the live trainers. `node_hours` remembers what
    users have had this week from one call to the next."""
    rows = session.execute(
        select(Trainer).where(Trainer.state.in_(LIVE_STATES)).order_by(Trainer.submitted_at, Trainer.id)
    )
    wanting = [row for row in rows.scalars() if row.pause is None]
    fragment_slots.suppose(session, observed.snapshot, candidates, settings)
    live = [*wanting, *candidates]
    access = NodeAccess.among(observed.snapshot.nodes, [row.spec for row in live])
    forecast = past_holes(session).forecast()
    nodes = _nodes(session, observed, {row.id for row in live}, settings, forecast, now, access)
    nodes, successors = _renewed(session, nodes, live, observed.snapshot, access, now)
    rules = settings.planning_rules
    rest_s = mean_rest_s(forecast, nodes)
    look_ahead_s = rules.look_ahead_for(rest_s)
    curves = curves_to_plan_with(session, live, settings)
    trainers = tuple(_trainer(row, curves[row.id], settings, look_ahead_s, now, access) for row in live)
    offered = worth_starting(nodes, _least_start_up_s(trainers))
    hosts: tuple[solver.Host, ...] = ()
    if any(trainer.bundle != 1 for trainer in trainers):
        offered = leaving_together(offered)
        together = [*held_together(session), *successors]
        hosts = hosts_of(offered, sizes_of(observed.snapshot.nodes), together)
        trainers = tuple(within_hosts(trainer, hosts, offered) for trainer in trainers)
    groups = group_nodes(offered)
    return rules.problem(
        with_trials(trainers, unmeasured(session, live, now), groups),
        groups,
        mean_rest_s=rest_s,
        withheld=len(nodes) - len(offered),
        cluster_nodes=len(observed.snapshot.nodes),
        user_caps=_user_caps(session, trainers, settings, node_hours or NodeHours(), now),
        hosts=hosts,
    )


def _nodes(
    session: Session,
    observed: Observation,
    live: Collection[str],
    settings: Settings,
    forecast: HoleForecast,
    now: float,
    access: NodeAccess,
) -> list[IdleNode]:
    """The idle nodes that are free or held by one of the trainers `live`, without free ones on which launches came
    to nothing lately; where they did so longer ago comes last."""
    idle = idle_nodes(
        session,
        observed.snapshot,
        forecast,
        settings.groups,
        now,
        preference=observed.preference,
        label=access.label,
    )
    bad, doubtful = left_out(session, observed.snapshot, now), suspects(session)
    usable = [
        node for node in idle if (node_of(node.node) not in bad if node.owner is None else node.owner in live)
    ]
    return sorted(usable, key=lambda node: node.owner is None and node_of(node.node) in doubtful)


def _renewed(
    session: Session,
    nodes: list[IdleNode],
    live: Sequence[Trainer],
    snapshot: Snapshot,
    access: NodeAccess,
    now: float,
) -> tuple[list[IdleNode], list[tuple[str, ...]]]:
    """The nodes, of which free ones take the place of those where a fragment reaches its time limit, and which of
    these a fragment is to have together."""
    if not (ending := endings(session, snapshot, now)):
        return nodes, []
    plan = _newest_plan(session)
    granted = {} if plan is None else {id_: grant.nodes for id_, grant in plan.allocations.items()}
    labels = {row.id: access.labels_for(row.spec) for row in live}

    def may_have(trainer: str, node: IdleNode) -> bool:
        allowed = labels[trainer]
        return allowed is None or node.access in allowed

    whole = {row.id for row in live if row.slots_per_fragment == "node"}
    return with_successors(nodes, ending, granted, Successors(may_have, sizes_of(snapshot.nodes), whole))


def _least_start_up_s(trainers: Iterable[solver.PlannedTrainer]) -> float:
    """Seconds that a hole has to last for any trainer to train in it. 0 while a trainer is guaranteed nodes:
    lengths of holes and start-ups are estimates, and a trainer that has waited so long should try any node."""
    if any(trainer.guaranteed for trainer in trainers):
        return 0.0
    return min((trainer.startup_s for trainer in trainers), default=0.0)


def _user_caps(
    session: Session,
    trainers: Iterable[solver.PlannedTrainer],
    settings: Settings,
    node_hours: NodeHours,
    now: float,
) -> dict[str, int]:
    """User -> most nodes, for the users whose trainers could take more nodes than their quotas allow."""
    wanted: Counter[str] = Counter()
    for trainer in trainers:
        if trainer.user is not None:
            wanted[trainer.user] += trainer.max_nodes
    caps = quotas.caps(session, settings, wanted, node_hours, now)
    return {user: cap for user, cap in caps.items() if wanted[user] > cap}


def _trainer(
    row: Trainer,
    curve: solver.Curve,
    settings: Settings,
    look_ahead_s: float,
    now: float,
    access: NodeAccess,
) -> solver.PlannedTrainer:
    spec = row.spec
    curves_by_type = {node_type: solver.Curve(points) for node_type, points in spec.curves_by_type.items()}
    deadline_in_s = math.inf if spec.deadline is None else spec.deadline.timestamp() - now
    best_rate = max(each.rate(spec.max_nodes) for each in curves_by_type.values() or [curve])
    return solver.PlannedTrainer(
        id=row.id,
        name=row.name,
        curve=curve,
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        sizes=spec.listed_sizes,
        access=access.labels_for(spec),
        weight=spec.weight,
        grow_stall_s=min(expected_s(row.durations, TimeUse.GROW, settings.stall_s), look_ahead_s / _STALLS),
        shrink_stall_s=min(expected_s(row.durations, TimeUse.SHRINK, settings.stall_s), look_ahead_s / _STALLS),
        # A start-up that took longer was given up.
        startup_s=min(expected_s(row.durations, START_UP, settings.start_up_s), settings.warm_up_timeout_s),
        curves_by_type=curves_by_type or None,
        mixes_types=spec.mixes_types,
        priority=spec.priority,
        user=row.user_name,
        guaranteed=settings.starvation_guard.guarantees(wait_of(row)),
        guaranteed_for_s=settings.starvation_guard.guaranteed_for_s(wait_of(row)),
        attained_samples=_believed(0 if row.progress is None else row.progress.samples),
        remaining_samples=_remaining_samples(row, spec, best_rate * max(deadline_in_s, look_ahead_s)),
        deadline_in_s=deadline_in_s,
        waited_s=0.0 if row.waiting_since is None else max(0.0, now - row.waiting_since),
        bundle="host" if row.slots_per_fragment == "node" else row.slots_per_fragment,
    )


def _remaining_samples(row: Trainer, spec: TrainerSpec, most: float) -> float:
    """Samples to the trainer's end; if only its steps are known, each counts as a full batch.

    A trainer that was never built has an unknown end. It is assumed to need `most` samples, all that it can
    compute before its deadline: as an endless trainer it would come last under the objective `deadline`.
    """
    progress = row.progress
    if progress is None:
        return most
    if progress.total_samples is not None:
        return _believed(progress.total_samples - progress.samples)
    return _believed((progress.total_steps - progress.step) * spec.global_batch)


def _believed(samples: int) -> float:
    return float(min(max(0, samples), _MOST_SAMPLES))


def write_plan(
    session: Session, plan: Plan, problem: solver.Problem, observed: Observation, now: float
) -> PlanRecord:
    """Record the plan, and the event, if it grants other nodes than the newest plan or for other kinds of
    reasons. Trainers that have ended or were paused meanwhile are left out. Returns the plan in force."""
    parent = _newest_plan(session)
    names = _live_names(session, [allocation.trainer for allocation in plan.allocations])
    grants = {
        allocation.trainer: Grant(allocation.nodes, allocation.reason.why, allocation.reason.text)
        for allocation in plan.allocations
        if allocation.trainer in names  # one that ended or was paused while the solver worked gets nothing
    }
    before = {} if parent is None else parent.allocations
    renewed = renewals(before, grants, endings(session, observed.snapshot, now))
    grants |= {trainer: dataclasses.replace(grants[trainer], renewal=words) for trainer, words in renewed.items()}
    if parent is not None and _same(parent.allocations, grants):
        return parent
    row = PlanRecord(
        parent_id=parent.id if parent is not None else None,
        snapshot=observed.number,
        made_at=now,
        objective=str(problem.objective),
        look_ahead_s=problem.look_ahead_s,
        look_ahead_reason=problem.look_ahead_reason,
        value=plan.value,
        bound=plan.bound,
        solver=plan.solver,
        solve_s=plan.solve_s,
        optimal=plan.optimal,
        allocations=grants,
    )
    session.add(row)
    session.flush()
    sizes = {names[trainer_id]: len(grant.nodes) for trainer_id, grant in grants.items()}
    event_log.record(session, "plan.made", f"plan {row.id}", _given(sizes), plan=row.id)
    for trainer_id, words in renewed.items():
        if trainer_id not in before or words != before[trainer_id].renewal:
            event_log.record(session, "fragment.renewed", names[trainer_id], words)
    return row


def _newest_plan(session: Session) -> PlanRecord | None:
    return session.execute(select(PlanRecord).order_by(PlanRecord.id.desc()).limit(1)).scalar_one_or_none()


def _given(sizes: Mapping[str, int]) -> str:
    """What an event about a plan says after its number: who gets how many nodes, by the trainers' names."""
    given = [f"{counted(size, 'node')} to {name}" for name, size in sizes.items() if size]
    empty = [name for name, size in sizes.items() if not size]
    if not given:
        return f"gives no node to {', '.join(empty)}" if empty else "finds no trainer to give nodes to"
    return f"gives {', '.join(given)}" + (f"; none to {', '.join(empty)}" if empty else "")


def _live_names(session: Session, trainers: Collection[str]) -> dict[str, str]:
    """Id -> name of those of the trainers that have neither ended nor been paused."""
    live = Trainer.id.in_(trainers), Trainer.state.in_(LIVE_STATES)
    rows = session.execute(select(Trainer.id, Trainer.name, Trainer.pause).where(*live))
    return {row.id: row.name for row in rows if row.pause is None}


def _same(before: Mapping[str, Grant], now: Mapping[str, Grant]) -> bool:
    """Whether two plans grant the same nodes for the same kinds of reasons. Numbers in the reasons' text may
    differ, and so may the order of nodes, which changes with what is learnt about them."""
    return _decided(before) == _decided(now)


def _decided(allocations: Mapping[str, Grant]) -> dict[str, tuple[frozenset[str], str, bool]]:
    return {
        trainer_id: (frozenset(grant.nodes), grant.why, bool(grant.renewal))
        for trainer_id, grant in allocations.items()
    }
