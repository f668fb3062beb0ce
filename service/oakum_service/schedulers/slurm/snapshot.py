"""Which nodes of a Slurm cluster are holes. Pure: from Slurm's state to the snapshot of `schedulers.port`.

A node is a hole while Slurm would let a job of ours run there: it is up, used by no foreground job, and shows no
unusual flag. A node that only our own jobs use stays a hole. Whatever is not known to be harmless makes a node
unavailable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from oakum_service.documents.node import LONGEST_JOB_NAME, UNKNOWN_JOB, Node
from oakum_service.documents.slots import bundle_name, node_of
from oakum_service.schedulers.port import OwnJob, Snapshot
from oakum_service.schedulers.slurm.announcements import announced_at, announcements
from oakum_service.schedulers.slurm.arrays import JobArray
from oakum_service.schedulers.slurm.hole_policy import HolePolicy
from oakum_service.schedulers.slurm.node_names import unfold
from oakum_service.schedulers.slurm.reading.fields import FieldError
from oakum_service.schedulers.slurm.reading.jobs import has_ended, was_ended_by_slurm
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmReservation, SlurmState
from oakum_service.schedulers.slurm.slots import ANY_GPU, SlotBook, SlotUse, gives_parts, slots_of
from oakum_service.states import NodeState

_USABLE = {"IDLE", "ALLOCATED", "MIXED"}
_HARMLESS_FLAGS = {"PLANNED", "CLOUD", "DYNAMIC_NORM"}
_POWER_FLAGS = {"POWERED_DOWN", "POWERING_UP", "POWER_UP"}
"""Flags of a node that Slurm starts for the next job there."""
_ONE_USER = "EXCLUSIVE_USER"
"""Shown as a flag of nodes that have jobs of one user only; Slurm itself has none for them."""
_WANTED_FLAGS = {
    "DRAIN",
    "FAIL",
    "MAINT",
    "RESERVED",
    "REBOOT_REQUESTED",
    "POWER_DOWN",
    "POWERING_DOWN",
    _ONE_USER,
}
"""With these flags Slurm starts nothing on a node and lets what runs there go on, for hours: somebody waits."""
_COMPLETING = "COMPLETING"
"""State of a job that has ended, and flag of its nodes, until the epilogs there have ended, too."""
_READ_WITHIN_S = 2.0
"""Between the readings of nodes and of jobs that make a state; Slurm tells times in whole seconds."""
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


def is_live(job: SlurmJob) -> bool:
    """Whether the job is pending or on its nodes, and not completing. A job of an unknown state is."""
    return not has_ended(job.states) and _COMPLETING not in job.states


def occupies_nodes(job: SlurmJob) -> bool:
    """Whether the job is on its nodes, completing or not."""
    return bool(job.nodes) and (_COMPLETING in job.states or (is_live(job) and job.states[0] != "PENDING"))


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
    book: SlotBook | None = None,
    warning_s: float = 0.0,
) -> Snapshot:
    """The snapshot of our partition's nodes, or of their slots; `own` is the result of `own_tasks` for this state.

    `wanted`: node -> a pending job that the node is kept free for. `book` knows the slots of the readings before.
    `warning_s`: how long before its time limit a job of ours is told to leave. Raises `SchedulerError` for
    unreadable node lists.
    """
    foreign = [job for job in state.jobs if instance.intent_of(job) is None]
    present = _Present.of(state, foreign, own, instance, policy)
    book = book or SlotBook()
    book.begin_reading()
    ours = [node for node in state.nodes if policy.partition in node.partitions]
    seen = [one for node in ours for one in _seen_on(node, present, state.taken_at, policy, book)]
    reserved = {node for one in state.unread if one.kind == "reservation" for node in unfold(one.nodes)}
    nodes = tuple(
        node if fragment is not None or not node.is_left else _kept(node, wanted, reserved)
        for node, fragment in seen
    )
    slots: dict[str, list[str]] = {}
    for node, fragment in seen:
        if fragment is not None:
            slots.setdefault(fragment, []).append(node.name)
    announced = announcements(frozenset(node.name for node in ours), state, foreign)
    own_jobs = tuple(_own_jobs(own, slots, warning_s))
    return Snapshot(state.taken_at, nodes, own_jobs, handing_over=frozenset(wanted), announced=announced)


@dataclass(frozen=True)
class _Present:
    """What is on which node, or is to be there."""

    foreign: Mapping[str, Sequence[SlurmJob]]
    """Node -> the foreground jobs that are on it, completing or not."""
    own: Mapping[str, Sequence[tuple[str, SlurmJob]]]
    """Node -> our fragments with their live jobs there."""
    leaving: Mapping[str, Sequence[SlurmJob]]
    """Node -> our jobs that are completing there."""
    left: Collection[str]
    """The nodes that a job of ours has just left: what was read of them before may show it still."""
    announced: Mapping[str, float]
    entered: Mapping[str, SlurmReservation]

    @classmethod
    def of(
        cls,
        state: SlurmState,
        foreign: Sequence[SlurmJob],
        own: Mapping[str, OwnTask],
        instance: OakumInstance,
        policy: HolePolicy,
    ) -> _Present:
        fragments: dict[str, list[tuple[str, SlurmJob]]] = {}
        for fragment, task in own.items():
            for node in unfold(task.job.nodes):
                fragments.setdefault(node, []).append((fragment, task.job))
        leaving = (j for j in state.jobs if _COMPLETING in j.states and instance.intent_of(j) is not None)
        announced = announced_at(state, foreign, policy.reservations)
        left = {
            node
            for job in state.jobs
            if has_ended(job.states) and (job.end_at or 0.0) >= state.taken_at - _READ_WITHIN_S
            if instance.intent_of(job) is not None
            for node in unfold(job.nodes)
        }
        return cls(_on_nodes(foreign), fragments, _on_nodes(leaving), left, announced, _entered(state, policy))


def _on_nodes(jobs: Iterable[SlurmJob]) -> dict[str, list[SlurmJob]]:
    """Node -> the jobs that are on it, completing or not."""
    by_node: dict[str, list[SlurmJob]] = {}
    for job in jobs:
        for node in unfold(job.nodes) if occupies_nodes(job) else ():
            by_node.setdefault(node, []).append(job)
    return by_node


def _seen_on(
    node: SlurmNode, present: _Present, now: float, policy: HolePolicy, book: SlotBook
) -> Iterator[tuple[Node, str | None]]:
    """The node, or each of its slots where it is given in parts, with the fragment whose job is there. A node
    whose GPUs cannot be read is unavailable."""
    foreign, own = present.foreign.get(node.name, ()), present.own.get(node.name, ())
    announced_at, reservation = present.announced.get(node.name), present.entered.get(node.name)
    entered = _as_entered(node, reservation)
    if policy.bars(node):
        entered = msgspec.structs.replace(entered, states=(*entered.states, _ONE_USER))
    name = "" if reservation is None else reservation.name
    leaving, shared = present.leaving.get(node.name, ()), policy.shares(node)
    try:
        uses = (
            [*slots_of(node, foreign, own, leaving, book, opens=shared)]
            if policy.parts_are_holes and gives_parts(node, own, book, shared=shared)
            else None
        )
    except FieldError as error:
        book.note_unread(node.name, str(error))
        entered, uses = msgspec.structs.replace(entered, states=("UNKNOWN",)), None
    if uses is None:
        holder = foreign[-1] if foreign else None
        whole = _node(entered, holder, bool(own), announced_at, now, policy, name)
        if whole.job == UNKNOWN_JOB and node.name in present.left:
            whole = replace(whole, state=NodeState.UNAVAILABLE, job=None, job_name="", clearing=True)
        elif not foreign and _completes_to_hole(entered, announced_at, now, policy):
            whole = replace(whole, clearing=True)
        yield whole, own[0][0] if own else None
        return
    for use in uses:
        is_ours = use.fragment is not None
        part = _node(
            _as_slot(entered, use), None if is_ours else use.job, is_ours, announced_at, now, policy, name
        )
        kind = "+".join([use.gpu_type or ANY_GPU, *_typing(node, policy.type_features)])
        is_cleared = use.job in leaving and _completes_to_hole(entered, announced_at, now, policy)
        yield replace(part, name=use.name, node_type=kind, clearing=is_cleared), use.fragment


def _completes_to_hole(node: SlurmNode, announced_at: float | None, now: float, policy: HolePolicy) -> bool:
    """Whether the node has still to be cleared after a job, and is a hole then if no other job has it."""
    if _COMPLETING not in node.states:
        return False
    cleared = msgspec.structs.replace(node, states=tuple(s for s in node.states if s != _COMPLETING))
    return _state(cleared, None, True, announced_at, now, policy) is NodeState.HOLE


def _as_slot(node: SlurmNode, use: SlotUse) -> SlurmNode:
    """The node as it would look if the slot were all of it."""
    base, *flags = node.states
    if base not in _USABLE:
        return node
    flags = [flag for flag in flags if flag != _COMPLETING]  # of whichever job
    if use.fragment is None and not use.is_open:
        is_leaving = use.job is not None and _COMPLETING in use.job.states
        base = "UNKNOWN" if is_leaving or (use.job is None and not use.is_taken) else "ALLOCATED"
    else:
        base = "IDLE"
    return msgspec.structs.replace(node, states=(base, *flags))


def _kept(node: Node, wanted: Mapping[str, SlurmJob], reserved: Collection[str]) -> Node:
    """The hole, or what it is where somebody is about to have it."""
    host = node_of(node.name)
    if host in reserved:  # by whom, from when on and until when is not known
        return replace(node, state=NodeState.UNAVAILABLE, clearing=False)
    return _kept_for(wanted[host], node) if host in wanted else node


def _kept_for(job: SlurmJob, node: Node) -> Node:
    return replace(node, state=NodeState.UNAVAILABLE, job=str(job.id), announced_at=None, clearing=False)


def _own_jobs(
    own: Mapping[str, OwnTask], slots: Mapping[str, Sequence[str]], warning_s: float
) -> Iterator[OwnJob]:
    """Our jobs; `slots`: fragment -> its slots. A job on a node of another partition has the node itself."""
    for fragment, task in own.items():
        nodes = () if task.waits else unfold(task.job.nodes)
        end_at = None if task.waits or task.job.end_at == math.inf else task.job.end_at
        leaves_at = None if end_at is None else end_at - warning_s
        name = bundle_name(slots.get(fragment, nodes[:1])) if nodes else None
        yield OwnJob(task.id, fragment, name, leaves_at)


def _entered(state: SlurmState, policy: HolePolicy) -> dict[str, SlurmReservation]:
    """Node -> the reservation that holds it now and that specs may ask for. A node is left out where another
    reservation holds it, too."""
    present = [r for r in state.reservations if r.start_at <= state.taken_at < r.end_at]
    entered: dict[str, SlurmReservation] = {}
    for reservation in present:
        if reservation.name in policy.reservations:
            entered |= dict.fromkeys(unfold(reservation.nodes), reservation)
    others = (r for r in present if r.name not in policy.reservations)
    closed = {node for r in others for node in unfold(r.nodes)} if entered else set()
    return {node: reservation for node, reservation in entered.items() if node not in closed}


def _as_entered(node: SlurmNode, reservation: SlurmReservation | None) -> SlurmNode:
    """The node without the flags that are due to a reservation that specs may ask for."""
    if reservation is None:
        return node
    due = {"RESERVED", *({"MAINT"} & set(reservation.flags))}
    return msgspec.structs.replace(node, states=tuple(state for state in node.states if state not in due))


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
        job = str(holder.id) if holder is not None else UNKNOWN_JOB
        job_name = holder.name[:LONGEST_JOB_NAME] if holder is not None else UNKNOWN_JOB
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
    if holder is not None and _COMPLETING not in holder.states:
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
    return "+".join([gres or "cpu", *_typing(node, type_features)])


def _typing(node: SlurmNode, type_features: Iterable[str]) -> list[str]:
    return [feature for feature in type_features if feature in node.features]
