"""Asks Slurm how long a fragment has from SIGTERM to SIGKILL."""

from __future__ import annotations

import logging

from oakum_service.config import SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.configuration import ask, read_config, read_partitions, read_rows, seconds

_log = logging.getLogger("oakum.slurm")
_UNKNOWN_S = 30.0
"""Assumed where Slurm does not say: its default KillWait."""
_SHORTEST_S = 1.0


def grace_s(commands: SlurmCommands, settings: SlurmSettings) -> float:
    """Seconds from SIGTERM to SIGKILL: GraceTime of the partition or QOS whose jobs are preempted; KillWait if
    nothing preempts, since then only the time limit ends jobs. Where Slurm does not answer, 30 s, with a warning
    in the log."""
    try:
        time_s = _ask(commands, settings)
    except SchedulerError as error:
        _log.warning("%s; the grace is taken to be %g s: set OAKUM_SLURM_GRACE_S", error, _UNKNOWN_S)
        return _UNKNOWN_S
    return _UNKNOWN_S if time_s is None else max(_SHORTEST_S, time_s)


def _ask(commands: SlurmCommands, settings: SlurmSettings) -> float | None:
    if settings.preemption == "partition":
        shown = ask(commands, "scontrol", "show", "partition", settings.partition, "--oneliner")
        return seconds(read_partitions(shown).get(settings.partition, {}).get("GraceTime", ""))
    if settings.preemption == "qos" and settings.qos is not None:
        options = ("--noheader", "--parsable2")
        shown = ask(commands, "sacctmgr", *options, "show", "qos", settings.qos, "format=GraceTime")
        return next((seconds(row["GraceTime"]) for row in read_rows(shown, ("GraceTime",))), None)
    return seconds(read_config(ask(commands, "scontrol", "show", "config")).get("KillWait", ""))
