"""Which nodes of a Slurm cluster are holes. Pure: from Slurm's state to the snapshot of `schedulers.port`.

A node is a hole while Slurm would let a job of ours run there: it is up, used by no foreground job, and shows no
unusual flag. A node that only our own jobs use stays a hole. Whatever is not known to be harmless makes a node
unavailable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

import msgspec

from oakum_service.documents.node import LONGEST_JOB_NAME, Node
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.port import OwnJob, Snapshot
from oakum_service.schedulers.slurm.arrays import JobArray
from oakum_service.schedulers.slurm.reading.jobs import has_ended, was_ended_by_slurm
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmReservation, SlurmState
from oakum_service.states import NodeState
from oakum_solver.logs import node_lists

_USABLE = {"IDLE", "ALLOCATED", "MIXED"}
_HARMLESS_FLAGS = {"PLANNED", "CLOUD", "DYNAMIC_NORM"}
_POWER_FLAGS = {"POWERED_DOWN", "POWERING_UP", "POWER_UP"}
"""Flags of a node that Slurm starts for the next job there."""
_WANTED_FLAGS = {"DRAIN", "FAIL", "MAINT", "RESERVED", "REBOOT_REQUESTED", "POWER_DOWN", "POWERING_DOWN"}
"""With these flags Slurm starts nothing on a node and lets what runs there go on, for hours: somebody waits."""
_UNKNOWN_JOB = "unknown"
"""Shown for a node allocated to a job that we may not see (`PrivateData=jobs`)."""
_SOCKETS = re.compile(r"\([^)]*\)")


@dataclass(frozen=True)
class OakumInstance:
    """The account and the name of this Oakum, by which its jobs are told from all others, including those of
    another Oakum under the same account."""

    user: str
    name: str

    def job_name(self, intent: str) -> str:
        """Name of the job of a fragment, or of an array of fragments."""
        return f"oakum-{self.name}-{intent}"

    def intent_of(self, job: SlurmJob) -> str | None:
        """The id of the fragment or array in the job's name; None if the job is not ours."""
        prefix = f"oakum-{self.name}-"
        return job.name.removeprefix(prefix) if job.user == self.user and job.name.startswith(prefix) else None


@dataclass(frozen=True)
class OwnTask:
    """The live job of one fragment of ours, as Slurm shows it."""

    job: SlurmJob
    """Slurm's record; the waiting tasks of an array share one."""
    id: str
    """Id for `scancel`: `71`, or `71_3` for a task, since an array's bare number means all of its tasks."""

    @property
    def waits(self) -> bool:
        """Whether it has no node yet."""
        return self.job.states[0] == "PENDING"


@dataclass(frozen=True)
class HolePolicy:
    """The settings that decide which nodes may count as holes."""

    partition: str
    planned_are_holes: bool = True
    powered_down_are_holes: bool = False
    type_features: tuple[str, ...] = ()
    """Node features that define a node type."""
    asked_features: tuple[str, ...] = ()
    """Node features that specs may ask for."""
    reservations: tuple[str, ...] = ()
    """Reservations that specs may ask for."""


@lru_cache(maxsize=65536)
def unfold(nodes: str) -> tuple[str, ...]:
    """The nodes of a folded list. Raises `SchedulerError` if it cannot be read, or names more nodes than Slurm
    manages."""
    try:
        return node_lists.unfold(nodes)
    except ValueError as error:
        raise SchedulerError(str(error)) from error


def is_live(job: SlurmJob) -> bool:
    """Whether the job is pending or on its nodes, and not completing. A job of an unknown state is."""
    return not has_ended(job.states) and "COMPLETING" not in job.states


def occupies_nodes(job: SlurmJob) -> bool:
    """Whether the job is on its nodes, completing or not."""
    return bool(job.nodes) and ("COMPLETING" in job.states or (is_live(job) and job.states[0] != "PENDING"))


def own_tasks(
    jobs: Iterable[SlurmJob], instance: OakumInstance, arrays: Mapping[str, JobArray] = MappingProxyType({})
) -> dict[str, OwnTask]:
    """Fragment id -> its live job; `arrays`: our arrays by name.

    Tasks of an array that is not among them get names that no fragment has, so they are found as orphans.
    """
    own: dict[str, OwnTask] = {}
    waiting: dict[str, OwnTask] = {}
    for job in jobs:
        intent = instance.intent_of(job)
        if intent is None or not is_live(job):
            continue
        if job.array_job_id is None:
            own[intent] = OwnTask(job, str(job.id))
        elif job.array_task_id is None:
            waiting |= _waiting_tasks(job, intent, arrays.get(intent))
        else:
            fragment = _fragment_of_task(intent, job.array_task_id, arrays.get(intent))
            own[fragment] = OwnTask(job, f"{job.array_job_id}_{job.array_task_id}")
    return waiting | own


def preempted_fragments(
    jobs: Iterable[SlurmJob], instance: OakumInstance, arrays: Mapping[str, JobArray] = MappingProxyType({})
) -> frozenset[str]:
    """Fragments whose jobs Slurm has ended for its own reasons, or has told to leave."""
    return _fragments_of([j for j in jobs if was_ended_by_slurm(j.states, j.preempted_at)], instance, arrays)


def fragments_that_ended(
    state: str,
    jobs: Iterable[SlurmJob],
    instance: OakumInstance,
    arrays: Mapping[str, JobArray] = MappingProxyType({}),
) -> frozenset[str]:
    """Fragments whose jobs ended, or are ending, in this state of Slurm's, such as OUT_OF_MEMORY or CANCELLED."""
    return _fragments_of([job for job in jobs if job.states[0] == state], instance, arrays)


def _fragments_of(
    jobs: Iterable[SlurmJob], instance: OakumInstance, arrays: Mapping[str, JobArray]
) -> frozenset[str]:
    return frozenset(
        intent if job.array_task_id is None else _fragment_of_task(intent, job.array_task_id, arrays.get(intent))
        for job in jobs
        if (intent := instance.intent_of(job)) is not None
    )


def _fragment_of_task(name: str, index: int, array: JobArray | None) -> str:
    known = array is not None and index < len(array.fragments)
    return array.fragments[index] if array is not None and known else f"{name}_{index}"


def _waiting_tasks(job: SlurmJob, name: str, array: JobArray | None) -> dict[str, OwnTask]:
    """Fragment -> its waiting task, for the one record that stands for all waiting tasks of an array. Slurm does
    not say reliably which they are: all tasks that have not begun count."""
    if array is None:
        return {name: OwnTask(job, str(job.array_job_id))}
    return {
        fragment: OwnTask(job, f"{job.array_job_id}_{index}")
        for index, fragment in enumerate(array.fragments)
        if index not in array.begun
    }


def to_snapshot(
    state: SlurmState,
    instance: OakumInstance,
    policy: HolePolicy,
    own: Mapping[str, OwnTask],
    wanted: Mapping[str, SlurmJob] = MappingProxyType({}),
) -> Snapshot:
    """The snapshot of our partition's nodes; `own` is the result of `own_tasks` for this state.

    `wanted`: node -> a pending job that the node is kept free for. Raises `SchedulerError` for unreadable node
    lists.
    """
    foreign = [job for job in state.jobs if instance.intent_of(job) is None]
    holders = _holders(foreign)
    ours = {node for task in own.values() for node in unfold(task.job.nodes)}
    announced = _announced(state, foreign, policy)
    entered = _entered(state, policy)
    nodes = tuple(
        _node(
            _as_entered(node, entered.get(node.name)),
            holders.get(node.name),
            node.name in ours,
            announced.get(node.name),
            state.taken_at,
            policy,
            reservation="" if node.name not in entered else entered[node.name].name,
        )
        for node in state.nodes
        if policy.partition in node.partitions
    )
    free = {node.name for node in nodes if node.state is NodeState.HOLE and node.name not in ours}
    kept = tuple(_kept_for(wanted[n.name], n) if n.name in free and n.name in wanted else n for n in nodes)
    reserved = {node for one in state.unread if one.kind == "reservation" for node in unfold(one.nodes)} & free
    if reserved:  # by whom, from when on and until when is not known
        kept = tuple(replace(n, state=NodeState.UNAVAILABLE) if n.name in reserved else n for n in kept)
    return Snapshot(state.taken_at, kept, tuple(_own_jobs(own)))


def _kept_for(job: SlurmJob, node: Node) -> Node:
    return replace(node, state=NodeState.UNAVAILABLE, job=str(job.id), announced_at=None)


def _own_jobs(own: Mapping[str, OwnTask]) -> Iterator[OwnJob]:
    for fragment, task in own.items():
        nodes = () if task.waits else unfold(task.job.nodes)
        yield OwnJob(task.id, fragment, nodes[0] if nodes else None)


def _holders(jobs: Iterable[SlurmJob]) -> dict[str, SlurmJob]:
    """Node -> a job that is on it, completing or not."""
    return {node: job for job in jobs if occupies_nodes(job) for node in unfold(job.nodes)}


def _entered(state: SlurmState, policy: HolePolicy) -> dict[str, SlurmReservation]:
    """Node -> the reservation that holds it now and that specs may ask for. A node is left out where another
    reservation holds it, too."""
    present = [r for r in state.reservations if r.start_at <= state.taken_at < r.end_at]
    found: dict[str, SlurmReservation] = {}
    for reservation in present:
        if reservation.name in policy.reservations:
            found |= dict.fromkeys(unfold(reservation.nodes), reservation)
    others = (r for r in present if r.name not in policy.reservations)
    closed = {node for r in others for node in unfold(r.nodes)} if found else set()
    return {node: reservation for node, reservation in found.items() if node not in closed}


def _as_entered(node: SlurmNode, reservation: SlurmReservation | None) -> SlurmNode:
    """The node without the flags that are due to a reservation that specs may ask for."""
    if reservation is None:
        return node
    due = {"RESERVED", *({"MAINT"} & set(reservation.flags))}
    return msgspec.structs.replace(node, states=tuple(state for state in node.states if state not in due))


def _announced(state: SlurmState, foreign: Iterable[SlurmJob], policy: HolePolicy) -> dict[str, float]:
    """Node -> when Slurm expects a foreground job or a reservation to begin there, or when one ends that specs may
    ask for, in Unix seconds."""
    found: dict[str, float] = {}
    starts = [
        (job.planned_nodes, job.start_at)
        for job in foreign
        if job.states[0] == "PENDING" and job.planned_nodes and job.start_at is not None
    ]
    for r in state.reservations:
        is_entered = r.name in policy.reservations and r.start_at <= state.taken_at
        at = r.end_at if is_entered else r.start_at
        if r.end_at > state.taken_at and at < math.inf:
            starts.append((r.nodes, at))
    for nodes, start_at in starts:
        for node in unfold(nodes):
            found[node] = min(start_at, found.get(node, start_at))
    return found


def _node(
    node: SlurmNode,
    holder: SlurmJob | None,
    ours: bool,
    announced_at: float | None,
    now: float,
    policy: HolePolicy,
    reservation: str,
) -> Node:
    state = _state(node, holder, ours, announced_at, now, policy)
    job, job_name = None, ""
    if state is NodeState.FOREGROUND:
        job = str(holder.id) if holder is not None else _UNKNOWN_JOB
        job_name = holder.name[:LONGEST_JOB_NAME] if holder is not None else _UNKNOWN_JOB
    return Node(
        name=node.name,
        state=state,
        address=node.address or node.name,
        node_type=node_type(node, policy.type_features),
        job=job,
        job_name=job_name,
        announced_at=announced_at if state is NodeState.HOLE else None,
        wanted="+".join(flag for flag in node.states[1:] if flag in _WANTED_FLAGS),
        features=tuple(feature for feature in policy.asked_features if feature in node.features),
        reservation=reservation,
    )


def _state(
    node: SlurmNode,
    holder: SlurmJob | None,
    ours: bool,
    announced_at: float | None,
    now: float,
    policy: HolePolicy,
) -> NodeState:
    base, flags = node.states[0], set(node.states[1:])
    if policy.powered_down_are_holes:
        flags -= _POWER_FLAGS
    if base not in _USABLE or flags - _HARMLESS_FLAGS:
        return NodeState.UNAVAILABLE
    if holder is not None and "COMPLETING" not in holder.states:
        return NodeState.FOREGROUND
    if ours:
        return NodeState.HOLE
    if base != "IDLE":
        return NodeState.FOREGROUND
    if "PLANNED" in flags and (not policy.planned_are_holes or announced_at is None or announced_at <= now):
        return NodeState.UNAVAILABLE
    return NodeState.HOLE


def node_type(node: SlurmNode, type_features: Iterable[str]) -> str:
    """`cpu`, or the GRES without `gpu:` and sockets (`h100:4`), then the features that define types:
    `h100:4+ib`."""
    gres = ",".join(part.removeprefix("gpu:") for part in _SOCKETS.sub("", node.gres).split(",") if part)
    features = [feature for feature in type_features if feature in node.features]
    return "+".join([gres or "cpu", *features])
