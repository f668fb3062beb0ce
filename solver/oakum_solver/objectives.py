"""What a plan maximises."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Objective(StrEnum):
    """What a plan maximises, summed over trainers and the look-ahead."""

    THROUGHPUT = "throughput"
    """weight x samples."""
    SPEEDUP = "speedup"
    """weight x samples, in units of the trainer's own rate on one node (BFTrainer's scaling efficiency)."""
    WEIGHTED = "weighted"
    """weight x samples, in units of the trainer's own best rate: weights alone decide between models."""
    FAIR_SHARE = "fair-share"
    DEADLINE = "deadline"


@dataclass(frozen=True)
class Expression:
    """An administrator's own metric."""

    source: str


Metric = Objective | Expression
