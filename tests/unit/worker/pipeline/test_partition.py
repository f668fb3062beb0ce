"""A chain of layers is cut so that its slowest stage is as fast as it can be."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cells import each
from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.pipeline.partition import partition


def greatest_cost(costs: list[int], cuts: tuple[range, ...]) -> int:
    return max(sum(costs[layer] for layer in cut) for cut in cuts)


def test_equal_layers_are_dealt_out_evenly() -> None:
    assert partition([1.0] * 8, 4) == (range(0, 2), range(2, 4), range(4, 6), range(6, 8))
    assert sorted(len(cut) for cut in partition([1.0] * 7, 5)) == [1, 1, 1, 2, 2]


def test_a_heavy_layer_gets_a_stage_of_its_own() -> None:
    assert partition([1.0, 1.0, 9.0, 1.0, 1.0], 3) == (range(0, 2), range(2, 3), range(3, 5))


def test_layers_that_cost_nothing_can_be_cut_too() -> None:
    assert [len(cut) for cut in partition([0.0, 0.0, 0.0], 3)] == [1, 1, 1]


@each(
    ("costs", "num_stages", "message"),
    [
        ([1.0, 1.0], 3, "2 layers cannot be cut into 3 stages"),
        ([1.0], 0, "into 0 stages"),
        ([1.0, -1.0], 1, "not negative"),
        ([1.0, float("nan")], 1, "finite"),
    ],
)
def test_what_cannot_be_cut_is_refused(costs: list[float], num_stages: int, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        partition(costs, num_stages)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_no_other_cut_has_a_faster_slowest_stage(costs: list[int], data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, len(costs)))
    cuts = partition(costs, num_stages)
    assert [layer for cut in cuts for layer in cut] == list(range(len(costs)))
    assert all(len(cut) >= 1 for cut in cuts)
    assert len(cuts) == num_stages
    bounds = [(0, *inner, len(costs)) for inner in combinations(range(1, len(costs)), num_stages - 1)]
    others = [tuple(range(a, b) for a, b in pairwise(ends)) for ends in bounds]
    assert greatest_cost(costs, cuts) == min(greatest_cost(costs, other) for other in others)
