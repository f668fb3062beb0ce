"""Dividing a batch into micro-batches."""

from __future__ import annotations

from oakum_worker.errors import TaskError


def even_split(num_samples: int, num_micro_batches: int) -> tuple[range, ...]:
    """The samples of each micro-batch, equally many. Raises `TaskError` where that cannot be."""
    size, rest = divmod(num_samples, num_micro_batches)
    if rest or not size:
        below = num_samples - rest
        near = " or ".join(str(other) for other in (below, below + num_micro_batches) if other)
        raise TaskError(
            f"{num_samples} samples cannot be divided into {num_micro_batches} equal micro-batches: use {near} "
            "samples, or a number of micro-batches that divides them"
        )
    return tuple(range(first, first + size) for first in range(0, num_samples, size))
