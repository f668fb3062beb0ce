"""Opens the scheduler that the settings name."""

from __future__ import annotations

import getpass
import hashlib

from oakum_service.config import Settings
from oakum_service.errors import ConfigurationError
from oakum_service.schedulers.local import LocalCluster
from oakum_service.schedulers.port import Scheduler


def open_scheduler(settings: Settings, secret: bytes) -> Scheduler:
    """The adapter for the configured scheduler. Raises `ConfigurationError` if there is none of that name, or
    it cannot be used with these settings."""
    match settings.scheduler:
        case "local":
            return LocalCluster(settings.local, settings.data_dir)
        case "slurm":
            return _open_slurm(settings, secret)
    raise ConfigurationError(f"scheduler {settings.scheduler!r}: expected 'local' or 'slurm'")


def _open_slurm(settings: Settings, secret: bytes) -> Scheduler:
    from oakum_service.schedulers.slurm.commands import SlurmCommands
    from oakum_service.schedulers.slurm.grace import grace_s
    from oakum_service.schedulers.slurm.handover import window_s
    from oakum_service.schedulers.slurm.reading.sources import open_source
    from oakum_service.schedulers.slurm.scheduler import SlurmScheduler
    from oakum_service.schedulers.slurm.snapshot import OakumInstance

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
