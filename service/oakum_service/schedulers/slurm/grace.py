"""How long a fragment has from SIGTERM to SIGKILL, as far as Slurm says."""

from __future__ import annotations

import logging
import re

from oakum_service.config import SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands

_log = logging.getLogger("oakum.slurm")
_UNKNOWN_S = 30.0
"""Where nobody says: Slurm's default KillWait."""
_SHORTEST_S = 1.0
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)")


def grace_s(commands: SlurmCommands, settings: SlurmSettings) -> float:
    """GraceTime of the partition or QOS whose jobs are preempted; KillWait where none are, for the time limit."""
    try:
        found = _ask(commands, settings)
    except SchedulerError as error:
        _log.warning("%s; the grace is taken to be %g s: set OAKUM_SLURM_GRACE_S", error, _UNKNOWN_S)
        return _UNKNOWN_S
    return _UNKNOWN_S if found is None else max(_SHORTEST_S, found)


def _ask(commands: SlurmCommands, settings: SlurmSettings) -> float | None:
    if settings.preemption == "partition":
        shown = commands.run("scontrol", "show", "partition", settings.partition, "--oneliner")
        return _number(r"\bGraceTime=(\d+)", shown)
    if settings.preemption == "qos" and settings.qos is not None:
        words = ("--noheader", "--parsable2", "show", "qos", settings.qos, "format=GraceTime")
        return _clock(commands.run("sacctmgr", *words).decode())
    return _number(r"\bKillWait\s*=\s*(\d+)", commands.run("scontrol", "show", "config"))


def _number(pattern: str, shown: bytes) -> float | None:
    found = re.search(pattern, shown.decode(errors="replace"))
    return float(found[1]) if found else None


def _clock(shown: str) -> float | None:
    """Seconds of `1-02:03:04`."""
    found = _CLOCK.search(shown)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
