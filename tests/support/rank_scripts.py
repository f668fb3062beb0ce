"""What the processes of a training do, step by step, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from oakum_worker.protocol import Endpoint, Generation, Member
from oakum_worker.task import Task
from training_ranks import build_task


@dataclass(frozen=True)
class Act:
    """A generation: which processes are its ranks, in order, and how it ends."""

    members: tuple[int, ...]
    until: int
    """The step at which its members switch to the next act."""
    dies: tuple[int, ...] = ()
    """The processes that are killed instead, in the middle of the step after."""
    dies_after: int = 0
    """How many losses of that step they compute first."""
    nodes: tuple[tuple[int, ...], ...] = ()
    """Of each node the number of ranks of each fragment there, members being dealt to them in their order. Empty:
    each rank is a fragment on a node of its own."""

    def generation(self, number: int, endpoints: Sequence[Endpoint]) -> Generation:
        """The generation of this number, whose processes listen at these endpoints."""
        left, members = list(self.members), []
        for node, sizes in enumerate(self.nodes or [(1,)] * len(left)):
            for size in sizes:
                processes, left = left[:size], left[size:]
                ranks = tuple(endpoints[process] for process in processes)
                members.append(Member(fragment=f"f{processes[0]}", node=f"n{node}", ranks=ranks))
        assert not left
        return Generation(number=number, members=tuple(members))


@dataclass(frozen=True)
class Script:
    """The acts that a set of processes performs."""

    acts: tuple[Act, ...]
    folder: str
    task: Callable[[], Task] = build_task
    spec: dict[str, Any] = field(default_factory=dict)
    durable_at: int = 0
    """The step after which a durable checkpoint is written, if it is not 0."""
    aged_s: float = 0.0
    """Seconds by which the last durable checkpoint is made older at the end of the first act."""
    finish: bool = False
    """Whether the last act's ranks make the end durable."""
    measured: bool = True
    """Whether pipelines and grids are arranged by measured times, which may differ from run to run."""
    awaits_ends: bool = False
    """Whether each act waits until the process groups of earlier acts are gone."""
    kind: str = "cpu"
    """Of the ranks' devices."""
    afresh: bool = False
    """Whether no other script has used the processes before."""


@dataclass
class Outcome:
    """The outcome of one process."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    """(step, loss) of every step that it finished, those taken again included."""
    origins: list[str] = field(default_factory=list)
    """Where each generation's state came from."""
    redone: list[int] = field(default_factory=list)
    """How many steps each generation took again."""
    due: list[bool] = field(default_factory=list)
    """Whether this process, as rank 0, would begin each generation with a durable checkpoint."""
    warnings: list[str] = field(default_factory=list)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    """What the task's `evaluate` found on this rank, by step."""
    peaks_bytes: list[int] = field(default_factory=list)
    """For each generation, the most memory that the change to it needed beside what was in use."""
    weights: dict[str, Any] = field(default_factory=dict)
    """The parameters of its layers at the end of the last act, as arrays by name; of a rank of a pipeline."""
    read: list[int] = field(default_factory=list)
    """The samples that it has read, where the data set notes them."""
    diverged: str = ""
    """What its training ended with, where it diverged."""
    told: list[str] = field(default_factory=list)
    """What it has said in `TrainingWarning`s."""
    error: str = ""
