"""Sizes that nobody has measured are tried out, at a cost that is bounded beforehand.

A plan on a learnt curve never leaves what it knows as long as what it does not know looks worse, and so would
never notice that it is better. The upper-confidence-bound rule (Auer, Cesa-Bianchi and Fischer, Machine Learning
47, 2002) answers: plan with what a rate may well be instead of what it most likely is. Like the job profiling
advisor of MalleTrain (arXiv:2404.15668), this measures scalability in running trainers; unlike it, no time is set
aside for it.

What it costs is bounded three times:

- A size is raised only until it has been measured for `min_seconds`, so a wrong hope is short.
- A rate is raised by at most the factor 1 + `optimism`, and to no more than the measured rate of a larger size, so
  a size is never tried that would have to be much better than its curve to be worth it.
- The node-seconds trained at raised sizes stay below `share` of all that the trainer has trained. So exploring
  cannot cost more than this share of its node-time, even if all of these sizes gave nothing; what it takes from
  others, and the stalls on the way, weigh against the raised rate in the plan as against any other.

Most sizes are never explored: nodes come and go, and a size that the holes force on a trainer is measured for
free, though not counted as free while it is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oakum_solver.curves import FittedCurve
from oakum_solver.problem import Curve


@dataclass(frozen=True)
class Exploration:
    """How much a trainer may spend on sizes that nobody has measured."""

    share: float = 0.02
    """Most of its node-seconds; 0 explores nothing."""
    min_seconds: float = 20.0
    """Seconds after which a size counts as measured."""
    optimism: float = 0.1
    """By how much at most a rate is raised, relative to the curve."""

    def budget(self, trained_s: Mapping[int, float], explored_s: Mapping[int, float]) -> float:
        """Node-seconds left to explore with, after so many seconds at each size, in all and exploring."""
        return self.share * _node_seconds(trained_s) - _node_seconds(explored_s)

    def tries(self, nodes: int, trained_s: Mapping[int, float], budget: float) -> bool:
        """Whether `nodes` nodes are still to be measured, and can be for `budget` node-seconds."""
        missing_s = self.min_seconds - trained_s.get(nodes, 0.0)
        return missing_s > 0 and nodes * missing_s <= budget


def explore(fitted: FittedCurve, max_nodes: int, budget: float, exploration: Exploration = Exploration()) -> Curve:
    """The curve to plan with while `budget` node-seconds are left to explore with: the fitted one, raised at the
    sizes that are still to be measured to the upper end of what they may be.

    The same arguments give the same curve: there is no chance in it.
    """
    if not fitted.measured:
        return fitted.curve
    raised: list[tuple[int, float]] = []
    most = float("inf")
    for nodes, rate in reversed(fitted.curve.points):
        hope = rate
        if nodes <= max_nodes and exploration.tries(nodes, fitted.seconds, budget):
            hope = min(fitted.high(nodes), (1.0 + exploration.optimism) * rate)
        most = min(most, max(hope, rate))
        raised.append((nodes, most))
    return Curve(tuple(reversed(raised)))


def _node_seconds(seconds: Mapping[int, float]) -> float:
    return sum(nodes * spent_s for nodes, spent_s in seconds.items())
