"""Dividing a batch into micro-batches."""

from __future__ import annotations

import pytest

from oakum_worker.errors import TaskError
from oakum_worker.parallel.pipeline.division import even_split


def test_micro_batches_are_consecutive_and_equally_large() -> None:
    assert even_split(6, 3) == (range(2), range(2, 4), range(4, 6))


@pytest.mark.parametrize(("num_samples", "advice"), [(10, "8 or 12"), (3, "4"), (0, "4")])
def test_a_batch_that_the_number_does_not_divide_is_refused(num_samples: int, advice: str) -> None:
    with pytest.raises(TaskError) as refused:
        even_split(num_samples, 4)
    assert str(refused.value) == (
        f"{num_samples} samples cannot be divided into 4 equal micro-batches: use {advice} samples, or a number "
        "of micro-batches that divides them"
    )
