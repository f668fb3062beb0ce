"""The nodes of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from oakum_service.states import NodeState

LONGEST_JOB_NAME = 255
"""Characters of a job's name that are kept. Whoever submits a job chooses its name, and Slurm takes 1,024."""

UNKNOWN_JOB = "unknown"
"""The job of a node that a job has which the scheduler does not show us."""


@dataclass(frozen=True)
class Node:
    """One node as the scheduler shows it. A node that runs one of our fragments has the state HOLE."""

    name: str
    state: NodeState
    address: str
    node_type: str = "cpu"
    job: str | None = None
    """The foreground job that has the node or is about to get it; for an unavailable node, the job that it is
    kept free for."""
    job_name: str = ""
    """The first `LONGEST_JOB_NAME` characters of the job's name."""
    announced_at: float | None = None
    """When the scheduler expects to start a foreground job here, in Unix seconds; a forecast. Where `reservation`
    ends before, when it does."""
    wanted: str = ""
    """The scheduler's words for why the node is to become free although nobody ends our job there, such as DRAIN;
    empty if it is not."""
    features: tuple[str, ...] = ()
    """Those of its features that specs may ask for."""
    reservation: str = ""
    """The reservation that a trainer has to ask for to have the node at present; empty if there is none."""
    clearing: bool = False
    """Whether no foreground job has the node, and it is unavailable only until the scheduler has cleared it after
    a job."""

    @property
    def is_left(self) -> bool:
        """Whether foreground jobs leave the node to us: it is a hole, or will be once it is cleared."""
        return self.state is NodeState.HOLE or self.clearing


@dataclass(frozen=True)
class RecordedNodes:
    """All nodes of one snapshot, as the database keeps them."""

    nodes: tuple[Node, ...]
