"""Which of our jobs are to be cancelled, and how: in as few calls to Slurm as possible."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from oakum_service.errors import CommandFailed, SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.snapshot import OwnTask

_log = logging.getLogger("oakum.slurm")
_GONE = ("already completing or completed", "Invalid job id")
"""What `scancel` says about a job that has ended."""
_BUSY = ("Resources", "Priority", "None", "ReqNodeNotAvail", "Nodes", "Node", "PartitionDown", "Reservation")
"""Reasons that begin with one of these keep a job pending because nodes are busy, away or kept for others."""
_CANCEL_AGAIN_S = 60.0
_MOST_WITHDRAWN = 10_000


class Cancellations:
    """Keeps which fragments' jobs are to be cancelled: each once, and once more if its job is still there much
    later.

    Pure: it reads no clock. Not safe for threads: `SlurmScheduler` uses it under its lock. Times are Unix seconds.
    """

    def __init__(self) -> None:
        self._due: set[str] = set()
        self._cancelled_at: dict[str, float] = {}
        self._withdrawn: deque[str] = deque(maxlen=_MOST_WITHDRAWN)
        self._ours: deque[str] = deque(maxlen=_MOST_WITHDRAWN)
        self._reasons: dict[str, str] = {}

    @property
    def are_due(self) -> bool:
        """Whether any job is to be cancelled now."""
        return bool(self._due)

    @property
    def withdrawn(self) -> frozenset[str]:
        """Fragments whose jobs the adapter has decided itself to cancel; only the newest are remembered."""
        return frozenset(self._withdrawn)

    @property
    def ours(self) -> frozenset[str]:
        """Fragments whose jobs this service has cancelled; only the newest are remembered."""
        return frozenset(self._ours)

    def request(self, fragments: Iterable[str], now: float) -> set[str]:
        """Note that the fragments' jobs are to be cancelled. Returns those that are new: the others were cancelled
        a short while ago and are not cancelled again."""
        new = {one for one in fragments if now - self._cancelled_at.get(one, 0.0) > _CANCEL_AGAIN_S}
        self._due |= new
        return new

    @property
    def kept_waiting(self) -> dict[str, str]:
        """Withdrawn fragments -> Slurm's reason, for those whose jobs did not wait for a busy node."""
        return {one: self._reasons[one] for one in self._withdrawn if one in self._reasons}

    def withdraw(
        self, fragments: Iterable[str], now: float, reasons: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Note that the fragments' jobs are to be cancelled by the adapter's own decision; `withdrawn` then names
        them. `reasons`: fragment -> why its job is pending, in Slurm's words."""
        self._withdrawn.extend(self.request(fragments, now))
        known = self.withdrawn
        told = {one: reason for one, reason in reasons.items() if not reason.startswith(_BUSY) and reason}
        self._reasons = {one: reason for one, reason in (self._reasons | told).items() if one in known}

    def take(self, now: float) -> set[str]:
        """Remove and return the fragments whose jobs are to be cancelled; the caller cancels them now."""
        taken, self._due = self._due, set()
        self._ours.extend(taken)
        self._cancelled_at |= dict.fromkeys(taken, now)
        return taken

    def note_reading(self, shown: Collection[str]) -> None:
        """Forget fragments whose jobs a reading shows no more; `shown`: fragments whose jobs it shows."""
        self._cancelled_at = {one: at for one, at in self._cancelled_at.items() if one in shown}


def waiting_in_vain(own: Mapping[str, OwnTask], now: float, limit_s: float) -> set[str]:
    """Fragments whose jobs have waited for a node for more than `limit_s` seconds: another job has got the
    node."""
    return {
        fragment
        for fragment, task in own.items()
        if task.waits and task.job.submitted_at is not None and now - task.job.submitted_at > limit_s
    }


def cancel_jobs(commands: SlurmCommands, job_ids: Iterable[str]) -> None:
    """Cancel jobs (`71`) and tasks of arrays (`71_3`). A failure is only logged; the caller tries again later."""
    if words := _folded(job_ids):
        _scancel(commands, *words)


def _scancel(commands: SlurmCommands, *which: str) -> None:
    try:
        commands.run("scancel", "--quiet", *which)
    except SchedulerError as error:
        gone = isinstance(error, CommandFailed) and any(words in error.last_line for words in _GONE)
        _log.log(logging.DEBUG if gone else logging.WARNING, "fragments could not be cancelled: %s", error)


def _folded(job_ids: Iterable[str]) -> list[str]:
    """The ids with all tasks of one array joined into one word, `71_[0,3]`, which is one call to slurmctld."""
    tasks: dict[str, list[str]] = {}
    for job_id in sorted(job_ids):
        job, _, index = job_id.partition("_")
        tasks.setdefault(job, []).append(index)
    return [_word(job, indices) for job, indices in tasks.items()]


def _word(job: str, indices: list[str]) -> str:
    if "" in indices:
        return job  # the whole array, with all its tasks
    if len(indices) == 1:
        return f"{job}_{indices[0]}"
    return f"{job}_[{','.join(sorted(indices, key=int))}]"
