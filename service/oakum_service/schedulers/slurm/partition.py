"""Whether Slurm starts jobs in our partition at all."""

from __future__ import annotations

import logging
import math

from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.configuration import ask, read_partitions

_log = logging.getLogger("oakum.slurm")


class PartitionWatch:
    """Looks at the state of the partition, at most once in a while. Not safe for threads."""

    def __init__(self, commands: SlurmCommands, partition: str, every_s: float) -> None:
        """`every_s`: shortest time in seconds between two looks."""
        self._commands = commands
        self._partition = partition
        self._every_s = every_s
        self._looked_s = -math.inf
        self._closed = ""

    def closed(self, now_s: float) -> str:
        """Why no job begins in the partition, as a clause; empty if jobs begin there or Slurm does not tell.
        `now_s` is a monotonic time."""
        if now_s - self._looked_s >= self._every_s:
            self._looked_s = now_s
            self._closed = self._look()
        return self._closed

    def _look(self) -> str:
        try:
            told = ask(self._commands, "scontrol", "--oneliner", "show", "partition", self._partition)
        except SchedulerError as error:
            _log.debug("the state of partition %s is not known: %s", self._partition, error)
            return ""
        state = read_partitions(told).get(self._partition, {}).get("State", "UP")
        return "" if state == "UP" else f"Slurm's partition {self._partition} is {state}"
