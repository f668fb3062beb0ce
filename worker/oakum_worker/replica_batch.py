"""A replica's share of a global batch, as the workers of a pipeline ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from oakum_worker.chain import Chain
from oakum_worker.forward_pass import ForwardPass
from oakum_worker.parallel.chunks import Chunk
from oakum_worker.sampler import Cursor, ElasticSampler


class ReplicaBatch:
    """Its micro-batches, read where they are needed: at the first stage and at the last one.

    Adds up what the last stage finds.
    """

    def __init__(
        self,
        forward: ForwardPass,
        chain: Chain,
        sampler: ElasticSampler,
        cursor: Cursor,
        chunks: Sequence[Chunk],
        num_global: int,
    ) -> None:
        self._forward = forward
        self._chain = chain
        self._sampler = sampler
        self._cursor = cursor
        self._chunks = chunks
        self._num_global = num_global
        self._samples: dict[int, Any] = {}
        self._losses: dict[int, torch.Tensor] = {}
        """By micro-batch, as one whose layers begin to draw is computed a second time."""

    @property
    def loss_sum(self) -> torch.Tensor | float:
        """This rank's part of the global batch's mean loss."""
        return sum(self._losses.values(), start=0.0)

    @property
    def num_counted(self) -> int:
        """Samples of which this rank has found the loss."""
        return sum(self._chunks[number].num_counted for number in self._losses)

    def num_samples(self, number: int) -> int:
        """See `MicroBatches`."""
        return len(self._chunks[number].positions)

    def inputs(self, number: int) -> Any:
        """See `MicroBatches`."""
        return self._chain.inputs(self._batch(number))

    def loss(self, output: Any, number: int) -> torch.Tensor:
        """See `MicroBatches`."""
        chunk = self._chunks[number]
        batch = self._batch(number)
        loss = self._forward.checked(self._chain.end(output, batch))
        weighted = loss * (chunk.num_counted / self._num_global)
        self._losses[number] = weighted.detach()
        return weighted

    @contextmanager
    def drawing(self, number: int) -> Iterator[Callable[..., Any]]:
        """See `MicroBatches`. What is called through it computes in the spec's precision."""
        with self._forward.drawing(self._cursor.step, self._chunks[number].positions) as call:

            def in_precision(function: Callable[..., Any], *arguments: Any) -> Any:
                with self._forward.precision():
                    return call(function, *arguments)

            yield in_precision

    def _batch(self, number: int) -> Any:
        samples = self._samples.get(number)
        if samples is None:
            positions = self._chunks[number].positions
            indices = self._sampler.indices(self._cursor, positions)
            samples = self._forward.read(self._cursor, positions, indices)
            self._samples[number] = samples
        return self._forward.collate(self._cursor.step, samples)
