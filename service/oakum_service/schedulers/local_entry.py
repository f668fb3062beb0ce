"""Where the service enters the embedded cluster."""

from __future__ import annotations

from oakum_service.config import Settings
from oakum_service.errors import ConfigurationError
from oakum_service.schedulers.entry import SchedulerEntry
from oakum_service.schedulers.local import LocalCluster
from oakum_service.schedulers.port import Scheduler
from oakum_service.schedulers.workload import foreground_jobs
from oakum_solver.errors import LogError


class LocalEntry(SchedulerEntry):
    """Opens the embedded cluster."""

    def open(self, settings: Settings, secret: bytes) -> Scheduler:
        """The cluster, which needs no secret."""
        return LocalCluster(settings.local, settings.data_dir)

    def describe(self, settings: Settings) -> str:
        """Its size and its load."""
        local = settings.local
        load = (
            f"a foreground load of {local.load:.0%}" if local.swf is None else f"foreground jobs from {local.swf}"
        )
        return f"an embedded cluster of {local.nodes} nodes under {load}"

    def check(self, settings: Settings) -> None:
        """Raise `ConfigurationError` for a log on which the cluster would fail later."""
        if settings.local.swf is None:
            return
        try:
            first = next(foreground_jobs(settings.local), None)
        except LogError as error:
            raise ConfigurationError(f"the foreground jobs cannot be read: {error}") from error
        if first is None:
            raise ConfigurationError(
                f"{settings.local.swf} has no job with a run time and a number of processors: choose another SWF "
                "log, or leave --swf and OAKUM_LOCAL_SWF out for jobs from the workload model"
            )
