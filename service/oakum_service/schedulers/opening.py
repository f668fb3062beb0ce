"""Opens the scheduler that the settings name."""

from __future__ import annotations

import getpass
import hashlib
import logging
import re

from oakum_service.config import Settings
from oakum_service.errors import ConfigurationError, SchedulerError
from oakum_service.schedulers.local import LocalCluster
from oakum_service.schedulers.port import Scheduler

_log = logging.getLogger("oakum.slurm")
_GRACE_S = 30.0
"""Where nobody says: Slurm's default KillWait, which holds for jobs that are cancelled."""
_SHORTEST_GRACE_S = 1.0


def open_scheduler(settings: Settings, secret: bytes) -> Scheduler:
    """The adapter. Raises `ConfigurationError` for one that does not exist, or cannot be used as configured."""
    match settings.scheduler:
        case "local":
            return LocalCluster(settings.local, settings.data_dir)
        case "slurm":
            return _open_slurm(settings, secret)
    raise ConfigurationError(f"scheduler {settings.scheduler!r}: expected 'local' or 'slurm'")


def _open_slurm(settings: Settings, secret: bytes) -> Scheduler:
    from oakum_service.schedulers.slurm.commands import SlurmCommands
    from oakum_service.schedulers.slurm.scheduler import SlurmScheduler
    from oakum_service.schedulers.slurm.snapshot import Instance
    from oakum_service.schedulers.slurm.sources import open_source

    slurm = settings.slurm
    if not slurm.partition:
        raise ConfigurationError(
            "OAKUM_SLURM_PARTITION is not set: name the partition whose jobs foreground jobs may preempt"
        )
    # Two services under one account must not take each other's jobs for their own.
    instance = Instance(getpass.getuser(), hashlib.sha256(secret).hexdigest()[:8])
    commands = SlurmCommands(slurm)
    grace_s = slurm.grace_s or _partition_grace_s(commands, slurm.partition)
    return SlurmScheduler(slurm, settings.data_dir, instance, open_source(slurm), commands, grace_s)


def _partition_grace_s(commands: object, partition: str) -> float:
    """The partition's GraceTime, as far as Slurm says."""
    from oakum_service.schedulers.slurm.commands import SlurmCommands

    assert isinstance(commands, SlurmCommands)
    try:
        text = commands.run("scontrol", "show", "partition", partition, "--oneliner").decode()
    except SchedulerError as error:
        _log.warning("the grace of partition %s is taken to be %g s: %s", partition, _GRACE_S, error)
        return _GRACE_S
    found = re.search(r"\bGraceTime=(\d+)", text)
    return max(_SHORTEST_GRACE_S, float(found[1])) if found else _GRACE_S
