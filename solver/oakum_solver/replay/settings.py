"""How a log is replayed: what trainers are charged, who plans, and for what."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from oakum_solver.errors import ProblemError
from oakum_solver.guard import StarvationGuard
from oakum_solver.objectives import LINEAR, Metric, Objective
from oakum_solver.problem import PUBLISHED, MilpSolver, Terms
from oakum_solver.replay.costs import CostModel
from oakum_solver.solve import Policy

LOOK_AHEAD_SHARE = 0.1
LOOK_AHEAD_BOUNDS_S = (120.0, 1800.0)
"""A gain is worth a stall only while it lasts: nodes leave and plans change within a fraction of a hole's life."""


@dataclass(frozen=True)
class ReplaySettings:
    """How a log is replayed."""

    objective: Metric = Objective.SPEEDUP
    look_ahead_s: float | None = None
    """T of the plans; None: `LOOK_AHEAD_SHARE` of the seconds for which idle nodes are expected to stay so, on
    average, within `LOOK_AHEAD_BOUNDS_S`."""
    cost: CostModel = CostModel.PAPER
    stall_s: float = 1.0
    """Seconds of a regroup, for the cost model `in-place`."""
    startup_s: float = 20.0
    """Seconds until a node that joins is ready, for the cost model `in-place`."""
    max_trainers: int | None = None
    """Most trainers that run or wait for nodes at once, first come first served; None: all."""
    policy: Policy = "milp"
    groups: bool = False
    """Whether the planner looks at which nodes became idle together and how long their holes may last."""
    published: bool = False
    """Plan for the published objective alone, without the terms that it leaves out."""
    milp_solver: MilpSolver = "cbc"
    time_limit_s: float = 5.0
    gap: float = 1e-3
    """Relative gap at which a plan is good enough."""
    user_cap: int | None = None
    """Most nodes that one user's trainers may have together; None: no cap."""
    guard: StarvationGuard = field(default_factory=StarvationGuard)
    """Who has waited for nodes for how long is guaranteed some; by default nobody is."""

    def __post_init__(self) -> None:
        if self.max_trainers is not None and self.max_trainers < 1:
            raise ProblemError(f"max_trainers is {self.max_trainers}: expected at least 1")
        if self.look_ahead_s is not None and not 0 < self.look_ahead_s < math.inf:
            raise ProblemError(f"look_ahead_s is {self.look_ahead_s}: expected seconds above 0")

    @property
    def terms(self) -> Terms:
        """What the planner counts."""
        if self.published:
            return PUBLISHED
        return Terms(horizons=self.groups, departures=self.groups)

    @property
    def wants_facts(self) -> bool:
        """Whether the planner asks what each trainer has had so far. If not, not asking saves time."""
        return self.objective not in LINEAR or self.guard.wait_s < math.inf
