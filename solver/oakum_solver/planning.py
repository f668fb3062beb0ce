"""How plans are made at a site, apart from what there is to plan: one object for the service and for replays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from oakum_solver.errors import ProblemError
from oakum_solver.guard import StarvationGuard
from oakum_solver.look_ahead import automatic_look_ahead_reason, automatic_look_ahead_s
from oakum_solver.objectives import NamedObjective, Objective
from oakum_solver.problem import Host, MilpSolver, NodeGroup, PlannedTrainer, Problem, Terms
from oakum_solver.wording import duration


@dataclass(frozen=True)
class PlanningRules:
    """What decides a plan beside trainers and nodes. Raises `ProblemError` for a look-ahead that is no time."""

    objective: Objective = NamedObjective.SPEEDUP
    look_ahead_s: float | None = None
    """Look-ahead of the plans in seconds; None: by the rule of `look_ahead.automatic_look_ahead_s`."""
    groups: bool = False
    """Whether plans count how long holes lasted, and which nodes are expected to leave together."""
    guard: StarvationGuard = field(default_factory=StarvationGuard)
    """The starvation guard; the default guarantees nothing."""
    user_cap: int | None = None
    """Largest number of nodes of one user's trainers together; None: no cap."""
    milp_solver: MilpSolver = "cbc"
    time_limit_s: float = 5.0
    """Longest time in seconds that the solver takes for a plan."""
    gap: float = 1e-6
    """Relative gap between a plan's value and its bound at which the search for a better one stops."""

    def __post_init__(self) -> None:
        if self.look_ahead_s is not None and not 0 < self.look_ahead_s < math.inf:
            raise ProblemError(f"look_ahead_s is {self.look_ahead_s}: expected seconds above 0")

    @property
    def terms(self) -> Terms:
        """Which terms beside samples count in plans: losses when nodes leave, with `groups`. That a trainer gains
        nothing after its last sample does not count: plans are made anew at every change, and that term would take
        the nodes from a trainer with a few seconds left, because others gain more over the whole look-ahead."""
        return Terms(departures=self.groups, completion=False)

    def problem(
        self,
        trainers: tuple[PlannedTrainer, ...],
        groups: tuple[NodeGroup, ...],
        *,
        mean_rest_s: float | None,
        withheld: int,
        cluster_nodes: int | None = None,
        user_caps: Mapping[str, int],
        hosts: tuple[Host, ...] = (),
    ) -> Problem:
        """The problem that these rules pose for these trainers and idle nodes, as `Problem` describes its
        fields; `mean_rest_s` as for `look_ahead_for`. A start-up counts with at most half of the look-ahead: else
        a single slow one would keep a trainer from all nodes, and from another measurement."""
        look_ahead_s = self.look_ahead_for(mean_rest_s)
        return Problem(
            trainers=tuple(_startable(trainer, look_ahead_s / 2) for trainer in trainers),
            groups=groups,
            look_ahead_s=look_ahead_s,
            look_ahead_reason=self.look_ahead_reason(mean_rest_s),
            objective=self.objective,
            time_limit_s=self.time_limit_s,
            terms=self.terms,
            user_caps=user_caps,
            milp_solver=self.milp_solver,
            withheld=withheld,
            cluster_nodes=cluster_nodes,
            gap=self.gap,
            hosts=hosts,
        )

    def look_ahead_reason(self, mean_rest_s: float | None) -> str:
        """Why the look-ahead for these nodes is what it is, as one sentence."""
        if self.look_ahead_s is None:
            return automatic_look_ahead_reason(mean_rest_s)
        return f"The plan looks {duration(self.look_ahead_s)} ahead, as the setting look_ahead_s says."

    def look_ahead_for(self, mean_rest_s: float | None) -> float:
        """The look-ahead in seconds: as set, else by the rule for nodes that are expected to stay idle for
        `mean_rest_s` seconds on average (None: nothing is known of that)."""
        return automatic_look_ahead_s(mean_rest_s) if self.look_ahead_s is None else self.look_ahead_s


def _startable(trainer: PlannedTrainer, most_s: float) -> PlannedTrainer:
    return trainer if trainer.startup_s <= most_s else replace(trainer, startup_s=most_s)
