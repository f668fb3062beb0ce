"""How our jobs are cancelled: in as few calls as can be, whatever has become of them meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from oakum_service.errors import CommandFailed, SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands

_log = logging.getLogger("oakum.slurm")
_GONE = ("already completing or completed", "Invalid job id")
"""What `scancel` says of a job that has ended."""


def cancel_jobs(commands: SlurmCommands, job_ids: Iterable[str]) -> None:
    """Cancel jobs, `71`, and tasks of arrays, `71_3`. A failure is logged: who wants them gone asks again."""
    if words := _folded(job_ids):
        _scancel(commands, *words)


def _scancel(commands: SlurmCommands, *which: str) -> None:
    try:
        commands.run("scancel", "--quiet", *which)
    except SchedulerError as error:
        gone = isinstance(error, CommandFailed) and any(words in error.last_line for words in _GONE)
        _log.log(logging.DEBUG if gone else logging.WARNING, "fragments could not be cancelled: %s", error)


def _folded(job_ids: Iterable[str]) -> list[str]:
    """Tasks of one array as one word, which is one call to slurmctld: `71_[0,3]`."""
    tasks: dict[str, list[str]] = {}
    for job_id in sorted(job_ids):
        job, _, index = job_id.partition("_")
        tasks.setdefault(job, []).append(index)
    return [_word(job, indices) for job, indices in tasks.items()]


def _word(job: str, indices: list[str]) -> str:
    if "" in indices:
        return job  # with all tasks that it may have
    if len(indices) == 1:
        return f"{job}_{indices[0]}"
    return f"{job}_[{','.join(sorted(indices, key=int))}]"
