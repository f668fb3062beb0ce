"""What the solver answers: an immutable plan with its value, its bound and its reasons."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Why(StrEnum):
    """Why a trainer has n nodes and not n + 1."""

    NO_IDLE_NODE = "no_idle_node"
    AT_MAXIMUM = "at_maximum"
    CURVE_FLAT = "curve_flat"
    STALL_NOT_WORTH_IT = "stall_not_worth_it"
    OTHERS_GAIN_MORE = "others_gain_more"
    BELOW_MINIMUM = "below_minimum"
    """It has none, and fewer nodes are free than its minimum."""
    UNEXPLAINED = "unexplained"
    """Nobody asked."""
    USER_CAP = "user_cap"
    PRIORITY = "priority"
    """Every node has gone to trainers of a higher priority."""


@dataclass(frozen=True)
class Reason:
    """The reason for a trainer's size, from the model's own numbers."""

    why: Why
    text: str
    """One sentence for a person."""
    gain: float = 0.0
    """What one node more would add for this trainer over the look-ahead, in the objective's unit."""
    cost: float = 0.0
    """What that node gives where the plan puts it, or the stall it would cost."""
    other: str | None = None
    """The trainer that would miss the node least, where others gain more from it."""


@dataclass(frozen=True)
class Allocation:
    """One trainer's grant."""

    trainer: str
    nodes: tuple[str, ...]
    reason: Reason


@dataclass(frozen=True)
class Plan:
    """For each trainer its grant, and how good the whole is."""

    allocations: tuple[Allocation, ...]
    """One for each trainer of the problem, in the problem's order."""
    value: float
    """The objective's value, recomputed outside the solver."""
    bound: float
    """No plan is worth more. For an objective that is not linear in samples it is what the trainers would be worth
    without each other; an expression is taken to rise in samples."""
    solver: str
    """Who found the plan: `greedy`, `exact` (the dynamic program), `prices`, `cbc`, `highs`, or
    `equal-share`."""
    solve_s: float
    optimal: bool
    """Whether no plan at all is worth more, to rounding."""
    """Whether no plan at all is worth more, to rounding."""

    @property
    def gap(self) -> float:
        """Relative distance of the value to the bound; 0 when optimal."""
        if self.bound <= self.value:
            return 0.0
        return (self.bound - self.value) / max(abs(self.bound), 1e-12)

    def grant(self, trainer: str) -> tuple[str, ...]:
        """Nodes granted to the trainer."""
        for allocation in self.allocations:
            if allocation.trainer == trainer:
                return allocation.nodes
        return ()
