"""The last finished step's loss, as a part of the trainer's state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class LastLoss:
    """The loss of the last finished step, before its update. It is part of the state, so that a process that has
    taken no step itself can tell it."""

    def __init__(self) -> None:
        self.value: float | None = None
        """None before the first step, and where it is infinite or NaN."""

    def note(self, loss: float) -> None:
        """A step of this loss was finished."""
        self.value = loss if math.isfinite(loss) else None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take it over from a state."""
        self.value = state["value"]
