"""Which micro-batch trains fastest within the memory there is.

A replica's share of B samples is computed in n = B / m micro-batches of m, each of which goes through D pipeline
stages, D = 1 without a pipeline. With a stage's times t_f and t_b for the forward and backward pass of m samples a
step takes ("Towards accelerating model parallelism in distributed deep learning systems", PLOS ONE 2023)

    T(m) = (n + D - 1) (t_f(m) + t_b(m)) + overhead,

so B / T(m) is what to maximise over the divisors m of B that fit. Memory grows with m: the largest one that fits
is found in O(log) probes, and only those up to it are timed.

This module only searches; `oakum_worker.profiling.micro_batch_probe` measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oakum_worker.errors import TaskError


@dataclass(frozen=True, slots=True)
class MicroBatchCandidate:
    """A micro-batch size that fits in memory, with its predicted step time."""

    micro_batch: int
    num_micro_batches: int
    step_s: float
    """T(m): predicted seconds of a step."""
    samples_per_s: float


@dataclass(frozen=True, slots=True)
class MicroBatchSearch:
    """The result of a search: the fastest micro-batch, and all micro-batches that fit in memory."""

    best: MicroBatchCandidate
    candidates: tuple[MicroBatchCandidate, ...]
    """All that fit, by their size."""


def divisors(number: int) -> list[int]:
    """All divisors of `number`, in rising order."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]


def largest_that_fits(sizes: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The largest of `sizes` for which `fits` returns true; None where there is none.

    `sizes` have to rise, and every size below one that fits has to fit as well. Calls `fits` at most 2 log2(number
    of sizes) + 2 times, beginning with the smallest size, so that sizes far beyond the limit are never tried.
    """
    low, high, stride = -1, len(sizes), 1  # sizes[low] fits, sizes[high] does not
    while low + stride < high:
        if not fits(sizes[low + stride]):
            high = low + stride
            break
        low += stride
        stride *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(sizes[middle]) else (low, middle)
    return sizes[low] if low >= 0 else None


def step_time(batch: int, micro_batch: int, stages: int, pass_s: float, overhead_s: float) -> float:
    """T(m), in seconds, for m = `micro_batch`. `pass_s` is what one stage takes for the forward and the backward
    pass of one micro-batch, in seconds."""
    return (batch // micro_batch + stages - 1) * pass_s + overhead_s


def search(
    batch: int,
    fits: Callable[[int], bool],
    pass_s: Callable[[int], float],
    *,
    stages: int = 1,
    overhead_s: float = 0.0,
    smallest: int = 1,
) -> MicroBatchSearch:
    """Find the micro-batch m with the most samples per second, B / T(m), among the divisors of `batch` that
    fit. Of two that are equally fast the larger one is chosen. Returns the fastest micro-batch and all that
    fit.

    `fits` tells whether a size fits in memory; `pass_s` gives the seconds that one stage takes for the forward
    and the backward pass of a micro-batch. No size below `smallest` is tried, unless the batch itself is
    smaller. Raises `TaskError` where no size fits.
    """
    sizes = [size for size in divisors(batch) if size >= min(smallest, batch)]
    largest = largest_that_fits(sizes, fits)
    if largest is None:
        raise TaskError(
            f"not even a micro-batch of {sizes[0]} fits into the memory: allow for more, make the model smaller, "
            "compute activations again (torch.utils.checkpoint), or spread the model over several ranks"
        )
    candidates = []
    for size in sizes[: sizes.index(largest) + 1]:
        seconds = step_time(batch, size, stages, pass_s(size), overhead_s)
        candidates.append(MicroBatchCandidate(size, batch // size, seconds, batch / seconds))
    best = max(candidates, key=lambda candidate: (candidate.samples_per_s, candidate.micro_batch))
    return MicroBatchSearch(best, tuple(candidates))


def largest_batch(most: int, fits: Callable[[int, int], bool], *, smallest: int = 1) -> int | None:
    """The largest batch of at most `most` samples of which some micro-batch fits; None where there is none.

    `fits(batch, micro_batch)` tells whether a micro-batch of a batch fits. Only multiples of `smallest`, the
    smallest micro-batch, are considered. Assumes that memory grows with the batch at a constant micro-batch, and
    with the micro-batch at a constant batch.
    """
    # Of a batch that can be trained at all, the smallest micro-batches fit.
    return largest_that_fits(range(smallest, most + 1, smallest), lambda batch: fits(batch, smallest))
