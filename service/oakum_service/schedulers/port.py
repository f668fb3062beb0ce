"""The interface between Oakum and a scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Protocol, runtime_checkable

from oakum_service.documents.announcement import Announcements
from oakum_service.documents.node import Node
from oakum_service.documents.silence import Silence
from oakum_service.documents.slots import slots_in
from oakum_service.states import NodeState
from oakum_worker.fragment_config import FragmentConfig


@dataclass(frozen=True)
class OwnJob:
    """A scheduler job of ours, with the fragment that it runs."""

    job_id: str
    fragment: str
    node: str | None
    """None while the scheduler has not given the job a node."""
    leaves_at: float | None = None
    """When its time limit makes its agent leave, Unix seconds; None if it has none, or waits."""


@dataclass(frozen=True)
class JobStart:
    """A foreground job that has started, and how long our fragments kept it waiting."""

    job: str
    started_at: float
    num_nodes: int
    delay_s: float | None
    """None if the scheduler cannot tell; then it is computed from the reports of the fragments on the job's
    nodes."""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """The scheduler's state at one moment."""

    taken_at: float
    nodes: tuple[Node, ...]
    own_jobs: tuple[OwnJob, ...]
    starts: tuple[JobStart, ...] = ()
    """The foreground jobs whose starts the adapter has seen last, also of jobs that ran before it began."""
    withdrawn: frozenset[str] = frozenset()
    """Fragments whose jobs the adapter has withdrawn because they waited for a node in vain."""
    kept_waiting: Mapping[str, str] = field(default_factory=dict)
    """Those of them that waited for something else than a busy node: fragment -> the scheduler's reason."""
    preempted: frozenset[str] = frozenset()
    """Fragments whose jobs the scheduler has ended for its own reasons, or has told to leave, as far back as it
    remembers."""

    out_of_memory: frozenset[str] = frozenset()
    """Fragments whose jobs ended for lack of memory, according to the scheduler."""
    cancelled: frozenset[str] = frozenset()
    """Fragments whose jobs somebody has cancelled, other than this service."""
    timed_out: frozenset[str] = frozenset()
    """Fragments whose jobs the scheduler has ended at their time limit."""
    closed: str = ""
    """Why the scheduler begins no job of ours on any node, as a clause; empty if it does."""
    handing_over: frozenset[str] = frozenset()
    """Nodes, not slots, on which nothing of ours may begin at present, since the scheduler hands nodes over to a
    foreground job that may get these. Our fragments there go on."""
    announced: Announcements = field(default_factory=Announcements)
    """What it expects to take nodes, for people to see: plans go by `Node.announced_at`."""

    def with_starts_since(self, at: float) -> Snapshot:
        """The snapshot with those foreground starts alone that were in the second of `at` or later: a scheduler
        may tell the time in whole seconds."""
        return replace(self, starts=tuple(start for start in self.starts if start.started_at >= math.floor(at)))

    def node(self, name: str) -> Node | None:
        """The node or slot of that name; of the name of several slots, the first that is no hole, or any where all
        are. None if there is none of that name."""
        slots = [self._by_name.get(slot) for slot in slots_in(name)]
        return min(slots, key=lambda node: node is not None and node.state is NodeState.HOLE)

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}


PICTURES = 2
"""Number of polls that may be missed before the last snapshot is too old to launch anything on."""


def too_old_s(scheduler: Scheduler, poll_s: float) -> float:
    """Age in seconds from which on a snapshot is too old to launch anything on it."""
    return PICTURES * poll_s + scheduler.max_age_s


class Scheduler(Protocol):
    """Interface of the main scheduler, as the controller uses it.

    Every method may block for as long as the scheduler takes; none is called from the event loop. Methods raise
    `SchedulerError` when the scheduler refuses or does not answer.
    """

    name: str
    ends_with_service: bool
    """Whether the cluster ends together with the service, so that our jobs have to end before."""
    grace_s: float
    """Seconds from the signal that takes a node back to the kill."""
    max_age_s: float
    """Age in seconds that a snapshot may have, beside missed polls, for something to be launched on it."""

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin to watch the scheduler, or begin again after `stop`. `on_change` is called from any thread when a
        new snapshot is worth taking."""

    def snapshot(self) -> Snapshot:
        """The newest known state of the cluster."""

    def taken_at(self) -> float | None:
        """When the newest state was read, in Unix seconds, without waiting for a new one; None before the
        first."""

    def silence(self) -> Silence | None:
        """Since when the scheduler has not answered; None if it does. Does not ask it."""

    def submit(self, config: FragmentConfig) -> str:
        """Start the fragment on its node; returns the scheduler's job id. Raises `SubmissionRefused` with the
        words of whoever refuses it."""

    def cancel(self, fragment: str) -> None:
        """Tell the fragment's job to leave; it is killed after its grace."""

    def stop(self, *, leave_fragments: bool = False) -> None:
        """Stop watching the scheduler. A cluster that ends with the service kills everything that it still runs;
        with `leave_fragments` it spares our jobs, which the service's next start finds."""


@runtime_checkable
class ArrayScheduler(Protocol):
    """Interface of a scheduler that can start many fragments in one submission, if it may choose which gets which
    node."""

    array_from: int
    """Use `submit_any` from this many fragments of one trainer on."""
    array_most: int
    """Most fragments in one call of `submit_any`."""

    def submit_any(self, configs: Sequence[FragmentConfig]) -> dict[str, str]:
        """Start each fragment on any one of the nodes named in the configs; returns the job ids of the started
        fragments.

        Raises `SubmissionRefused` if the scheduler refuses the submission.
        """


@runtime_checkable
class ForegroundTaker(Protocol):
    """Interface of a scheduler to which foreground jobs are handed in through this service."""

    num_nodes: int

    def submit_foreground(self, nodes: int, run_s: float) -> str:
        """Submit a foreground job as a user of the cluster would; returns its id."""


class HookKind(StrEnum):
    """What happened to a job: it got its nodes, or it gave them back."""

    ALLOCATED = "allocated"
    ENDED = "ended"


@dataclass(frozen=True)
class HookEvent:
    """A job got its nodes, or gave them back: one event, however many hooks of the job report it."""

    kind: HookKind
    job: str
    nodes: str
    """Folded node list: `n[001-003,007],gpu[1-2]`."""
    partition: str
    """The job's partition or queue."""
    uid: int
    """User id of the job's user."""
    start_at: float | None
    """When the job started, Unix seconds; None if the scheduler did not say."""
    at: float
    """When the first of the job's hooks ran, Unix seconds by the clock of the machine that ran it."""


@runtime_checkable
class HookListener(Protocol):
    """Interface of a scheduler that is told of hook events."""

    def on_hook(self, event: HookEvent) -> None:
        """Handle an event. Called from any thread; must not block.

        It is called again with a longer node list when no hook knew the whole list, and at a job's end once more
        after the last node's epilog, since nodes are completing until then. An event may be older than the newest
        snapshot: compare `at` with the time of the snapshot. One of minutes ago comes without nodes.
        """


AGE_HEADER = "X-Oakum-State-Age"
"""HTTP header of a posted state: the seconds from the beginning of the reading to the sending of the request."""


@dataclass(frozen=True)
class RequestTime:
    """When a request arrived, in Unix seconds, and the age in seconds that its sender gave, if any."""

    at: float
    age_s: float | None


@runtime_checkable
class StateListener(Protocol):
    """Interface of a scheduler that can be given the cluster's state by a collector."""

    def on_state(self, body: bytes, arrival: RequestTime) -> float:
        """Accept a state as its collector has posted it; returns when it was read, in Unix seconds.

        Raises `PayloadError` if it cannot be read, and `SchedulerError` if this service reads the state itself.
        """
