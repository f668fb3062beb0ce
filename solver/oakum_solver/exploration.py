"""Lets plans try sizes that have not been measured, at a cost that is bounded beforehand.

A planner with a learnt curve never tries a size that looks worse than it is, and so never learns that it is
better. The upper-confidence-bound rule (Auer, Cesa-Bianchi and Fischer, Machine Learning 47, 2002) avoids that: at
an unmeasured size, plan with a rate that is plausible instead of the likeliest one. This module raises the curve
at such sizes. Like the job profiling advisor of MalleTrain (arXiv:2404.15668), it measures scalability in running
trainers; unlike it, it sets no time aside.

Three rules bound the cost:

- A size is raised only until it has been measured for `min_seconds`.
- A rate is raised by at most the factor 1 + `optimism`, and never above the measured rate of a larger size.
- The node-seconds trained at raised sizes stay below the fraction `share` of all that the trainer has trained, so
  exploring costs at most this share of its node-time even if the raised sizes were useless. Stalls, and the nodes
  taken from other trainers, count in the plan as they do for any other rate.

Most sizes are never explored, because nodes come and go: a size that the holes force on a trainer is measured
anyway. Its node-seconds still count towards `share` while its rate is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oakum_solver.curves import FittedCurve
from oakum_solver.problem import Curve


@dataclass(frozen=True)
class Exploration:
    """How much a trainer may spend on sizes that have not been measured."""

    share: float = 0.02
    """Largest share of the trainer's node-seconds spent at raised sizes; 0 explores nothing."""
    min_seconds: float = 20.0
    """Seconds after which a size counts as measured."""
    optimism: float = 0.1
    """Largest relative increase of a rate over the curve."""

    def budget(self, trained_s: Mapping[int, float], explored_s: Mapping[int, float]) -> float:
        """Node-seconds left for exploring.

        Both arguments map sizes to seconds: `trained_s` of all training, `explored_s` of that at raised sizes.
        """
        return self.share * _node_seconds(trained_s) - _node_seconds(explored_s)

    def tries(self, nodes: int, trained_s: Mapping[int, float], budget: float) -> bool:
        """Whether the size `nodes` has not been measured long enough and `budget` node-seconds suffice to finish
        that."""
        missing_s = self.min_seconds - trained_s.get(nodes, 0.0)
        return missing_s > 0 and nodes * missing_s <= budget


def explore(fitted: FittedCurve, max_nodes: int, budget: float, exploration: Exploration = Exploration()) -> Curve:
    """The curve to plan with: the fitted curve, raised at unmeasured sizes to the upper end of their plausible
    range.

    `budget` are the node-seconds left for exploring. The result is deterministic.
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
