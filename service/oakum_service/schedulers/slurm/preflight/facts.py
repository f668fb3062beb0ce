"""Asks Slurm for its own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from oakum_service.config import SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.configuration import ask, read_config, read_rows
from oakum_service.schedulers.slurm.partition import ask_partitions

QOS_FIELDS = (
    "Name",
    "Preempt",
    "PreemptMode",
    "PreemptExemptTime",
    "GraceTime",
    "MaxSubmitPU",
    "MaxSubmitPA",
    "GrpSubmit",
    "GrpTRES",
    "MaxTRESPU",
    "MaxWall",
)
_USER_FIELDS = ("User", "AdminLevel")


@dataclass(frozen=True)
class SiteFacts:
    """A cluster's configuration as Slurm writes it."""

    config: Mapping[str, str]
    """Name -> value, from `scontrol show config`."""
    partitions: Mapping[str, Mapping[str, str]]
    """Partition -> option -> value."""
    qos: Mapping[str, Mapping[str, str]] | None
    """QOS -> field -> value; None if accounting does not answer."""
    admin_level: str | None
    """AdminLevel of our account: `None`, `Operator` or `Administrator`; None if accounting does not know the
    account."""
    test_only: str = ""
    """Objection of `sbatch --test-only` to a fragment's job; empty if Slurm would accept the job."""
    unanswered: Mapping[str, str] = field(default_factory=dict)
    """Command -> why it gave no answer."""

    def value(self, name: str) -> str:
        """A value of slurm.conf; empty if it is not set or this version does not know it."""
        found = self.config.get(name, "").strip()
        return "" if found in ("(null)", "N/A") else found


def gather(commands: SlurmCommands, settings: SlurmSettings, user: str) -> SiteFacts:
    """Ask Slurm. Raises `SchedulerError` if slurmctld does not answer; accounting may be missing. Returns the
    cluster's configuration."""
    config = read_config(ask(commands, "scontrol", "show", "config"))
    partitions = ask_partitions(commands)
    unanswered: dict[str, str] = {}
    qos = _accounting(commands, unanswered, "qos", QOS_FIELDS)
    users = _accounting(commands, unanswered, "user", _USER_FIELDS, user)
    return SiteFacts(
        config,
        partitions,
        None if qos is None else {row["Name"]: row for row in qos},
        users[0]["AdminLevel"] if users else None,
        _test_only(commands, settings) if settings.partition in partitions else "",
        unanswered,
    )


def _accounting(
    commands: SlurmCommands, unanswered: dict[str, str], what: str, fields: tuple[str, ...], *names: str
) -> list[dict[str, str]] | None:
    shared = ("--parsable2", "--noheader", "--readonly")
    try:
        text = ask(commands, "sacctmgr", *shared, "show", what, *names, f"format={','.join(fields)}")
    except SchedulerError as failure:
        unanswered["sacctmgr"] = str(failure)
        return None
    return read_rows(text, fields)


def submit_options(settings: SlurmSettings) -> list[str]:
    """The options of `sbatch` and `srun` for every fragment's job."""
    given = {"partition": settings.partition, "qos": settings.qos, "account": settings.account}
    further = {name: value for name, value in settings.options.items() if name not in given}
    chosen = {name: value for name, value in given.items() if value} | further
    part = ["--gres=gpu:1"] if settings.slots == "gpu" else ["--exclusive"]
    return ["--nodes=1", *part, *(f"--{name}={value}" for name, value in chosen.items())]


def _test_only(commands: SlurmCommands, settings: SlurmSettings) -> str:
    limit = f"--time={max(int(settings.longest_s // 60), 1)}"
    try:
        commands.run("sbatch", "--test-only", limit, *submit_options(settings), given=b"#!/bin/sh\n")
    except SchedulerError as failure:
        return str(failure)
    return ""
