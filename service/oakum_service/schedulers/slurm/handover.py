"""Nodes that Slurm is handing over to foreground jobs, and which of our jobs would delay that.

Once Slurm has preempted jobs for a pending job, it preempts nothing more for that job for KillWait +
MessageTimeout (`preempt_start_time` in `select_nodes`, node_scheduler.c). It preempts only what idle nodes do not
cover, so the pending job counts on the idle nodes as well. A fragment that began on one of them now would delay
the job by all that time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.configuration import ask, read_config, seconds
from oakum_service.schedulers.slurm.node_names import unfold
from oakum_service.schedulers.slurm.reading.jobs import was_preempted
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmState
from oakum_service.schedulers.slurm.snapshot import OakumInstance, OwnTask, occupies_nodes

_log = logging.getLogger("oakum.slurm")
_DEFAULTS_S = {"KillWait": 30.0, "MessageTimeout": 10.0}
_ABOUT_S = 1.0
"""Tolerance in seconds: Slurm tells times in whole seconds."""
_CANNOT_START = ("JobHeld", "Dependency", "BeginTime", "Assoc", "QOS")
"""Reasons that begin with one of these keep a job pending however many nodes are free."""


@dataclass(frozen=True)
class HandOver:
    """The nodes that Slurm is handing over to waiting foreground jobs at present; empty if it hands over none."""

    wanted: Mapping[str, SlurmJob] = field(default_factory=dict)
    """Node -> a job that may be about to start there; nothing may be launched on these nodes."""
    since: float = math.inf
    """When Slurm began to take nodes for these jobs, in Unix seconds; infinite if there are none."""


def find_hand_over(state: SlurmState, instance: OakumInstance, window_s: float) -> HandOver:
    """Find the pending jobs for which nodes may have been taken from us in the last `window_s` seconds. Returns
    the nodes on which those jobs may start.

    A pending job qualifies if it could start on a taken node and was submitted before the node was taken.
    Raises `SchedulerError` for unreadable node lists.
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
    """The job submitted first in each partition. It stands for the others: nodes taken for those would have
    been taken for it."""
    first: dict[str, SlurmJob] = {}
    for job in sorted(jobs, key=lambda job: (job.submitted_at or 0.0, job.id)):
        first.setdefault(job.partition, job)
    return first.values()


def in_the_way(own: Mapping[str, OwnTask], hand_over: HandOver) -> set[str]:
    """Fragments that would delay the hand-over in progress, since Slurm would not preempt them now: those that
    wait for any node, and those that have just begun on a node that a job of the hand-over counts on. Empty
    without a hand-over."""
    return {
        fragment
        for fragment, task in own.items()
        if hand_over.wanted and (task.waits or _began_on(task.job, hand_over))
    }


def window_s(commands: SlurmCommands) -> float:
    """Seconds for which Slurm preempts nothing more for the same job: KillWait + MessageTimeout."""
    try:
        config = read_config(ask(commands, "scontrol", "show", "config"))
    except SchedulerError as error:
        _log.warning("%s; KillWait and MessageTimeout are taken to be Slurm's defaults", error)
        config = {}
    times_s = ((seconds(config.get(name, "")), default_s) for name, default_s in _DEFAULTS_S.items())
    return sum(default_s if told_s is None else told_s for told_s, default_s in times_s)


def _taken(state: SlurmState, instance: OakumInstance, since: float) -> dict[str, float]:
    """Node -> when Slurm took it, or a part of it, from a job of ours, in Unix seconds, if no foreground job has
    begun there since."""
    taken: dict[str, float] = {}
    for job in state.jobs:
        if instance.intent_of(job) is not None and was_preempted(job.states, job.preempted_at):
            at = job.preempted_at or job.end_at or 0.0
            taken |= {node: max(at, taken.get(node, at)) for node in unfold(job.nodes) if at >= since}
    for job in state.jobs if taken else ():
        if instance.intent_of(job) is None and occupies_nodes(job):
            for node in unfold(job.nodes):
                if taken.get(node, math.inf) <= (job.start_at or state.taken_at):
                    del taken[node]
    return taken


def _could_start(job: SlurmJob) -> bool:
    return job.states[0] == "PENDING" and not job.reason.startswith(_CANNOT_START)


def _began_on(job: SlurmJob, hand_over: HandOver) -> bool:
    began = job.preempted_at is None and job.start_at is not None and job.start_at >= hand_over.since
    return began and any(node in hand_over.wanted for node in unfold(job.nodes))
