"""Which samples a step takes: an order that depends on (seed, epoch) alone, and a cursor into it.

A rank's share of a batch is worked out from the cursor when the step begins, so membership may change at any step
boundary and every epoch still visits every sample exactly once. The batch size may change at any boundary, too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from oakum_worker.randomness.counters import mix, permutation
from oakum_worker.state.cursor import Cursor


class ElasticSampler:
    """Says which samples are in each global batch; an epoch's last batch is smaller where the sizes do not
    divide."""

    def __init__(self, num_samples: int, global_batch: int | Callable[[int], int], seed: int) -> None:
        """`global_batch` is the number of samples of a full batch, or returns it for the next batch of an
        epoch."""
        self.num_samples = num_samples
        self._global_batch = global_batch
        self._seed = seed
        self._orders: dict[int, torch.Tensor] = {}
        """Epoch -> the order of its samples, of the two epochs last asked for: a rank that reads ahead asks for
        the next one, too."""

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
        if epoch not in self._orders:
            kept = list(self._orders.items())[-1:]
            self._orders = dict(kept) | {epoch: permutation(self.num_samples, key=mix(self._seed, epoch))}
        return self._orders[epoch]
