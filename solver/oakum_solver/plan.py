"""The solver's output: an immutable plan with its value, its upper bound and a reason for each trainer's size."""

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
    """The trainer has no nodes, and fewer nodes are free than its minimum."""
    BELOW_NEXT_SIZE = "below_next_size"
    """The trainer may have certain numbers of nodes only, and fewer nodes are free than to the next of them."""
    UNEXPLAINED = "unexplained"
    """The caller of `solve` asked for no reasons."""
    USER_CAP = "user_cap"
    PRIORITY = "priority"
    """Trainers of a higher priority have all the nodes."""


@dataclass(frozen=True)
class Reason:
    """Why a trainer has its number of nodes, with the planner's own numbers."""

    why: Why
    text: str
    """A clause that a person reads after the size, such as `its maximum is 2 nodes`."""
    gain: float = 0.0
    """What the trainer would gain over the look-ahead at its next allowed size, in the objective's unit."""
    cost: float = 0.0
    """What that step would cost, in the same unit: the stall, or the loss of the trainer `other`."""
    other: str | None = None
    """Id of the trainer that would lose least by giving a node up; None where the reason names none."""


@dataclass(frozen=True)
class Allocation:
    """The nodes granted to one trainer, and why that many."""

    trainer: str
    nodes: tuple[str, ...]
    reason: Reason


@dataclass(frozen=True)
class Plan:
    """The grant of every trainer, and how close the plan is to the best possible one."""

    allocations: tuple[Allocation, ...]
    """One for each trainer of the problem, in the problem's order."""
    value: float
    """The plan's value under the objective; `verify` has recomputed it from the node names."""
    bound: float
    """Upper bound on the value of every plan. For an objective that is not linear in samples, it is the sum of
    what each trainer would be worth if it had all nodes, which presumes that an expression never falls in
    samples."""
    solver: str
    """The method that found the plan: `greedy`, `exact` (the dynamic program), `prices` (Lagrangian prices),
    `cbc`, `highs` or `equal-share`."""
    solve_s: float
    optimal: bool
    """Whether the bound proves that no plan is worth more, rounding aside."""

    @property
    def gap(self) -> float:
        """(bound - value) / |bound|; 0 when the plan is optimal."""
        if self.bound <= self.value:
            return 0.0
        return (self.bound - self.value) / max(abs(self.bound), 1e-12)

    def grant(self, trainer_id: str) -> tuple[str, ...]:
        """Names of the nodes granted to the trainer with this id; empty where the plan does not know the
        trainer."""
        for allocation in self.allocations:
            if allocation.trainer == trainer_id:
                return allocation.nodes
        return ()
