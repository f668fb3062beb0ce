"""The embedded cluster with many more nodes, on which no process runs: what would run there is told to the load
generator, whose agents speak for it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from oakum_service.documents.node import Node
from oakum_service.documents.silence import Silence
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.port import OwnJob, Scheduler, Snapshot
from oakum_service.states import NodeState
from oakum_worker.fragment_config import FragmentConfig

FAR = "far"
"""Type of the nodes without processes."""


class WideCluster:
    """A scheduler: another one, and `num_far` idle nodes whose jobs are those that the load generator plays. Many
    fragments are submitted at once, as by Slurm's job arrays."""

    array_from, array_most = 8, 100

    def __init__(self, near: Scheduler, num_far: int, tell: Callable[[dict[str, Any]], None]) -> None:
        """`tell` is given each start (`launch`, `trainer`, `token`) and end (`cancel`) of a job on a far node."""
        self.name, self.ends_with_service = near.name, near.ends_with_service
        self.grace_s, self.max_age_s = near.grace_s, near.max_age_s
        self._near, self._tell = near, tell
        self._far = tuple(
            Node(f"far{number:04}", NodeState.HOLE, "127.0.0.1", node_type=FAR) for number in range(num_far)
        )
        self._names = frozenset(node.name for node in self._far)
        self._jobs: dict[str, OwnJob] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._on_change: Callable[[], None] = lambda: None

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin to watch both."""
        self._on_change = on_change
        self._near.start(on_change)

    def snapshot(self) -> Snapshot:
        """All nodes and jobs."""
        near = self._near.snapshot()
        with self._lock:
            jobs = tuple(self._jobs.values())
        return replace(near, nodes=(*near.nodes, *self._far), own_jobs=(*near.own_jobs, *jobs))

    def taken_at(self) -> float | None:
        """The present time in Unix seconds: nothing here is ever old."""
        return time.time()

    def submit(self, config: FragmentConfig) -> str:
        """Start the fragment, on a far node by telling of it. Raises `SchedulerError` for a node that is taken."""
        if config.node not in self._names:
            return self._near.submit(config)
        number = self._take(config)
        if number is None:
            raise SchedulerError(f"{config.node} is no longer idle")
        return number

    def submit_any(self, configs: Sequence[FragmentConfig]) -> dict[str, str]:
        """Start the fragments whose nodes are idle; returns their jobs' ids."""
        numbers = {config.fragment: self._take(config) for config in configs}
        return {fragment: number for fragment, number in numbers.items() if number is not None}

    def _take(self, config: FragmentConfig) -> str | None:
        with self._lock:
            if config.node not in self._names or any(job.node == config.node for job in self._jobs.values()):
                return None
            number = str(next(self._numbers))
            self._jobs[config.fragment] = OwnJob(number, config.fragment, config.node)
        self._tell({"launch": config.fragment, "trainer": config.trainer, "token": config.token})
        return number

    def cancel(self, fragment: str) -> None:
        """Tell the fragment's job to leave."""
        if fragment in self._jobs:
            self._tell({"cancel": fragment})
        else:
            self._near.cancel(fragment)

    def end(self, fragment: str) -> None:
        """The load generator says that a far job has ended."""
        with self._lock:
            self._jobs.pop(fragment, None)
        self._on_change()

    def silence(self) -> Silence | None:
        """That of the other scheduler."""
        return self._near.silence()

    def stop(self, *, leave_fragments: bool = False) -> None:
        """End both."""
        with self._lock:
            self._jobs.clear()
        self._near.stop(leave_fragments=leave_fragments)
