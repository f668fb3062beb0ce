"""Settings of a replay: cost model, policy, objective and limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from oakum_solver.errors import ProblemError
from oakum_solver.guard import StarvationGuard
from oakum_solver.objectives import LINEAR, NamedObjective, Objective
from oakum_solver.problem import PUBLISHED, MilpSolver, Terms
from oakum_solver.replay.costs import CostModel
from oakum_solver.solve import Policy

LOOK_AHEAD_SHARE = 0.1
LOOK_AHEAD_BOUNDS_S = (120.0, 1800.0)
"""Least and largest automatic look-ahead in seconds. A gain pays for a stall only while the plan lasts, which is a
fraction of a hole's life."""


@dataclass(frozen=True)
class ReplaySettings:
    """The settings of one replay."""

    objective: Objective = NamedObjective.SPEEDUP
    look_ahead_s: float | None = None
    """Look-ahead of the plans in seconds. None: the share `LOOK_AHEAD_SHARE` of the mean time for which idle nodes
    are expected to stay idle, within `LOOK_AHEAD_BOUNDS_S`."""
    cost: CostModel = CostModel.PAPER
    stall_s: float = 1.0
    """Seconds of a regroup, for the cost model `in-place`."""
    startup_s: float = 20.0
    """Seconds until a joining node is ready, for the cost model `in-place`."""
    max_trainers: int | None = None
    """Largest number of trainers that the planner considers at once, first come, first served; None: no limit."""
    policy: Policy = "milp"
    groups: bool = False
    """Whether the planner uses which nodes became idle together, and forecasts of how long their holes last."""
    nodes_by_number: bool = False
    """Whether nodes are chosen by their number, and not by how long they are expected to stay idle; a yardstick.
    Not together with `groups`."""
    published: bool = False
    """Whether the planner counts only what BFTrainer's published objective counts (`problem.PUBLISHED`)."""
    milp_solver: MilpSolver = "cbc"
    time_limit_s: float = 5.0
    gap: float = 1e-3
    """Relative gap at which the search for a better plan stops."""
    user_cap: int | None = None
    """Largest number of nodes of one user's trainers together; None: no cap."""
    guard: StarvationGuard = field(default_factory=StarvationGuard)
    """The starvation guard; the default guarantees nothing."""

    def __post_init__(self) -> None:
        if self.max_trainers is not None and self.max_trainers < 1:
            raise ProblemError(f"max_trainers is {self.max_trainers}: expected at least 1")
        if self.look_ahead_s is not None and not 0 < self.look_ahead_s < math.inf:
            raise ProblemError(f"look_ahead_s is {self.look_ahead_s}: expected seconds above 0")

        if self.nodes_by_number and self.groups:
            raise ProblemError("nodes_by_number and groups exclude each other: nodes of several groups differ")

    @property
    def terms(self) -> Terms:
        """Which effects beside samples the planner counts, as the settings `published` and `groups` say."""
        if self.published:
            return PUBLISHED
        return Terms(horizons=self.groups, departures=self.groups)

    @property
    def wants_facts(self) -> bool:
        """Whether the engine has to compute what each trainer has trained and waited so far, since the objective
        or the guard uses it."""
        return self.objective not in LINEAR or self.guard.wait_s < math.inf
