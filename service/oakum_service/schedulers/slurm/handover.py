"""Nodes that Slurm is handing to foreground jobs, and what of ours would get in its way.

Once Slurm has preempted others for a pending job, it preempts nothing more for that job for KillWait +
MessageTimeout (`preempt_start_time` in `select_nodes`, node_scheduler.c). It preempts only where idle nodes do not
suffice, so the job counts on these as well: a fragment that began on any of them now would cost it all that time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.configuration import ask, read_config, seconds
from oakum_service.schedulers.slurm.jobs import was_preempted
from oakum_service.schedulers.slurm.snapshot import Instance, OwnTask, is_holding, unfold
from oakum_service.schedulers.slurm.state import SlurmJob, SlurmState

_log = logging.getLogger("oakum.slurm")
_DEFAULTS_S = {"KillWait": 30.0, "MessageTimeout": 10.0}
_ABOUT_S = 1.0
"""Slurm tells times in whole seconds."""
_CANNOT_START = ("JobHeld", "Dependency", "BeginTime", "Assoc", "QOS")
"""Reasons of pending jobs that begin so are none that more nodes would help."""


@dataclass(frozen=True)
class HandOver:
    """What Slurm is doing for foreground jobs that wait; as a rule nothing."""

    wanted: Mapping[str, SlurmJob] = field(default_factory=dict)
    """Node -> a job that may be about to start there: nothing is launched."""
    since: float = math.inf
    """When Slurm began to take nodes for these jobs."""


def find_hand_over(state: SlurmState, instance: Instance, window_s: float) -> HandOver:
    """Whether nodes that were taken from us in the last `window_s` still wait for their foreground jobs.

    Such a job could start there, and was submitted before its node was taken. Raises `SchedulerError` for
    unreadable node lists.
    """
    taken = _taken(state, instance, state.taken_at - window_s)
    if not taken:
        return HandOver()
    partitions = {node.name: frozenset(node.partitions) for node in state.nodes}
    waiting = [job for job in state.jobs if instance.intent_of(job) is None and _could_start(job)]
    wanted: dict[str, SlurmJob] = {}
    since = math.inf
    for job in _first_of_each_partition(waiting):
        usable = {name for name, theirs in partitions.items() if not theirs.isdisjoint(job.partition.split(","))}
        submitted_at = job.submitted_at or 0.0
        times = [at for node, at in taken.items() if node in usable and submitted_at <= at + _ABOUT_S]
        if times:
            since = min(since, *times)
            wanted = dict.fromkeys(usable, job) | wanted
    return HandOver(wanted, since)


def _first_of_each_partition(jobs: Iterable[SlurmJob]) -> Iterable[SlurmJob]:
    """The one submitted first; for what the others there may have had taken, that one is as good."""
    first: dict[str, SlurmJob] = {}
    for job in sorted(jobs, key=lambda job: (job.submitted_at or 0.0, job.id)):
        first.setdefault(job.partition, job)
    return first.values()


def in_the_way(own: Mapping[str, OwnTask], hand_over: HandOver) -> set[str]:
    """Fragments that might get a node that such a job counts on, or just did: Slurm would not preempt them."""
    return {
        fragment
        for fragment, task in own.items()
        if hand_over.wanted and (task.waits or _began_on(task.job, hand_over))
    }


def window_s(commands: SlurmCommands) -> float:
    """For how long Slurm preempts nothing more for a job: KillWait + MessageTimeout."""
    try:
        found = read_config(ask(commands, "scontrol", "show", "config"))
    except SchedulerError as error:
        _log.warning("%s; KillWait and MessageTimeout are taken to be Slurm's defaults", error)
        found = {}
    times_s = ((seconds(found.get(name, "")), default_s) for name, default_s in _DEFAULTS_S.items())
    return sum(default_s if told_s is None else told_s for told_s, default_s in times_s)


def _taken(state: SlurmState, instance: Instance, since: float) -> dict[str, float]:
    """Node -> when Slurm has taken it from a job of ours, if no foreground job has got it yet."""
    taken: dict[str, float] = {}
    for job in state.jobs:
        if instance.intent_of(job) is not None and was_preempted(job.states, job.preempted_at):
            at = job.preempted_at or job.end_at or 0.0
            taken |= {node: max(at, taken.get(node, at)) for node in unfold(job.nodes) if at >= since}
    for job in state.jobs if taken else ():
        if instance.intent_of(job) is None and is_holding(job):
            for node in unfold(job.nodes):
                taken.pop(node, None)
    return taken


def _could_start(job: SlurmJob) -> bool:
    return job.states[0] == "PENDING" and not job.reason.startswith(_CANNOT_START)


def _began_on(job: SlurmJob, hand_over: HandOver) -> bool:
    began = job.preempted_at is None and job.start_at is not None and job.start_at >= hand_over.since
    return began and any(node in hand_over.wanted for node in unfold(job.nodes))
