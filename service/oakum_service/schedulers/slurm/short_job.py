"""Runs a job of one task that is to end soon, and leaves none behind."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from oakum_service.config import SlurmSettings
from oakum_service.errors import CommandFailed, SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands


def run_short_job(
    settings: SlurmSettings,
    name: str,
    command: Sequence[str],
    *,
    wait_s: int,
    most_s: float,
    options: Sequence[str],
) -> bytes:
    """What the command wrote to its stdout on a node, by `srun` with these options. Raises `CommandFailed` where
    the command failed, no node was free within `wait_s` seconds, or all of it took `most_s` seconds more."""
    commands = SlurmCommands(settings.model_copy(update={"command_timeout_s": wait_s + most_s}))
    own = ("--ntasks=1", f"--job-name={name}", f"--immediate={wait_s}", "--chdir=/", "--input=none")
    try:
        return commands.run("srun", *options, *own, *command)
    except CommandFailed:
        # srun may have been killed; without this its job would stay until its time limit.
        with suppress(SchedulerError):
            commands.run("scancel", "--quiet", f"--name={name}")
        raise
