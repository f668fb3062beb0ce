"""How long a hole will last, and which nodes are alike for it."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oakum_solver.problem import NodeGroup

HORIZON_EDGES_S = (0.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0)
"""Nodes whose horizons lie between the same two edges are alike: about a factor of two to four apart."""


@dataclass(frozen=True)
class HoleForecast:
    """Learns from past holes how long one goes on.

    The forecast is the mean residual life: of the past holes that lasted longer than this one has until
    now, the mean of what they had still to come. It rises with age where short holes are many (BFTrainer's
    log: 19 min at 1 min old, 30 min at 10 min, 38 min at 1 h), which no fixed guess follows.
    """

    past_s: tuple[float, ...] = ()
    """Lengths of past holes, the newest last."""
    default_s: float = 600.0
    """The answer while fewer than `least` past holes lasted long enough to learn from."""
    keep: int = 1000
    """How many of the newest past holes count."""
    least: int = 5
    _sorted_s: tuple[float, ...] = field(init=False, repr=False, compare=False)
    _sums_s: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """At i, the sum of the sorted lengths before i."""

    def __post_init__(self) -> None:
        newest = self.past_s[-self.keep :] if self.keep > 0 else ()
        lengths = tuple(sorted(newest))
        object.__setattr__(self, "past_s", newest)
        object.__setattr__(self, "_sorted_s", lengths)
        object.__setattr__(self, "_sums_s", tuple(itertools.accumulate(lengths, initial=0.0)))

    def having_seen(self, *lengths_s: float) -> HoleForecast:
        """The forecast that also knows these holes, which have ended."""
        return HoleForecast(self.past_s + lengths_s, self.default_s, self.keep, self.least)

    def remaining_s(self, age_s: float, announced_in_s: float | None = None) -> float:
        """Seconds for which a hole of this age will last on.

        `announced_in_s`: seconds until the announced start of a foreground job on the node, which outweighs
        any experience; None where none is announced.
        """
        if announced_in_s is not None:
            return max(0.0, announced_in_s)
        first = bisect.bisect_right(self._sorted_s, age_s)
        longer = len(self._sorted_s) - first
        if longer < max(1, self.least):
            return self.default_s
        return (self._sums_s[-1] - self._sums_s[first]) / longer - age_s


@dataclass(frozen=True)
class IdleNode:
    """What the plan has to know of a node that may be granted."""

    node: str
    horizon_s: float
    """Forecast seconds until its hole ends; infinite where no end is in sight."""
    owner: str | None = None
    """The trainer that holds it."""
    node_type: str = "cpu"
    cohort: str | None = None
    """With which nodes it is expected to leave, where that is known."""


def group_nodes(nodes: Iterable[IdleNode], edges_s: tuple[float, ...] = HORIZON_EDGES_S) -> tuple[NodeGroup, ...]:
    """Nodes of one type, owner and cohort as one group; without a cohort, those whose horizons lie between the
    same two edges (rising seconds).

    A group's horizon is that of its first node to leave. Groups and their nodes come in the order of the
    input.
    """
    members: dict[tuple[str, str | None, str | None, int], list[IdleNode]] = {}
    for node in nodes:
        told_apart = node.cohort is None and node.horizon_s < math.inf
        bucket = bisect.bisect_right(edges_s, node.horizon_s) if told_apart else -1
        members.setdefault((node.node_type, node.owner, node.cohort, bucket), []).append(node)
    return tuple(
        NodeGroup(
            nodes=tuple(node.node for node in group),
            owner=owner,
            horizon_s=min(node.horizon_s for node in group),
            node_type=node_type,
            cohort=cohort,
        )
        for (node_type, owner, cohort, _), group in members.items()
    )


class CohortForecast:
    """`HoleForecast` for millions of holes: learns lengths into bins of a fifth of their size.

    The answer is the mean residual life over all that was learned, each node's hole counted once.
    """

    _SHORTEST_S, _RATIO, _BINS = 1.0, 1.2, 100

    def __init__(self, default_s: float = 1800.0, least: int = 50) -> None:
        self.default_s = default_s
        self.least = least
        self._edges_s = self._SHORTEST_S * self._RATIO ** np.arange(self._BINS)
        self._counts = np.zeros(self._BINS + 1)
        self._sums_s = np.zeros(self._BINS + 1)

    def learn(self, lengths_s: NDArray[np.float64]) -> None:
        """These holes have ended."""
        bins = np.searchsorted(self._edges_s, lengths_s)
        np.add.at(self._counts, bins, 1.0)
        np.add.at(self._sums_s, bins, lengths_s)

    @property
    def learned(self) -> bool:
        """Whether enough holes have ended to say anything."""
        return bool(self._counts.sum() >= max(1, self.least))

    def remaining_s(self, ages_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Expected seconds for which holes of these ages last on, shape of `ages_s`."""
        bins = np.searchsorted(self._edges_s, ages_s) + 1
        counts = np.append(np.cumsum(self._counts[::-1])[::-1], 0.0)
        sums_s = np.append(np.cumsum(self._sums_s[::-1])[::-1], 0.0)
        longer = counts[np.minimum(bins, self._BINS + 1)]
        mean_s = sums_s[np.minimum(bins, self._BINS + 1)] / np.maximum(longer, 1.0) - ages_s
        return np.where(longer >= max(1, self.least), np.maximum(mean_s, 1.0), self.default_s)
