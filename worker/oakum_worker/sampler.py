"""Which samples a step takes: an order that depends on (seed, epoch) alone, and a cursor into it.

A rank's share of a batch is worked out from the cursor when the step begins, so membership may change at any step
boundary and still every epoch visits every sample exactly once. So may the size of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from oakum_worker.randomness import mix, permutation


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where training stands at a step boundary."""

    step: int = 0
    """Finished optimizer steps since the trainer began."""
    epoch: int = 0
    """Finished passes over the data set; the number of the current one, from 0."""
    consumed: int = 0
    """Samples consumed of the current epoch."""

    def after(self, num_samples: int, epoch_size: int) -> Cursor:
        """The cursor once a step has taken `num_samples` more of an epoch of `epoch_size`."""
        consumed = self.consumed + num_samples
        if consumed < epoch_size:
            return Cursor(self.step + 1, self.epoch, consumed)
        return Cursor(self.step + 1, self.epoch + 1, 0)


class ElasticSampler:
    """Deals the global batches of each epoch; the epoch's last batch is smaller where sizes do not divide."""

    def __init__(self, num_samples: int, global_batch: int | Callable[[int], int], seed: int) -> None:
        """`global_batch` is a number of samples, or tells it for an epoch's next batch."""
        self.num_samples = num_samples
        self._global_batch = global_batch
        self._seed = seed
        self._order: tuple[int, torch.Tensor] | None = None

    @property
    def batches_per_epoch(self) -> int:
        """Steps of an epoch with batches of one size."""
        return -(-self.num_samples // self._full_batch(0))

    def batch_size(self, cursor: Cursor) -> int:
        """Samples of the global batch at the cursor. A batch never crosses into the next epoch."""
        return min(self._full_batch(cursor.epoch), self.num_samples - cursor.consumed)

    def indices(self, cursor: Cursor, positions: range) -> list[int]:
        """Data set indices of the samples at `positions` within the global batch at the cursor."""
        order = self._order_of(cursor.epoch)
        return order[cursor.consumed + positions.start : cursor.consumed + positions.stop].tolist()

    def _full_batch(self, epoch: int) -> int:
        return self._global_batch if isinstance(self._global_batch, int) else self._global_batch(epoch)

    def _order_of(self, epoch: int) -> torch.Tensor:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, permutation(self.num_samples, key=mix(self._seed, epoch))
        return self._order[1]


def share_of(num_samples: int, rank: int, world_size: int) -> range:
    """Positions of a batch that `rank` computes: contiguous, sizes differing by at most one, possibly none."""
    return range(num_samples * rank // world_size, num_samples * (rank + 1) // world_size)
