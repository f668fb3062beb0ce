"""Cost models: the seconds that a change of size costs a trainer in a replay."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

from oakum_solver.problem import PlannedTrainer


class CostModel(StrEnum):
    """The rule by which a replay charges rescales."""

    PAPER = "paper"
    """The whole trainer stops for its grow or shrink stall (BFTrainer, arXiv:2106.12091). Joining nodes have no
    start-up of their own. A start from no nodes costs the grow stall, too."""
    IN_PLACE = "in-place"
    """A joining node starts up while the trainer runs on. When it is ready, and when nodes leave, the trainer
    stops to regroup."""
    NONE = "none"
    """Rescales are free."""


@dataclass(frozen=True)
class RescaleCosts:
    """A cost model, and the seconds that it charges."""

    model: CostModel
    stall_s: float = 1.0
    """Seconds of a regroup, for `CostModel.IN_PLACE`."""
    startup_s: float = 20.0
    """Seconds until a joining node is ready, for `CostModel.IN_PLACE`."""

    def charged(self, trainer: PlannedTrainer) -> PlannedTrainer:
        """A copy of the trainer whose stalls and start-up are those that this cost model charges."""
        if self.model is CostModel.PAPER:
            return dataclasses.replace(trainer, startup_s=0.0)
        free = self.model is CostModel.NONE
        stall_s, startup_s = (0.0, 0.0) if free else (self.stall_s, self.startup_s)
        return dataclasses.replace(trainer, grow_stall_s=stall_s, shrink_stall_s=stall_s, startup_s=startup_s)
