"""Parses what Slurm's commands write about its configuration into names and values, and parses Slurm's
durations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from oakum_service.errors import PayloadError
from oakum_service.schedulers.slurm.commands import SlurmCommands

_SETTING = re.compile(r"^(\S+)\s*= ?(.*)$", re.MULTILINE)
_OPTION = re.compile(r"(\w+)=(\S*)")
_DURATION = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)|(?:(\d+):)?(\d+)(?:\s*(?:sec|min))?")
_ENDLESS = frozenset({"UNLIMITED", "INFINITE", "NONE"})


def ask(commands: SlurmCommands, name: str, *arguments: str) -> str:
    """Run a Slurm command and return its output as text. Raises `SchedulerError` where it fails."""
    return commands.run(name, *arguments).decode(errors="replace")


def read_config(text: str) -> dict[str, str]:
    """Name -> value from `scontrol show config`. Raises `PayloadError` if the text is something else."""
    values = {name: value.strip() for name, value in _SETTING.findall(text)}
    if "SLURM_VERSION" not in values:
        raise PayloadError(f"`scontrol show config` answered {text[:80]!r}, expected a line SLURM_VERSION = ...")
    return values


def read_partitions(text: str) -> dict[str, dict[str, str]]:
    """Partition -> option -> value, from `scontrol --oneliner --all show partition`."""
    partitions = (dict(_OPTION.findall(line)) for line in text.splitlines())
    return {options["PartitionName"]: options for options in partitions if "PartitionName" in options}


def read_rows(text: str, fields: Iterable[str]) -> list[dict[str, str]]:
    """Rows of `sacctmgr --parsable2 --noheader`, each as field -> value."""
    names = tuple(fields)
    rows = (line.split("|") for line in text.splitlines() if line)
    return [dict(zip(names, row, strict=False)) for row in rows if len(row) >= len(names)]


def seconds(text: str) -> float | None:
    """Seconds in `30`, `30 sec`, `10 min`, `00:00:30`, `1-00:00:00` or `UNLIMITED` (infinite); None for
    anything else."""
    if text.strip().upper() in _ENDLESS:
        return math.inf
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, rest, short_minutes, single = (int(part or 0) for part in match.groups())
    if text.strip().endswith("min"):
        return 60.0 * single
    return float(86400 * days + 3600 * hours + 60 * (minutes + short_minutes) + rest + single)
