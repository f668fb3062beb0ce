"""The solver's input: trainers, groups of idle nodes, and the look-ahead in seconds."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from oakum_solver.errors import ProblemError
from oakum_solver.objectives import NamedObjective, Objective


@dataclass(frozen=True)
class Curve:
    """A scalability curve: samples/s at n nodes, piecewise linear through the origin and `points`.

    Beyond the last point the rate is constant. Raises `ProblemError` unless the points rise in nodes and never
    fall in rate.
    """

    points: tuple[tuple[int, float], ...]
    """(nodes, samples/s), sorted by nodes."""

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
        """Samples/s at `nodes` nodes; 0 for 0 nodes or fewer."""
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
    """Idle nodes that the planner need not tell apart: equal type, present owner and forecast departure."""

    nodes: tuple[str, ...]
    """Node names, the preferred ones first: a trainer keeps or takes nodes from the front. The order decides which
    nodes a trainer gets, never how many."""
    owner: str | None = None
    """Id of the trainer that holds these nodes now; None where they are free."""
    horizon_s: float = math.inf
    """Forecast mean, in seconds, of the time until the holes of these nodes end."""
    node_type: str = "cpu"
    cohort: str | None = None
    """Name shared by nodes that are expected to leave together, whoever holds them. None: not known; then nodes of
    equal type and horizon count as one cohort."""
    access: str = ""
    """Label by which trainers may have these nodes or not: see `PlannedTrainer.access`."""


@dataclass(frozen=True)
class Host:
    """A machine that is given in parts: its nodes, as the problem calls them, are slots of it, alike in type."""

    nodes: tuple[str, ...]
    """Those that are in the problem's groups: idle, held or free."""
    size: int
    """Number of its slots of this type, idle or not."""
    bundles: tuple[tuple[str, ...], ...] = ()
    """Those of `nodes` that a fragment holds together: a trainer keeps all of a bundle or none."""


Bundle = int | Literal["host"]
"""How many slots of one host a fragment has together: a number, or all that the host has."""


@dataclass(frozen=True)
class PlannedTrainer:
    """One elastic trainer as the allocator sees it."""

    id: str
    curve: Curve
    """Samples/s on nodes of any type. Unused where `curves_by_type` is given."""
    min_nodes: int = 1
    max_nodes: int = 64
    sizes: tuple[int, ...] = ()
    """The only numbers of nodes that it can train on, rising; both bounds are among them. Empty: every number will
    do. A trainer that holds another number trains on the largest of these below it."""
    weight: float = 1.0
    grow_stall_s: float = 1.0
    """Seconds without progress when nodes join."""
    shrink_stall_s: float = 1.0
    """Seconds without progress when the trainer gives nodes up or loses them to foreground jobs."""
    startup_s: float = 20.0
    """Seconds for which a joining node trains nothing while it starts up."""
    curves_by_type: Mapping[str, Curve] | None = None
    """Node type -> curve on nodes of that type alone; the trainer can use only these types. None: `curve` holds on
    every type."""
    mixes_types: bool = False
    """Whether the trainer may run on nodes of several types at once."""
    priority: int = 0
    """Trainers of a higher priority get nodes first, whatever trainers of a lower one would gain."""
    user: str | None = None
    """Owner of the trainer, as in `Problem.user_caps`."""
    guaranteed: bool = False
    """Whether the starvation guard guarantees the trainer its minimum, as long as that many nodes are there."""
    guaranteed_for_s: float = 0.0
    """Seconds since the guarantee began. Where not all guaranteed minimums fit, those of longer standing come
    first; among equals, trainers that have theirs, then the one that is named first."""
    attained_samples: float = 0.0
    """Samples trained so far."""
    remaining_samples: float = math.inf
    """Samples left to train; infinite for an endless trainer."""
    deadline_in_s: float = math.inf
    """Seconds until the deadline; negative after it, infinite without one."""
    waited_s: float = 0.0
    """Seconds since the trainer last had nodes; 0 while it has some."""
    access: frozenset[str] | None = None
    """Labels of the nodes that a plan may give it, and on which it can train; None: nodes of any label."""
    name: str = ""
    """What people call the trainer; empty if that is its id."""
    bundle: Bundle = 1
    """How many slots of one host each of its fragments has. Its numbers of nodes count slots, and are sums of
    bundles; `bundles.possible_sizes` finds them."""
    limit: str = ""
    """Why `max_nodes` is lower than what was asked for, as a clause; empty where it is not."""

    @property
    def label(self) -> str:
        """What texts for people call the trainer: its name, else its id."""
        return self.name or self.id

    def allows(self, nodes: int) -> bool:
        """Whether a plan may give the trainer `nodes` nodes, which are not 0."""
        return self.min_nodes <= nodes <= self.max_nodes and (not self.sizes or nodes in self.sizes)

    def fitting(self, nodes: int) -> int:
        """On how many of `nodes` nodes the trainer can train, its maximum left aside; 0 where they are too few."""
        if self.sizes:
            nodes = self.sizes[index - 1] if (index := bisect.bisect_right(self.sizes, nodes)) else 0
        return nodes if nodes >= self.min_nodes else 0

    def following(self, nodes: int) -> int | None:
        """The smallest number above `nodes` that a plan may give the trainer; None where there is none."""
        if self.sizes:
            index = bisect.bisect_right(self.sizes, max(nodes, self.min_nodes - 1))
            more = self.sizes[index] if index < len(self.sizes) else self.max_nodes + 1
        else:
            more = max(nodes + 1, self.min_nodes)
        return more if more <= self.max_nodes else None

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ProblemError(
                f"trainer {self.label}: min_nodes {self.min_nodes} and max_nodes {self.max_nodes}: "
                "expected 1 <= min_nodes <= max_nodes"
            )
        if self.sizes:
            self._check_sizes()
        if self.bundle != "host" and self.bundle < 1:
            raise ProblemError(f"trainer {self.label}: bundle is {self.bundle}: expected at least 1, or host")
        for name in (
            "weight",
            "grow_stall_s",
            "shrink_stall_s",
            "startup_s",
            "attained_samples",
            "guaranteed_for_s",
            "waited_s",
        ):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ProblemError(f"trainer {self.label}: {name} is {value}: expected a finite number >= 0")
        if not self.remaining_samples >= 0:
            raise ProblemError(
                f"trainer {self.label}: remaining_samples is {self.remaining_samples}: expected >= 0"
            )
        if math.isnan(self.deadline_in_s):
            raise ProblemError(f"trainer {self.label}: deadline_in_s is not a number")
        if self.curves_by_type is not None and not self.curves_by_type:
            raise ProblemError(f"trainer {self.label}: curves_by_type names no node type")

    def _check_sizes(self) -> None:
        listed = ", ".join(map(str, self.sizes))
        if any(more <= fewer for fewer, more in itertools.pairwise(self.sizes)):
            raise ProblemError(f"trainer {self.label}: sizes {listed}: expected them in rising order, each once")
        for name in ("min_nodes", "max_nodes"):
            if (nodes := getattr(self, name)) not in self.sizes:
                raise ProblemError(f"trainer {self.label}: {name} is {nodes}: expected one of its sizes, {listed}")


@dataclass(frozen=True)
class Terms:
    """Which effects a plan counts in addition to the published objective of BFTrainer (arXiv:2106.12091)."""

    startup: bool = True
    """A joining node trains nothing for the trainer's start-up seconds."""
    new_rate: bool = True
    """A stall costs samples at the rate of the new size, which the trainer would otherwise reach at once. The
    published objective counts the old size's rate, so that a start from no nodes costs nothing."""
    horizons: bool = True
    """A node trains nothing after the forecast end of its hole."""
    departures: bool = True
    """For each cohort that a trainer uses, the plan expects one shrink stall, when the cohort leaves."""
    completion: bool = False
    """A trainer trains nothing after its last sample. Off by default: the nodes of a trainer that is about to end
    would look worthless, others would take them, and the trainer would end late (mean completion 32 % later on
    KTH SP2, three times as late on Theta)."""


PUBLISHED = Terms(startup=False, new_rate=False, horizons=False, departures=False, completion=False)
"""The published objective of BFTrainer: no additional effect counts."""

MilpSolver = Literal["cbc", "highs"]


@dataclass(frozen=True)
class Problem:
    """One allocation problem: everything a plan depends on.

    Raises `ProblemError` where a trainer or node is listed twice, an owner is unknown, a cap is negative, a host
    has a node that is in no group or in another host, or a time or the gap is negative or not finite.
    """

    trainers: tuple[PlannedTrainer, ...]
    groups: tuple[NodeGroup, ...]
    look_ahead_s: float = 120.0
    """Seconds over which a plan counts gains: T_fwd of BFTrainer."""
    look_ahead_reason: str = ""
    """Why it looks so far ahead, as a sentence for people; decides nothing."""
    objective: Objective = NamedObjective.THROUGHPUT
    time_limit_s: float = 5.0
    terms: Terms = Terms()
    user_caps: Mapping[str, int] = field(default_factory=dict)
    """User -> maximum number of nodes of all the user's trainers together."""
    milp_solver: MilpSolver = "cbc"
    withheld: int = 0
    """Number of idle nodes left out of all groups, because foreground jobs are expected to take them before a
    trainer could start up there."""
    cluster_nodes: int | None = None
    """Number of nodes that the cluster has, idle or not, which reasons tell; None: not known."""
    gap: float = 1e-6
    """Relative gap between a plan's value and its bound at which the search stops."""
    hosts: tuple[Host, ...] = ()
    """Which nodes are slots of one machine, for trainers with bundles; any other node is a host of its own."""
    held: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    """Trainer id -> nodes that it holds now, in the groups' order."""
    num_nodes: int = field(init=False, repr=False, compare=False)
    """Number of nodes in all groups, held or free."""

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
        on_hosts = [node for host in self.hosts for node in host.nodes]
        if len(set(on_hosts)) != len(on_hosts) or not set(on_hosts) <= set(nodes):
            raise ProblemError("a host has a node that is in no group, or in another host, too")
        object.__setattr__(self, "held", held)
        object.__setattr__(self, "num_nodes", len(nodes))
