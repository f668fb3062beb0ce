"""What is measured of a trainer in a replay whose curves have to be learnt."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from oakum_solver.exploration import Exploration
from oakum_solver.learnt_curves import WINDOW_S, Learner, SizeRate, after_window

_PART = 0.25
"""A window is at least this part of what was measured before at its size. A fit takes a millisecond, and a few
seconds more change nothing after hours."""
_ROUNDING_S = 1e-6


@dataclass
class RateBook:
    """The rates measured of one trainer. What is too short for a window counts later, as in the service."""

    min_nodes: int
    max_nodes: int
    exploration: Exploration
    rates: dict[int, SizeRate] = field(default_factory=dict)
    """Size -> what was measured there."""
    learner: Learner = field(init=False)
    _open_s: dict[int, float] = field(default_factory=dict)
    """Size -> seconds that no window has yet."""

    def __post_init__(self) -> None:
        self._learn()

    def take(self, nodes: int, seconds: float, rate: float) -> None:
        """Count undisturbed training on `nodes` nodes at `rate` samples/s."""
        seconds += self._open_s.pop(nodes, 0.0)
        if seconds < max(WINDOW_S, _PART * self._measured_s(nodes)) - _ROUNDING_S:
            self._open_s[nodes] = seconds
            return
        self.rates[nodes] = after_window(self.rates, nodes, seconds, seconds * rate, self.exploration)
        self._learn()

    def missing_s(self, nodes: int) -> float:
        """Seconds of training on `nodes` nodes after which a plan may change: the first window of all, or the end
        of the size's exploration; infinite where it has been measured long enough."""
        measured_s, open_s = self._measured_s(nodes), self._open_s.get(nodes, 0.0)
        if measured_s >= self.exploration.min_seconds - _ROUNDING_S:
            return math.inf
        wanted_s = self.exploration.min_seconds - measured_s if self.rates else WINDOW_S
        return max(wanted_s - open_s, WINDOW_S - open_s)

    @property
    def explored(self) -> tuple[float, float]:
        """Node-seconds trained at sizes with raised rates, and all that were measured."""
        explored = sum(rate.nodes * rate.explored_s for rate in self.rates.values())
        return explored, sum(rate.nodes * rate.seconds for rate in self.rates.values())

    def _measured_s(self, nodes: int) -> float:
        return self.rates[nodes].seconds if nodes in self.rates else 0.0

    def _learn(self) -> None:
        in_order = tuple(self.rates[nodes] for nodes in sorted(self.rates))
        self.learner = Learner(self.min_nodes, self.max_nodes, None, self.exploration, in_order)
