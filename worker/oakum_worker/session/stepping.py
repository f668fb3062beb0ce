"""The optimizer that a library's own loop gets: its step is the session's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer


class SteppingOptimizer(Optimizer):
    """An optimizer whose `step` calls a function in its place; groups and state are the original's.

    `zero_grad` does nothing: a session forgets the gradients itself when a step begins.
    """

    def __init__(self, original: Optimizer, take_step: Callable[[], object]) -> None:
        # Not torch's own `__init__`, which would make groups and a state of its own.
        self.original, self._take_step = original, take_step

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The original's groups."""
        return self.original.param_groups

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        """The original's state by parameter."""
        return self.original.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The original's defaults."""
        return self.original.defaults

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Have the session take the step."""
        self._take_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """The original's state."""
        return self.original.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give the original a state of `state_dict`."""
        self.original.load_state_dict(state_dict)


def original_of(optimizer: Any) -> Any:
    """The optimizer within those that a library or `SteppingOptimizer` have put around it."""
    while True:
        inner = getattr(optimizer, "original", None) or getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            return optimizer
        optimizer = inner
