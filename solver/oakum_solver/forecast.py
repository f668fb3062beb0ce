"""Forecasts how long holes last, and groups idle nodes whose forecasts are alike."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oakum_solver.problem import NodeGroup

HORIZON_EDGES_S = (0.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0)
"""Nodes whose horizons lie between the same two edges count as alike; edges are a factor of two to four apart."""


class HoleForecast:
    """Forecasts a hole's remaining length from the lengths of past holes, for the service and for replays.

    The forecast is the mean residual life: among past holes that lasted longer than the present hole's age, the
    mean of length - age. It rises with age where most holes are short (BFTrainer's log: 19 min at an age of 1 min,
    30 min at 10 min, 38 min at 1 h), which a fixed guess cannot follow. Lengths are counted in bins, each 20 %
    longer than the one before, so that millions cost as little as ten.
    """

    _SHORTEST_S, _RATIO, _BINS = 1.0, 1.2, 100

    def __init__(self, default_s: float = 1800.0, least: int = 10) -> None:
        """`default_s` is the forecast in seconds where fewer than `least` learned holes lasted longer than the
        present one."""
        self.default_s = default_s
        self.least = least
        self._edges_s = self._SHORTEST_S * self._RATIO ** np.arange(self._BINS)
        self._counts = np.zeros(self._BINS + 1)
        self._sums_s = np.zeros(self._BINS + 1)

    def learn(self, lengths_s: NDArray[np.float64]) -> None:
        """Learn from ended holes of these lengths in seconds."""
        bins = np.searchsorted(self._edges_s, lengths_s)
        np.add.at(self._counts, bins, 1.0)
        np.add.at(self._sums_s, bins, lengths_s)

    @property
    def learned(self) -> bool:
        """Whether at least `least` holes have been learned."""
        return bool(self._counts.sum() >= max(1, self.least))

    def remaining_s(self, ages_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Expected seconds until holes of these ages in seconds end, in the shape of `ages_s`; `default_s` where
        too few learned holes lasted longer."""
        bins = np.searchsorted(self._edges_s, ages_s) + 1
        counts = np.append(np.cumsum(self._counts[::-1])[::-1], 0.0)
        sums_s = np.append(np.cumsum(self._sums_s[::-1])[::-1], 0.0)
        longer = counts[np.minimum(bins, self._BINS + 1)]
        mean_s = sums_s[np.minimum(bins, self._BINS + 1)] / np.maximum(longer, 1.0) - ages_s
        return np.where(longer >= max(1, self.least), np.maximum(mean_s, 1.0), self.default_s)


@dataclass(frozen=True)
class IdleNode:
    """An idle node as the planner needs to know it."""

    node: str
    horizon_s: float
    """Forecast seconds until its hole ends, for `NodeGroup.horizon_s`; infinite where the plan shall not count on
    an end."""
    owner: str | None = None
    """Id of the trainer that holds it; None where it is free."""
    node_type: str = "cpu"
    cohort: str | None = None
    """Name of the group of nodes with which it is expected to leave; None where that is not known."""
    rest_s: float = math.inf
    """Expected seconds until its hole ends, by past holes or an announced start; for `worth_starting`."""
    access: str = ""
    """Label by which trainers may have it or not, for `NodeGroup.access`."""
    host: str | None = None
    """Name of the machine that it is a slot of; None where it is all of a machine."""


def worth_starting(nodes: Iterable[IdleNode], startup_s: float) -> list[IdleNode]:
    """The nodes, except free ones that are expected to be taken before a trainer has started up there."""
    return [node for node in nodes if node.owner is not None or node.rest_s >= startup_s]


def group_nodes(nodes: Iterable[IdleNode], edges_s: tuple[float, ...] = HORIZON_EDGES_S) -> tuple[NodeGroup, ...]:
    """Group nodes by type, owner, access and cohort; nodes without a cohort also by the interval of their horizon.
    Returns the groups.

    `edges_s` are the borders of these intervals, in rising seconds. A group's horizon is the smallest of its
    nodes. Groups and their nodes keep the order of the input.
    """
    members: dict[tuple[str, str | None, str, str | None, int], list[IdleNode]] = {}
    for node in nodes:
        is_bucketed = node.cohort is None and node.horizon_s < math.inf
        bucket = bisect.bisect_right(edges_s, node.horizon_s) if is_bucketed else -1
        members.setdefault((node.node_type, node.owner, node.access, node.cohort, bucket), []).append(node)
    return tuple(
        NodeGroup(
            nodes=tuple(node.node for node in group),
            owner=owner,
            horizon_s=min(node.horizon_s for node in group),
            node_type=node_type,
            cohort=cohort,
            access=access,
        )
        for (node_type, owner, access, cohort, _), group in members.items()
    )
