"""Which slots of one host a replay's trainers hold together, and so leave together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

from oakum_solver.errors import ProblemError
from oakum_solver.forecast import IdleNode
from oakum_solver.hosts import HostKey, hosts_of, within_hosts
from oakum_solver.logs.holes import HoleLog
from oakum_solver.problem import Bundle, PlannedTrainer

_TYPE = IdleNode("", math.inf).node_type
"""A log tells no types."""


class HeldBundles:
    """The slots that fragments have together. A slot is an index into the log's nodes."""

    def __init__(self, log: HoleLog) -> None:
        self._names = log.nodes
        self.host: list[str | None] = [None] * len(log.nodes)
        """For each slot the name of its host; None where it is all of it."""
        self.sizes: dict[HostKey, int] = {}
        """Host -> how many slots it has, idle or not."""
        self._mates: dict[int, tuple[int, ...]] = {}
        """Slot -> all slots of its fragment, if these are several."""
        if (parts := log.parts) is not None:
            slots = parts.slots.tolist()
            self.host = [parts.names[host] if slots[host] > 1 else None for host in parts.host.tolist()]
            self.sizes = {(name, _TYPE): size for name, size in zip(parts.names, slots, strict=True)}

    def fitted(self, trainer: PlannedTrainer) -> PlannedTrainer:
        """The trainer with the numbers of slots that it could have, were all of them idle. Raises `ProblemError`
        where there is none."""
        if trainer.bundle == 1:
            return trainer
        slots = [IdleNode(name, math.inf, host=host) for name, host in zip(self._names, self.host, strict=True)]
        fitted = within_hosts(trainer, hosts_of(slots, self.sizes, ()), slots)
        if fitted.min_nodes > len(slots):
            asked = "whole nodes" if trainer.bundle == "host" else f"{trainer.bundle} slots of one node"
            raise ProblemError(
                f"trainer {trainer.label}: its fragments need {asked}, of which no number that it may have is in "
                "this log: give another slots_per_fragment or max_nodes, or a log with slots"
            )
        return dataclasses.replace(fitted, limit="")

    def begin(self, slots: Iterable[int], bundle: Bundle) -> None:
        """Note that fragments with this bundle begin on these slots, of which each host has as many as make
        bundles."""
        if bundle == 1:
            return
        on_host: dict[str, list[int]] = {}
        for slot in sorted(slots):
            if (host := self.host[slot]) is not None:
                on_host.setdefault(host, []).append(slot)
        for of_one in on_host.values():
            size = len(of_one) if bundle == "host" else bundle
            for first in range(0, len(of_one), size):
                mates = tuple(of_one[first : first + size])
                self._mates |= dict.fromkeys(mates, mates)

    def leaving_with(self, slots: Iterable[int]) -> set[int]:
        """The slots, with all others of fragments that have one of them: a fragment leaves as a whole."""
        return {mate for slot in slots for mate in self._mates.get(slot, (slot,))}

    def end(self, slots: Iterable[int]) -> None:
        """Note that the fragments on these slots have ended."""
        for slot in slots:
            self._mates.pop(slot, None)

    def together(self) -> Iterator[tuple[str, ...]]:
        """The names of the slots of each fragment that has several."""
        for slot, mates in self._mates.items():
            if slot == mates[0]:
                yield tuple(self._names[mate] for mate in mates)
