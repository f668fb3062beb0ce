"""A real `oakum serve` on a real Slurm."""

from __future__ import annotations

import itertools
from pathlib import Path

from oakum_service.client import OakumClient
from running_service import TASKS, RunningService
from slurm_site import Accounted, SlurmSite


class SlurmService(RunningService):
    """A service over the cluster's partition `fill`, reading it often."""

    def __init__(self, folder: Path, site: SlurmSite, **environment: str) -> None:
        settings = {
            "OAKUM_SCHEDULER": "slurm",
            "OAKUM_SLURM_PARTITION": "fill",
            "OAKUM_SLURM_POLL_FLOOR_S": "0.5",
            "OAKUM_SLURM_HOOK_FLOOR_S": "0.2",
            "OAKUM_SLURM_PENDING_LIMIT_S": "5",
            "PYTHONPATH": str(TASKS),
        }
        super().__init__(folder, **(settings | site.environment | environment))
        self.site = site

    def jobs(self) -> list[Accounted]:
        """All jobs of Oakum's that Slurm has ever had, of this service or any other."""
        return [row for row in self.site.sacct() if row.name.startswith("oakum-")]

    def running(self) -> int:
        """Our jobs that run now."""
        return sum(job.name.startswith("oakum-") and job.state == "RUNNING" for job in self.site.jobs())

    def assert_one_at_a_time(self, since: float) -> None:
        """No node had two jobs of ours at once, and none of them was anywhere but in `fill`."""
        by_node: dict[str, list[Accounted]] = {}
        for row in self.jobs():
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
