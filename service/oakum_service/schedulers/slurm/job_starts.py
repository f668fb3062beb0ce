"""Foreground jobs that have started, as readings of Slurm's state show it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from oakum_service.schedulers.port import JobStart
from oakum_service.schedulers.slurm.node_names import unfold
from oakum_service.schedulers.slurm.reading.state import SlurmJob
from oakum_service.schedulers.slurm.snapshot import OakumInstance, is_live

_RUNNING = "RUNNING"
_MOST_KEPT = 1000


class JobStarts:
    """Finds foreground jobs that have started, by comparing readings: the job runs in the newer one and did not
    run in the older one. The jobs that run in the first reading count as well, whenever they started."""

    def __init__(self, instance: OakumInstance) -> None:
        self._instance = instance
        self._running: frozenset[int] = frozenset()
        self._newest: deque[JobStart] = deque(maxlen=_MOST_KEPT)

    @property
    def newest(self) -> tuple[JobStart, ...]:
        """The newest starts, oldest first. How long each job waited is left None: the agents on its nodes report
        it."""
        return tuple(self._newest)

    def note_reading(self, jobs: Iterable[SlurmJob]) -> None:
        """Compare the jobs of a reading with those of the previous one, and add those that have started."""
        running = {job.id: job for job in jobs if self._is_running_in_foreground(job)}
        new = [
            JobStart(str(job.id), job.start_at, len(nodes := unfold(job.nodes)), None, nodes)
            for job in running.values()
            if job.id not in self._running and job.start_at is not None
        ]
        self._newest.extend(sorted(new, key=lambda start: start.started_at))
        self._running = frozenset(running)

    def _is_running_in_foreground(self, job: SlurmJob) -> bool:
        return job.states[0] == _RUNNING and is_live(job) and self._instance.intent_of(job) is None
