"""Cuts a chain of layers into stages so that the slowest stage is as fast as possible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from oakum_worker.errors import ScheduleError


def partition(layer_costs: Sequence[float], num_stages: int) -> tuple[range, ...]:
    """Cut the layers into `num_stages` consecutive, non-empty runs that minimise the largest run's cost.
    Returns the layers of each stage as a range.

    `layer_costs` are in any unit, commonly seconds of forward and backward. Among the cuts with the least
    maximum, one with the least sum of squared costs is chosen, so that equal layers are spread evenly. Raises
    `ScheduleError` if there are fewer layers than stages, or a cost is negative or not finite.
    """
    num_layers = len(layer_costs)
    if not 1 <= num_stages <= num_layers:
        raise ScheduleError(
            f"{num_layers} layers cannot be cut into {num_stages} stages: each stage needs at least one layer; "
            "name more layers or use fewer stages"
        )
    if not all(math.isfinite(cost) and cost >= 0 for cost in layer_costs):
        raise ScheduleError(f"layer costs must be finite and not negative, not {list(layer_costs)}")
    sums = list(accumulate(layer_costs, initial=0.0))
    slowest = _least_maximum(sums, num_stages)
    ends = _most_even_ends(sums, num_stages, slowest)
    return tuple(range(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True))


def _least_maximum(sums: list[float], num_stages: int) -> float:
    """The least possible maximum of the stages' costs; `sums[i]` is the cost of the first i layers."""
    num_layers = len(sums) - 1
    best = [0.0] + [math.inf] * num_layers
    for stage in range(1, num_stages + 1):
        best = [math.inf] * stage + [
            min(max(best[start], sums[end] - sums[start]) for start in range(stage - 1, end))
            for end in range(stage, num_layers + 1)
        ]
    return best[num_layers]


def _most_even_ends(sums: list[float], num_stages: int, limit: float) -> list[int]:
    """End of each stage, in layers, with the least sum of squared costs among cuts whose stages cost at most
    `limit`."""
    num_layers = len(sums) - 1
    squares: list[tuple[float, list[int]]] = [(math.inf, []) for _ in range(num_layers + 1)]
    squares[0] = (0.0, [])
    for stage in range(1, num_stages + 1):
        longer: list[tuple[float, list[int]]] = [(math.inf, []) for _ in range(num_layers + 1)]
        for end in range(stage, num_layers + 1):
            for start in range(stage - 1, end):
                cost = sums[end] - sums[start]
                total = squares[start][0] + cost * cost
                if cost <= limit and total < longer[end][0]:
                    longer[end] = (total, [*squares[start][1], end])
        squares = longer
    return squares[num_layers][1]
