"""Finds a job of ours by its name, where `sbatch` has not told its number."""

from __future__ import annotations

import logging

from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands

_log = logging.getLogger("oakum.slurm")


def find_job(commands: SlurmCommands, name: str) -> str | None:
    """The number of the job or array with this name; each of our submissions has a name of its own.

    None if there is none or Slurm does not answer: a job that was submitted all the same is cancelled once a
    reading shows it.
    """
    try:
        output = commands.run("squeue", "--noheader", "--all", f"--name={name}", "--format=%F")
    except SchedulerError as error:
        _log.warning("job %s could not be looked up: %s", name, error)
        return None
    job_ids = {line.strip() for line in output.decode(errors="replace").splitlines() if line.strip().isdecimal()}
    return job_ids.pop() if len(job_ids) == 1 else None
