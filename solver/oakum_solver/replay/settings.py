"""Settings of a replay: the rules of its plans, cost model, policy and limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from oakum_solver.errors import ProblemError
from oakum_solver.exploration import Exploration
from oakum_solver.objectives import LINEAR
from oakum_solver.planning import PlanningRules
from oakum_solver.problem import PUBLISHED, Terms
from oakum_solver.replay.costs import CostModel
from oakum_solver.solve import Policy


@dataclass(frozen=True)
class ReplaySettings(PlanningRules):
    """The settings of one replay. Its plans follow the service's rules; yardsticks have names of their own."""

    gap: float = 1e-3
    """As in `PlanningRules`; larger than the service's, since a replay makes many thousands of plans."""
    cost: CostModel = CostModel.PAPER
    stall_s: float = 1.0
    """Seconds of a regroup, for the cost model `in-place`."""
    startup_s: float = 20.0
    """Seconds until a joining node is ready, for the cost model `in-place`."""
    learning: Exploration | None = None
    """How the trainers' curves, which nobody knows before, are learnt; None: they are known."""
    max_trainers: int | None = None
    """Largest number of trainers that the planner considers at once, first come, first served; None: no limit."""
    policy: Policy = "milp"
    nodes_by_number: bool = False
    """Whether nodes are chosen by their number, and not by how long they are expected to stay idle; a yardstick.
    Not together with `groups`."""
    published: bool = False
    """Whether the planner counts only what BFTrainer's published objective counts (`problem.PUBLISHED`)."""

    @classmethod
    def following(cls, rules: PlanningRules, **own: Any) -> ReplaySettings:
        """Settings whose plans follow `rules`; `own` are the fields that a replay has beside them."""
        return cls(**{field.name: getattr(rules, field.name) for field in fields(PlanningRules)}, **own)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_trainers is not None and self.max_trainers < 1:
            raise ProblemError(f"max_trainers is {self.max_trainers}: expected at least 1")
        if self.nodes_by_number and self.groups:
            raise ProblemError("nodes_by_number and groups exclude each other: nodes of several groups differ")

    @property
    def terms(self) -> Terms:
        """As in `PlanningRules`, or with the setting `published` as published."""
        return PUBLISHED if self.published else super().terms

    @property
    def wants_facts(self) -> bool:
        """Whether the engine has to compute what each trainer has trained and waited so far, since the objective
        or the guard uses it."""
        return self.objective not in LINEAR or self.guard.wait_s < math.inf
