"""The table of schedulers: what is known of each before it is opened.

A new scheduler is a folder in `schedulers` and a line here. Nothing else compares a scheduler's name.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulerKind:
    """What a scheduler can do, and where the service finds it."""

    entry: str
    """Its `SchedulerEntry`, as `module:class`. It is imported when the scheduler is asked for something."""
    is_embedded: bool = False
    """Whether the cluster lives in the service's process, and its nodes are this machine."""
    learns_curves: bool = True
    """Whether rates measured there tell of the number of nodes, so that plans use curves learnt from them unless
    the settings say otherwise."""
    runs_as_submitters: bool = False
    """Whether trainers' code may run in the accounts of those who submitted them."""
    takes_slurm_options: bool = False
    """Whether trainers' jobs may ask for what is in the table `slurm` of their specs."""
    state_by_post: str = ""
    """The setting with which a collector posts the cluster's state to the service; empty where none can."""
    launcher_lines: tuple[str, ...] = ()
    """How the lines begin that it writes itself into the log of a fragment's job."""
    ending_lines: tuple[str, ...] = ()
    """How those of them begin that tell that the job has ended, not why."""


SCHEDULERS: dict[str, SchedulerKind] = {
    "local": SchedulerKind(
        "oakum_service.schedulers.local_entry:LocalEntry", is_embedded=True, learns_curves=False
    ),
    "slurm": SchedulerKind(
        "oakum_service.schedulers.slurm.entry:SlurmEntry",
        runs_as_submitters=True,
        takes_slurm_options=True,
        state_by_post="OAKUM_SLURM_STATE=push",
        launcher_lines=("srun: ", "sbatch: ", "slurmstepd: ", "slurmd["),
        ending_lines=("srun: error:", "srun: Terminating", "srun: launch/", "slurmstepd: error: ***"),
    ),
}
"""Name of a scheduler, as in the settings -> what it can do."""


def scheduler_names() -> str:
    """The names of all schedulers, for messages."""
    return " or ".join(map(repr, SCHEDULERS))


def launcher_lines() -> tuple[str, ...]:
    """How the lines begin that schedulers write into fragments' logs."""
    return tuple(begin for kind in SCHEDULERS.values() for begin in kind.launcher_lines)


def ending_lines() -> tuple[str, ...]:
    """How those of them begin that tell that a job has ended, not why."""
    return tuple(begin for kind in SCHEDULERS.values() for begin in kind.ending_lines)


def is_embedded(name: str) -> bool:
    """Whether the scheduler of this name is known here and its nodes are the service's machine."""
    return name in SCHEDULERS and SCHEDULERS[name].is_embedded
