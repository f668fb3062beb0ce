"""Where the service enters Slurm's folder."""

from __future__ import annotations

import getpass
import hashlib
from collections.abc import Callable

from oakum_service.config import Settings
from oakum_service.db.engine import Sessions
from oakum_service.errors import ConfigurationError
from oakum_service.schedulers.entry import SchedulerEntry
from oakum_service.schedulers.port import HookEvent, Scheduler
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.grace import grace_s
from oakum_service.schedulers.slurm.handover import window_s
from oakum_service.schedulers.slurm.hooks import routes
from oakum_service.schedulers.slurm.hooks.intake import SlurmHookIntake
from oakum_service.schedulers.slurm.reading.sources import open_source
from oakum_service.schedulers.slurm.scheduler import SlurmScheduler
from oakum_service.schedulers.slurm.snapshot import OakumInstance


class SlurmEntry(SchedulerEntry):
    """Opens a cluster of Slurm's, and takes what its hooks report."""

    router = routes.router

    def open(self, settings: Settings, secret: bytes) -> Scheduler:
        """The adapter for the configured partition. Raises `ConfigurationError` if none is configured, or Slurm's
        state cannot be read as the settings say."""
        slurm = settings.slurm
        if not slurm.partition:
            raise ConfigurationError(
                "OAKUM_SLURM_PARTITION is not set: name the partition whose jobs foreground jobs may preempt"
            )
        # Services under one account tell their jobs apart by this name.
        instance = OakumInstance(getpass.getuser(), hashlib.sha256(secret).hexdigest()[:8])
        commands = SlurmCommands(slurm)
        given_s = slurm.grace_s or grace_s(commands, slurm)
        source = open_source(slurm)
        return SlurmScheduler(slurm, settings.data_dir, instance, source, commands, given_s, window_s(commands))

    def describe(self, settings: Settings) -> str:
        """Which nodes fragments may get."""
        return f"the nodes of Slurm's partition {settings.slurm.partition}"

    def open_hooks(
        self, sessions: Sessions, readers: Sessions, tell: Callable[[HookEvent], None]
    ) -> SlurmHookIntake:
        """What writes the reports of hooks to the database."""
        return SlurmHookIntake(sessions, readers, tell)
