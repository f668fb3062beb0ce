"""What Oakum needs of a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from oakum_service.states import NodeState
from oakum_worker.protocol import FragmentConfig


@dataclass(frozen=True)
class Node:
    """One node as the scheduler shows it. Our own fragments leave its state at HOLE."""

    name: str
    state: NodeState
    address: str
    node_type: str = "cpu"
    job: str | None = None
    """The foreground job that has the node, or is about to; of an unavailable one, whom it is kept free for."""
    job_name: str = ""
    announced_at: float | None = None
    """When the scheduler expects to start a foreground job here: a forecast."""


@dataclass(frozen=True)
class OwnJob:
    """A scheduler job of ours, known by the intent in its name."""

    job_id: str
    fragment: str
    node: str | None
    """None while the scheduler has not placed it."""


@dataclass(frozen=True)
class JobStart:
    """A foreground job that has started, and how long our fragments kept it waiting."""

    job: str
    started_at: float
    num_nodes: int
    delay_s: float | None
    """None where the scheduler cannot tell; then the fragments on its nodes can."""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """The scheduler's state at one moment."""

    taken_at: float
    nodes: tuple[Node, ...]
    own_jobs: tuple[OwnJob, ...]
    starts: tuple[JobStart, ...] = ()
    """Foreground jobs started since the adapter began; the newest ones."""
    withdrawn: frozenset[str] = frozenset()
    """Fragments whose jobs the adapter has withdrawn, as they waited in vain for a node."""
    preempted: frozenset[str] = frozenset()
    """Fragments whose jobs the scheduler has ended of its own accord, or told to go, as far as it remembers."""

    def node(self, name: str) -> Node | None:
        """The node of that name."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}


class Scheduler(Protocol):
    """The port. Every method may block for as long as the scheduler takes; none is called from the event loop.

    Raises `SchedulerError` when the scheduler refuses or does not answer.
    """

    name: str
    ends_with_service: bool
    """Whether the cluster itself ends when the service does, so that our jobs have to end first."""
    grace_s: float
    """Seconds from the signal with which it takes a node back to the kill."""
    max_age_s: float
    """Nothing is launched on a snapshot older than this."""

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin to watch; `on_change` is called, from any thread, when a new snapshot is worth taking."""

    def snapshot(self) -> Snapshot:
        """The state now."""

    def taken_at(self) -> float | None:
        """When the newest state was read, without waiting for one; None before the first."""

    def submit(self, config: FragmentConfig) -> str:
        """Start the fragment on its node; returns the scheduler's job id."""

    def cancel(self, fragment: str) -> None:
        """Ask the fragment's job to leave; after its grace it is killed."""

    def stop(self, *, leave_fragments: bool = False) -> None:
        """Stop watching. A cluster that ends with the service kills everything it still runs; `leave_fragments`
        spares our own jobs, for the next start to find."""


@runtime_checkable
class ArrayScheduler(Protocol):
    """A scheduler that starts many fragments at less than the cost of each, where it may choose their nodes."""

    array_from: int
    """It is asked to for so many fragments of one trainer, and more."""
    array_most: int
    """Most at once."""

    def submit_any(self, configs: Sequence[FragmentConfig]) -> dict[str, str]:
        """Start each fragment on any one of the nodes that the configs name; returns the job ids of those started.

        Raises `SchedulerError` if none was.
        """
