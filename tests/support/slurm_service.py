"""A real `oakum serve` on a real Slurm."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from oakum_client.rest.client import OakumClient
from oakum_service.api.schemas.trainers import TrainerView
from running_service import TASKS, RunningService, events_of
from slurm_site import Accounted, Job, SlurmSite, wait_until


class SlurmService(RunningService):
    """A service over the cluster's partition `fill`, reading it often."""

    def __init__(self, folder: Path, site: SlurmSite, **environment: str) -> None:
        settings = {
            "OAKUM_SCHEDULER": "slurm",
            "OAKUM_SLURM_PARTITION": "fill",
            "OAKUM_SLURM_POLL_FLOOR_S": "0.5",
            "OAKUM_SLURM_HOOK_FLOOR_S": "0.2",
            "OAKUM_SLURM_PENDING_LIMIT_S": "120",
            "OAKUM_LEAVE_DEADLINE_S": "1",
            "PYTHONPATH": str(TASKS),
        }
        given: dict[str, Any] = settings | site.environment | environment
        super().__init__(folder, **given)
        self.site = site

    def jobs(self) -> list[Accounted]:
        """All jobs of Oakum's that Slurm has ever had, of this service or any other."""
        return [row for row in self.site.sacct() if row.name.startswith("oakum-")]

    def own_jobs(self) -> list[Job]:
        """Oakum's jobs that Slurm shows now, of this service or any other."""
        return [job for job in self.site.jobs() if job.name.startswith("oakum-")]

    def running(self) -> int:
        """Our jobs that run now."""
        return sum(job.state == "RUNNING" for job in self.own_jobs())

    def end(self) -> None:
        """End the service, its fragments and every job of the cluster. The service first: it would begin another
        fragment on each node that is free."""
        super().end()
        if self.site.daemon_runs("slurmctld"):
            self.site.cancel_all()

    def _settled_jobs(self) -> tuple[list[Accounted]] | None:
        """All jobs of Oakum's, of which there may be none, once none of them has ended unknown to sacct."""
        rows = self.jobs()
        known = {job.id for job in self.site.jobs()}
        return (rows,) if all(row.end or row.id in known for row in rows) else None

    def assert_one_at_a_time(self, since: float) -> None:
        """No node had two jobs of ours at once, and none of them was anywhere but in `fill`."""
        (rows,) = self.site.wait_until("sacct knows what has ended", self._settled_jobs)
        by_node: dict[str, list[Accounted]] = {}
        for row in rows:
            if row.start is not None and row.start >= since:
                assert row.partition == "fill"
                by_node.setdefault(row.nodes, []).append(row)
        for node, rows in by_node.items():
            rows.sort(key=lambda row: row.start or 0.0)
            for before, after in itertools.pairwise(rows):
                assert before.end is not None, f"{node}: {before} runs beside {after}"
                assert after.start is not None
                assert before.end <= after.start, f"{node}: {before} and {after}"


def step_of(client: OakumClient, name: str) -> int:
    """The trainer's finished steps."""
    return client.trainer(name).step


def wait_for_size(client: OakumClient, name: str, nodes: int) -> TrainerView:
    """Wait until the trainer trains on so many nodes and has finished a step with so many."""

    def probe() -> TrainerView | None:
        view = client.trainer(name)
        return view if len(view.nodes) == nodes and view.steps_at_size.get(nodes) else None

    return wait_until(f"{name} trains on {nodes} nodes", probe)


def foreground_jobs(client: OakumClient) -> dict[str, str | None]:
    """Node -> the foreground job that the service sees there, if any."""
    return {node.name: node.foreground_job for node in client.nodes().nodes}


def wait_for_starts(client: OakumClient, count: int) -> list[str]:
    """Wait until the service has reported this many starts; returns their messages, oldest first. There may be
    further ones: a service that a busy machine keeps from renewing its lease in time begins anew."""

    def starts() -> list[str]:
        return [event.message for event in events_of(client, "service.started")]

    return wait_until(
        f"it has begun {count} times", lambda: found if len(found := starts()[:count]) == count else None
    )
