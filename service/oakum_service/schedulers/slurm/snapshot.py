"""Which nodes of a Slurm cluster are holes: pure, from what Slurm says to what the port says.

A node is a hole while Slurm would let a job of ours run there: it is up, nobody's, and nothing is the matter with
it. Our own jobs leave it one. Everything that is not known to be harmless makes a node unavailable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ClusterShell.NodeSet import NodeSet, NodeSetException

from oakum_service.errors import SchedulerError
from oakum_service.schedulers.port import Node, OwnJob, Snapshot
from oakum_service.schedulers.slurm.state import SlurmJob, SlurmNode, SlurmState
from oakum_service.states import NodeState

_USABLE = {"IDLE", "ALLOCATED", "MIXED"}
_HARMLESS_FLAGS = {"PLANNED", "CLOUD", "DYNAMIC_NORM"}
_ON_NODES = {"RUNNING", "CONFIGURING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING"}
_LIVE = _ON_NODES | {"PENDING"}
_UNKNOWN_JOB = "unknown"
"""Of a node that is allocated to nobody whom we are allowed to see (`PrivateData=jobs`)."""
_SOCKETS = re.compile(r"\([^)]*\)")


@dataclass(frozen=True)
class Instance:
    """What tells our jobs from all others, those of another Oakum under the same account included."""

    user: str
    name: str

    def job_name(self, fragment: str) -> str:
        """Name of the fragment's job."""
        return f"oakum-{self.name}-{fragment}"

    def fragment_of(self, job: SlurmJob) -> str | None:
        """The fragment that a job stands for, or None if it is none of ours."""
        prefix = f"oakum-{self.name}-"
        return job.name.removeprefix(prefix) if job.user == self.user and job.name.startswith(prefix) else None


@dataclass(frozen=True)
class HolePolicy:
    """Which nodes may be used."""

    partition: str
    planned_are_holes: bool = True
    type_features: tuple[str, ...] = ()
    """Features that make nodes with them a type of their own."""


@lru_cache(maxsize=65536)
def unfold(nodes: str) -> tuple[str, ...]:
    """The nodes of a folded list. Raises `SchedulerError` for one that cannot be read."""
    if not nodes:
        return ()
    try:
        return tuple(NodeSet(nodes))
    except NodeSetException as error:
        raise SchedulerError(f"node list {nodes!r} cannot be read: {error}") from error


def is_live(job: SlurmJob) -> bool:
    """Whether a job is pending or on its nodes, and not on its way out."""
    return job.states[0] in _LIVE and "COMPLETING" not in job.states


def to_snapshot(state: SlurmState, instance: Instance, policy: HolePolicy) -> Snapshot:
    """The port's view of the nodes of our partition. Raises `SchedulerError` for unreadable node lists."""
    own, foreign = _divide(state.jobs, instance)
    holders = _holders(foreign)
    ours = {node for job in own.values() for node in unfold(job.nodes)}
    announced = _announced(state, foreign)
    nodes = tuple(
        _node(node, holders.get(node.name), node.name in ours, announced.get(node.name), state.taken_at, policy)
        for node in state.nodes
        if policy.partition in node.partitions
    )
    return Snapshot(state.taken_at, nodes, tuple(_own_jobs(own)))


def _divide(jobs: Iterable[SlurmJob], instance: Instance) -> tuple[dict[str, SlurmJob], list[SlurmJob]]:
    """Our live jobs by fragment, and everybody else's."""
    own: dict[str, SlurmJob] = {}
    foreign: list[SlurmJob] = []
    for job in jobs:
        fragment = instance.fragment_of(job)
        if fragment is None:
            foreign.append(job)
        elif is_live(job):
            own[fragment] = job
    return own, foreign


def _own_jobs(own: Mapping[str, SlurmJob]) -> Iterator[OwnJob]:
    for fragment, job in own.items():
        nodes = unfold(job.nodes) if job.states[0] != "PENDING" else ()
        yield OwnJob(str(job.id), fragment, nodes[0] if nodes else None)


def _holders(jobs: Iterable[SlurmJob]) -> dict[str, SlurmJob]:
    """Node -> a job that is on it, or still completing there."""
    return {
        node: job
        for job in jobs
        if job.nodes and (job.states[0] in _ON_NODES or "COMPLETING" in job.states)
        for node in unfold(job.nodes)
    }


def _announced(state: SlurmState, foreign: Iterable[SlurmJob]) -> dict[str, float]:
    """Node -> when Slurm expects a foreground job, or a reservation, to begin there."""
    found: dict[str, float] = {}
    starts = [
        (job.planned_nodes, job.start_at)
        for job in foreign
        if job.states[0] == "PENDING" and job.planned_nodes and job.start_at is not None
    ]
    starts += [(r.nodes, r.start_at) for r in state.reservations if r.end_at > state.taken_at]
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
) -> Node:
    state = _state(node, holder, ours, announced_at, now, policy)
    job, job_name = None, ""
    if state is NodeState.FOREGROUND:
        job = str(holder.id) if holder is not None else _UNKNOWN_JOB
        job_name = holder.name if holder is not None else _UNKNOWN_JOB
    return Node(
        name=node.name,
        state=state,
        address=node.address or node.name,
        node_type=node_type(node, policy.type_features),
        job=job,
        job_name=job_name,
        announced_at=announced_at if state is NodeState.HOLE else None,
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
    """`cpu`, or the GRES without `gpu:` and sockets (`h100:4`), with the features that count: `h100:4+ib`."""
    gres = ",".join(part.removeprefix("gpu:") for part in _SOCKETS.sub("", node.gres).split(",") if part)
    features = [feature for feature in type_features if feature in node.features]
    return "+".join([gres or "cpu", *features])
