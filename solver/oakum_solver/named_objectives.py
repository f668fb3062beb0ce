"""The objectives that are known by name: what each maximises, and the unit of its values. Light to import:
documents and terminals name objectives without computing with them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class NamedObjective(StrEnum):
    """The objectives that are known by name; a plan maximises their sum over all trainers."""

    THROUGHPUT = "throughput"
    """weight x samples."""
    SPEEDUP = "speedup"
    """weight x samples / samples/s on one node (BFTrainer's scaling efficiency)."""
    WEIGHTED = "weighted"
    """weight x samples / samples/s at the maximum size: weights alone decide between models of different speed."""
    FAIR_SHARE = "fair-share"
    """Proportional fairness over the samples that a trainer has had and gets."""
    DEADLINE = "deadline"
    """Keep as many trainers as possible on schedule for their deadlines."""


DESCRIPTIONS: Final = {
    NamedObjective.THROUGHPUT: "samples, times the weight: models with many samples per second get most nodes",
    NamedObjective.SPEEDUP: "speed relative to one node, times the weight: nodes go where they help the most",
    NamedObjective.WEIGHTED: "speed relative to the most nodes, times the weight: weights alone decide",
    NamedObjective.FAIR_SHARE: "proportional fairness over all that trainers have had: little comes first",
    NamedObjective.DEADLINE: "as many trainers as possible on schedule for their deadlines",
}
"""What each named objective maximises, for people who choose one."""


@dataclass(frozen=True)
class Unit:
    """The unit of an objective's values. As text, it says all that sets them apart from other values."""

    short: str
    """The bare unit, for a second value in the same sentence: `samples`, `s` or `points`."""
    of: str = ""
    """What there is so much of, as the end of a phrase."""
    notes: tuple[str, ...] = ()
    """What else was done to the values."""

    def __str__(self) -> str:
        notes = f" ({', '.join(self.notes)})" if self.notes else ""
        return " ".join(filter(None, (self.short, self.of))) + notes


UNITS: Final = {
    NamedObjective.THROUGHPUT: Unit("samples"),
    NamedObjective.SPEEDUP: Unit("s", "of training on one node"),
    NamedObjective.WEIGHTED: Unit("s", "of training at its largest size"),
    NamedObjective.FAIR_SHARE: Unit("s", "of training on one node", ("counted less the more it has trained",)),
    NamedObjective.DEADLINE: Unit("s", "on schedule"),
}
"""The units of the named objectives' values; those of a formula are points."""

POINTS: Final = Unit("points")
"""The unit of a formula's values."""
