"""What a change of size costs a trainer, by cost model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

from oakum_solver.problem import Trainer


class CostModel(StrEnum):
    """How a replay charges rescales."""

    PAPER = "paper"
    """The whole trainer stands still for its grow or shrink stall (BFTrainer, arXiv:2106.12091); a node that joins
    needs no start-up of its own. Starting from no node costs the grow stall, too."""
    IN_PLACE = "in-place"
    """A joining node starts up while the trainer runs on; then, and when nodes leave, the trainer regroups."""
    NONE = "none"
    """Nothing costs anything."""


@dataclass(frozen=True)
class RescaleCosts:
    """The seconds that a cost model charges."""

    model: CostModel
    stall_s: float = 1.0
    """A regroup, for `CostModel.IN_PLACE`."""
    startup_s: float = 20.0
    """Until a node that joins is ready, for `CostModel.IN_PLACE`."""

    def charged(self, trainer: Trainer) -> Trainer:
        """The trainer with the stalls and start-up that this model charges."""
        if self.model is CostModel.PAPER:
            return dataclasses.replace(trainer, startup_s=0.0)
        free = self.model is CostModel.NONE
        stall_s, startup_s = (0.0, 0.0) if free else (self.stall_s, self.startup_s)
        return dataclasses.replace(trainer, grow_stall_s=stall_s, shrink_stall_s=stall_s, startup_s=startup_s)
