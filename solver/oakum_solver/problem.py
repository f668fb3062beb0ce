"""What the solver is asked: trainers, groups of idle nodes, and how far to look ahead."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from oakum_solver.errors import ProblemError
from oakum_solver.objectives import Metric, Objective


@dataclass(frozen=True)
class Curve:
    """A scalability curve: samples/s at n nodes, linear between its points and from the origin.

    Beyond the last point the rate stays what it is there: nothing is promised that was not given.
    Raises `ProblemError` unless the points rise in nodes and never fall in rate.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ProblemError("a curve needs at least one point (nodes, samples/s)")
        for nodes, rate in self.points:
            if nodes < 1 or not math.isfinite(rate) or rate < 0:
                raise ProblemError(f"curve point ({nodes}, {rate}): expected nodes >= 1 and a finite rate >= 0")
        for (n0, r0), (n1, r1) in itertools.pairwise(self.points):
            if n1 <= n0 or r1 < r0:
                raise ProblemError(f"curve falls from ({n0}, {r0}) to ({n1}, {r1}): expected it to rise")

    def rate(self, nodes: int) -> float:
        """Samples/s at `nodes` nodes."""
        if nodes <= 0:
            return 0.0
        index = bisect.bisect_left(self.points, (nodes, -math.inf))
        if index == len(self.points):
            return self.points[-1][1]
        n1, r1 = self.points[index]
        n0, r0 = self.points[index - 1] if index else (0, 0.0)
        return r0 + (r1 - r0) * (nodes - n0) / (n1 - n0)


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that are alike for the plan: same type, same present owner, same forecast departure."""

    nodes: tuple[str, ...]
    owner: str | None = None
    """The trainer that holds these nodes now."""
    horizon_s: float = math.inf
    """Forecast mean of the seconds until the holes of these nodes end."""
    node_type: str = "cpu"
    cohort: str | None = None
    """Nodes of one cohort are expected to leave together, whoever holds them. None: nothing is known of that,
    and the nodes are a cohort of their own with the others of the same horizon."""


@dataclass(frozen=True)
class Trainer:
    """One elastic trainer as the allocator sees it."""

    id: str
    curve: Curve
    """Samples/s on nodes of any type, or, with `curves_by_type`, of a type that is not named there: none."""
    min_nodes: int = 1
    max_nodes: int = 64
    weight: float = 1.0
    grow_stall_s: float = 1.0
    """Seconds without progress when nodes join."""
    shrink_stall_s: float = 1.0
    """Seconds without progress when nodes are given up or taken."""
    startup_s: float = 20.0
    """Seconds in which a node that joins does nothing yet."""
    curves_by_type: Mapping[str, Curve] | None = None
    """Curves on single types of nodes; the trainer then runs on these types only. None: all types are alike."""
    mixes_types: bool = False
    """Whether it may run on nodes of several types at once."""
    priority: int = 0
    """Trainers of a higher priority choose first, whatever the others would gain."""
    user: str | None = None
    """Whose trainer it is, for `Problem.user_caps`."""
    guaranteed: bool = False
    """Not to be left without nodes as long as its minimum fits: the starvation guard's word."""
    attained_samples: float = 0.0
    """Samples it has trained so far."""
    remaining_samples: float = math.inf
    """Samples to its end."""
    deadline_in_s: float = math.inf
    """Seconds until it should have ended; negative where that has passed."""
    waited_s: float = 0.0
    """Seconds since it last had nodes; 0 while it has some."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ProblemError(
                f"trainer {self.id}: min_nodes {self.min_nodes} and max_nodes {self.max_nodes}: "
                "expected 1 <= min_nodes <= max_nodes"
            )
        for name in ("weight", "grow_stall_s", "shrink_stall_s", "startup_s", "attained_samples", "waited_s"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ProblemError(f"trainer {self.id}: {name} is {value}: expected a finite number >= 0")
        if not self.remaining_samples >= 0:
            raise ProblemError(f"trainer {self.id}: remaining_samples is {self.remaining_samples}: expected >= 0")
        if math.isnan(self.deadline_in_s):
            raise ProblemError(f"trainer {self.id}: deadline_in_s is not a number")
        if self.curves_by_type is not None and not self.curves_by_type:
            raise ProblemError(f"trainer {self.id}: curves_by_type names no node type")


@dataclass(frozen=True)
class Terms:
    """What a plan counts beside the published objective of BFTrainer (arXiv:2106.12091)."""

    startup: bool = True
    """A node that joins does nothing for its start-up seconds."""
    new_rate: bool = True
    """A stall costs the rate at the new size, which is what the trainer would make meanwhile; published: at the
    old size, so that starting from no node is free."""
    horizons: bool = True
    """A node gains nothing after the forecast end of its hole."""
    departures: bool = True
    """Each cohort that a trainer uses is expected to cost it a stall when it leaves."""
    completion: bool = False
    """A trainer gains nothing after its last sample. Off: the last nodes of who is about to end look worthless,
    others take them, and it ends late (mean completion 32 % later on KTH SP2, three times as late on Theta)."""


PUBLISHED = Terms(startup=False, new_rate=False, horizons=False, departures=False, completion=False)
"""The published objective."""

MilpSolver = Literal["cbc", "highs"]


@dataclass(frozen=True)
class Problem:
    """One allocation problem: everything a plan depends on.

    Raises `ProblemError` where a trainer or node is listed twice, an owner is unknown, or a time makes no sense.
    """

    trainers: tuple[Trainer, ...]
    groups: tuple[NodeGroup, ...]
    look_ahead_s: float = 120.0
    """T_fwd: seconds over which gains are counted."""
    objective: Metric = Objective.THROUGHPUT
    time_limit_s: float = 5.0
    terms: Terms = Terms()
    user_caps: Mapping[str, int] = field(default_factory=dict)
    """User -> most nodes that the user's trainers may have together."""
    milp_solver: MilpSolver = "cbc"
    gap: float = 1e-6
    """Relative gap at which a plan is good enough: the MILP is not asked to close a smaller one."""
    held: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    """Trainer id -> nodes it holds now, in the groups' order."""
    num_nodes: int = field(init=False, repr=False, compare=False)
    """Number of nodes that may be granted."""

    def __post_init__(self) -> None:
        for name in ("look_ahead_s", "time_limit_s", "gap"):
            seconds = getattr(self, name)
            if not math.isfinite(seconds) or seconds < 0:
                raise ProblemError(f"{name} is {seconds}: expected a finite number >= 0")
        ids = [trainer.id for trainer in self.trainers]
        if len(set(ids)) != len(ids):
            raise ProblemError("a trainer is listed twice")
        nodes = [node for group in self.groups for node in group.nodes]
        if len(set(nodes)) != len(nodes):
            raise ProblemError("a node is in two groups")
        held: dict[str, tuple[str, ...]] = dict.fromkeys(ids, ())
        for group in self.groups:
            if group.owner is None:
                continue
            if group.owner not in held:
                raise ProblemError(
                    f"group of {len(group.nodes)} nodes is owned by unknown trainer {group.owner!r}"
                )
            held[group.owner] += group.nodes
        for user, cap in self.user_caps.items():
            if cap < 0:
                raise ProblemError(f"user {user!r} may have {cap} nodes: expected a cap >= 0")
        object.__setattr__(self, "held", held)
        object.__setattr__(self, "num_nodes", len(nodes))
