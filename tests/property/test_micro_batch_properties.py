"""The search for a micro-batch against looking at all of them, on any memory that grows and any times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oakum_worker.errors import TaskError
from oakum_worker.profiling.micro_batch import divisors, largest_batch, largest_that_fits, search

BATCHES = st.one_of(st.integers(1, 300), st.sampled_from([720, 1024, 5040, 65536]))


@st.composite
def growing(draw: st.DrawFn, count: int) -> list[int]:
    """Bytes of so many sizes."""
    steps = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    return [sum(steps[: index + 1]) for index in range(count)]


@given(st.data(), BATCHES, st.integers(1, 16), st.floats(0, 10))
def test_the_search_equals_exhaustive_search_with_few_memory_probes(
    data: st.DataObject, batch: int, stages: int, overhead_s: float
) -> None:
    sizes = [size for size in range(1, batch + 1) if batch % size == 0]
    peak = dict(zip(sizes, data.draw(growing(len(sizes))), strict=True))
    pass_s = {size: data.draw(st.floats(0.001, 10)) for size in sizes}
    limit = data.draw(st.integers(0, 9 * len(sizes)))
    probed: list[int] = []
    timed: list[int] = []

    def fits(size: int) -> bool:
        probed.append(size)
        return peak[size] <= limit

    def time(size: int) -> float:
        timed.append(size)
        return pass_s[size]

    expected = {
        size: batch / ((batch / size + stages - 1) * pass_s[size] + overhead_s)
        for size in sizes
        if peak[size] <= limit
    }
    if not expected:
        with pytest.raises(TaskError, match="not even a micro-batch of 1 fits"):
            search(batch, fits, time, stages=stages, overhead_s=overhead_s)
        assert probed == [1]
        return
    choice = search(batch, fits, time, stages=stages, overhead_s=overhead_s)
    assert choice.best.samples_per_s == pytest.approx(max(expected.values()))
    assert {one.micro_batch: pytest.approx(one.samples_per_s) for one in choice.candidates} == expected
    assert choice.best in choice.candidates
    assert timed == sorted(expected)
    assert len(probed) <= 2 * math.log2(len(sizes)) + 2


@given(BATCHES)
def test_divisors_are_all_of_them(number: int) -> None:
    assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]


@given(st.integers(1, 5000), st.integers(-1, 6000))
def test_nothing_far_beyond_what_fits_is_ever_probed(count: int, last: int) -> None:
    probed: list[int] = []
    found = largest_that_fits(range(count), lambda size: probed.append(size) or size <= last)
    assert found == (min(last, count - 1) if last >= 0 else None)
    assert max(probed) <= 2 * max(last, 0) + 2


@given(st.integers(1, 400), st.integers(0, 500), st.integers(1, 20), st.integers(0, 20), st.integers(1, 3))
def test_the_largest_batch_equals_exhaustive_search(
    most: int, limit: int, for_batch: int, for_micro: int, smallest: int
) -> None:
    def fits(batch: int, micro_batch: int) -> bool:
        return for_batch * batch + for_micro * micro_batch <= limit

    trainable = [
        batch
        for batch in range(smallest, most + 1, smallest)
        if any(fits(batch, micro) for micro in range(smallest, batch + 1) if batch % micro == 0)
    ]
    assert largest_batch(most, fits, smallest=smallest) == max(trainable, default=None)
