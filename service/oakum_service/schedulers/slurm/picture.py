"""Interprets one reading of Slurm's state: our jobs, the holes, and jobs of ours in the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from oakum_service.schedulers.port import Snapshot
from oakum_service.schedulers.slurm.arrays import JobArrays
from oakum_service.schedulers.slurm.handover import find_hand_over, in_the_way
from oakum_service.schedulers.slurm.hole_policy import Exclusive, HolePolicy
from oakum_service.schedulers.slurm.reading.state import SlurmNode, SlurmState, Unread
from oakum_service.schedulers.slurm.slots import SlotBook
from oakum_service.schedulers.slurm.snapshot import (
    OakumInstance,
    OwnTask,
    fragments_that_ended,
    own_tasks,
    preempted_fragments,
    to_snapshot,
)


@dataclass(frozen=True)
class Picture:
    """One reading of Slurm's state, with what it means: the snapshot for the controller, our jobs, and which of
    them are in the way."""

    state: SlurmState
    snapshot: Snapshot
    own: Mapping[str, OwnTask]
    """Our live jobs by fragment."""
    in_the_way: frozenset[str]
    """Fragments that would delay foreground jobs to which Slurm is handing nodes."""
    unread: tuple[Unread, ...]
    """What could not be understood."""

    @cached_property
    def nodes(self) -> dict[str, SlurmNode]:
        """Name -> the node as Slurm shows it."""
        return {node.name: node for node in self.state.nodes}

    @cached_property
    def job_ids(self) -> dict[str, str]:
        """Fragment -> id of its job."""
        return {fragment: task.id for fragment, task in self.own.items()}

    @cached_property
    def own_numbers(self) -> frozenset[str]:
        """The numbers by which hooks name our jobs. A task of an array has a number besides its id `71_3`."""
        return frozenset(str(task.job.id) for task in self.own.values())


class PictureMaker:
    """Makes a `Picture` of each reading of Slurm's state."""

    def __init__(
        self,
        instance: OakumInstance,
        arrays: JobArrays,
        policy: HolePolicy,
        hand_over_s: float,
        book: SlotBook,
        warning_s: float = 0.0,
    ) -> None:
        """`hand_over_s`: how long Slurm preempts nothing more for a job for which it has preempted others;
        `warning_s`: how long before its time limit a job of ours is told to leave."""
        self._warning_s = warning_s
        self._book = book
        self._instance = instance
        self._arrays = arrays
        self._policy = policy
        self._hand_over_s = hand_over_s

    def make(self, state: SlurmState, exclusive: Exclusive = Exclusive()) -> Picture:
        """The picture of a state; `exclusive`: the partitions in which jobs share no nodes. Raises
        `SchedulerError` for node lists or files of job arrays that cannot be read."""
        policy = replace(self._policy, exclusive=exclusive)
        arrays = self._arrays.look_up(self._array_tasks(state))
        own = own_tasks(state.jobs, self._instance, arrays)
        hand_over = find_hand_over(state, self._instance, self._hand_over_s)
        snapshot = replace(
            to_snapshot(state, self._instance, policy, own, hand_over.wanted, self._book, self._warning_s),
            preempted=preempted_fragments(state.jobs, self._instance, arrays),
            out_of_memory=fragments_that_ended("OUT_OF_MEMORY", state.jobs, self._instance, arrays),
            cancelled=fragments_that_ended("CANCELLED", state.jobs, self._instance, arrays),
            timed_out=fragments_that_ended("TIMEOUT", state.jobs, self._instance, arrays),
        )
        unread = *state.unread, *self._book.unread_nodes()
        return Picture(state, snapshot, own, frozenset(in_the_way(own, hand_over)), unread)

    def _array_tasks(self, state: SlurmState) -> Iterator[tuple[str, int | None]]:
        for job in state.jobs:
            if job.array_job_id is not None and (intent := self._instance.intent_of(job)) is not None:
                yield intent, job.array_task_id
