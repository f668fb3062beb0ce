"""The adapter."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from oakum_service.documents.node import Node
from oakum_service.errors import CommandFailed
from oakum_service.schedulers.port import OwnJob, Snapshot
from oakum_service.states import NodeState
from oakum_worker.fragment_config import FragmentConfig


class PbsScheduler:
    """An OpenPBS cluster as a `Scheduler`, read for each snapshot. Submitted jobs are in memory alone."""

    name = "pbs"
    ends_with_service = False
    grace_s = 30.0
    max_age_s = 60.0

    def __init__(self, pbsnodes: Sequence[str]) -> None:
        self._pbsnodes = pbsnodes
        self._read_at: float | None = None
        self.jobs: dict[str, OwnJob] = {}

    def start(self, on_change: Callable[[], None]) -> None:
        """Nothing runs between two snapshots."""

    def snapshot(self) -> Snapshot:
        asked_at = time.time()
        try:
            answer = subprocess.run(self._pbsnodes, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise CommandFailed(f"{' '.join(self._pbsnodes)}: {error}") from error
        self._read_at = asked_at
        nodes = tuple(_node(name, told) for name, told in json.loads(answer.stdout)["nodes"].items())
        return Snapshot(asked_at, nodes, tuple(self.jobs.values()))

    def taken_at(self) -> float | None:
        return self._read_at

    def silence(self) -> None:
        """It is asked in `snapshot` alone, which raises."""

    def submit(self, config: FragmentConfig) -> str:
        job = OwnJob(f"{100 + len(self.jobs)}.head", config.fragment, config.node)
        self.jobs[config.fragment] = job
        return job.job_id

    def cancel(self, fragment: str) -> None:
        self.jobs.pop(fragment, None)

    def stop(self, *, leave_fragments: bool = False) -> None:
        """Nothing runs."""


def _node(name: str, told: dict[str, Any]) -> Node:
    """A node is a hole if it is free and no job is on it: with shared nodes, `free` says that cores are left."""
    jobs = [job.partition("/")[0] for job in told.get("jobs", ())]
    if jobs:
        return Node(name, NodeState.FOREGROUND, told["Mom"], job=jobs[0])
    return Node(name, NodeState.HOLE if told["state"] == "free" else NodeState.UNAVAILABLE, told["Mom"])
