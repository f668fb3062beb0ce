"""Keeps what is known of the cluster beyond the newest reading of Slurm's state."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from oakum_service.documents.node import Node
from oakum_service.documents.slots import is_part, node_of, slots_in
from oakum_service.schedulers.port import OwnJob, Snapshot
from oakum_service.states import NodeState

_HOOK_CLOCK_S = 1.0
"""Hooks tell the time in whole seconds."""


class Overlay:
    """What is known beyond the newest reading of Slurm's state: our jobs submitted since, and nodes that hooks say
    foreground jobs have taken.

    Pure: it reads no clock. Not safe for threads: `SlurmScheduler` uses it under its lock. Times are Unix seconds.
    """

    def __init__(self) -> None:
        self._read_at: float | None = None
        self._submitted: dict[str, tuple[float, OwnJob]] = {}
        """Fragment -> when its job was submitted, and the job."""
        self._taken: dict[str, tuple[float, str]] = {}
        """Node -> when a hook told that a foreground job has it, and the job's number."""

    def note_submitted(self, jobs: Iterable[OwnJob], at: float) -> None:
        """Remember jobs of ours until a reading shows them, or a reading begun after `at` does not."""
        self._submitted |= {job.fragment: (at, job) for job in jobs}

    def note_taken(self, nodes: Iterable[str], job: str, at: float) -> None:
        """Remember that a foreground job has taken nodes, unless the newest reading is newer than `at`."""
        if self._is_news(at):
            self._taken |= dict.fromkeys(nodes, (at, job))

    def note_ended(self, job: str) -> None:
        """Note that `job` has ended: the next reading decides about its nodes, even if it comes soon after the
        job's start."""
        self._taken |= {node: (0.0, taker) for node, (_, taker) in self._taken.items() if taker == job}

    def note_reading(self, taken_at: float, shown: Collection[str]) -> None:
        """Forget what the reading taken at `taken_at` shows or contradicts. `shown` has the fragments whose jobs
        it shows."""
        self._read_at = taken_at
        self._submitted = {
            fragment: (at, job)
            for fragment, (at, job) in self._submitted.items()
            if at >= taken_at and fragment not in shown
        }
        self._taken = {node: (at, job) for node, (at, job) in self._taken.items() if self._is_news(at)}

    def laid_over(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with our unseen submissions added, and with what hooks say is taken of the holes and of the
        nodes that are cleared after a job of ours."""
        jobs = (job for _, job in self._submitted.values())
        return replace(snapshot, nodes=self._with_hooks(snapshot), own_jobs=(*snapshot.own_jobs, *jobs))

    def hides_holes(self, snapshot: Snapshot) -> bool:
        """Whether a hook tells that a job has a node which `snapshot`, the newest reading, shows as a hole, or as
        cleared after a job of ours."""
        nodes = self._with_hooks(snapshot)
        return any(shown is not node for shown, node in zip(nodes, snapshot.nodes, strict=True))

    def job_ids(self) -> dict[str, str]:
        """Fragment -> id of its job."""
        return {fragment: job.job_id for fragment, (_, job) in self._submitted.items()}

    def _with_hooks(self, snapshot: Snapshot) -> tuple[Node, ...]:
        """The nodes, of which those are taken that hooks say are. Of a node that is given in parts that is all
        that no job of ours has: which part was taken the next reading tells, and ours were left alone."""
        if not self._taken:
            return snapshot.nodes
        parts = (job.node for job in snapshot.own_jobs if job.node is not None and is_part(job.node))
        ours = {slot for part in parts for slot in slots_in(part)}
        return tuple(node if node.name in ours else self._taken_by_hook(node) for node in snapshot.nodes)

    def _taken_by_hook(self, node: Node) -> Node:
        if not node.is_left or node_of(node.name) not in self._taken:
            return node
        _, job = self._taken[node_of(node.name)]
        taken = replace(node, state=NodeState.FOREGROUND, job=job, job_name=job)
        return replace(taken, announced_at=None, clearing=False)

    def _is_news(self, told_at: float) -> bool:
        return self._read_at is None or told_at + _HOOK_CLOCK_S >= self._read_at
