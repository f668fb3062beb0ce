"""Scalability curves where nobody has measured one yet."""

from __future__ import annotations

from collections.abc import Iterable

from oakum_solver.problem import Curve


def linear_curve(max_nodes: int, rate_per_node: float = 1.0) -> Curve:
    """The curve of a trainer that gave none: every node up to `max_nodes` adds the same samples/s.

    The default of one sample per second is no more than a unit: among trainers without curves it splits the
    nodes evenly in worth, and it says nothing against a measured curve except under `Objective.SPEEDUP`.
    """
    return Curve(((max_nodes, rate_per_node * max_nodes),))


def curve_from_points(points: Iterable[tuple[int, float]], max_nodes: int) -> Curve:
    """The curve through a spec's points (nodes, samples/s), in any order; linear where there are none.

    Raises `ProblemError` where the points contradict each other.
    """
    given = tuple(sorted((nodes, float(rate)) for nodes, rate in points))
    return Curve(given) if given else linear_curve(max_nodes)
