"""What Slurm's partitions tell: whether jobs start in ours at all, and in which of them jobs share no nodes."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.configuration import ask, read_partitions
from oakum_service.schedulers.slurm.hole_policy import Exclusive

_log = logging.getLogger("oakum.slurm")
_WHOLE = {"OverSubscribe": "EXCLUSIVE", "ExclusiveTopo": "YES"}
"""Options of a partition with these values have each job get whole nodes."""


def whole_nodes_by(options: Mapping[str, str]) -> str:
    """The option by which each job of a partition with these options gets whole nodes, as `slurm.conf` has it;
    empty where jobs share nodes."""
    return next((f"{name}={value}" for name, value in _WHOLE.items() if options.get(name) == value), "")


def has_one_user(options: Mapping[str, str]) -> bool:
    """Whether the nodes of a partition with these options have jobs of one user only."""
    return options.get("ExclusiveUser", "NO") != "NO"


def ask_partitions(commands: SlurmCommands) -> dict[str, dict[str, str]]:
    """Partition -> option -> value. Raises `SchedulerError` where Slurm does not tell."""
    return read_partitions(ask(commands, "scontrol", "--oneliner", "--all", "show", "partition"))


def exclusive_among(partitions: Mapping[str, Mapping[str, str]]) -> Exclusive:
    """Those of the partitions in which jobs do not share nodes as elsewhere."""
    return Exclusive(
        whole=frozenset(name for name, options in partitions.items() if whole_nodes_by(options)),
        one_user=frozenset(name for name, options in partitions.items() if has_one_user(options)),
    )


class PartitionWatch:
    """Looks at the partitions, at most once in a while. Not safe for threads."""

    def __init__(self, commands: SlurmCommands, partition: str, every_s: float) -> None:
        """`every_s`: shortest time in seconds between two looks."""
        self._commands = commands
        self._partition = partition
        self._every_s = every_s
        self._looked_s = -math.inf
        self.closed = ""
        """Why no job begins in our partition, as a clause; empty if jobs begin there or Slurm does not tell."""
        self.exclusive = Exclusive()
        """The partitions in which jobs do not share nodes as elsewhere, as Slurm has told last."""

    def look(self, now_s: float) -> None:
        """Look if it is time to; `now_s` is a monotonic time."""
        if now_s - self._looked_s < self._every_s:
            return
        self._looked_s = now_s
        self.closed = ""
        try:
            partitions = ask_partitions(self._commands)
        except SchedulerError as error:
            _log.debug("what partitions are like is not known: %s", error)
            return
        self.exclusive = exclusive_among(partitions)
        state = partitions.get(self._partition, {}).get("State", "UP")
        if state != "UP":
            self.closed = f"Slurm's partition {self._partition} is {state}"
