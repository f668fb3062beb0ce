"""A pipeline replica's share of a global batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from oakum_worker.chain import Chain
from oakum_worker.losses import Weight
from oakum_worker.parallel.chunks import Chunk
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.forward_pass import ForwardPass
from oakum_worker.step.sampler import ElasticSampler


class ReplicaBatch:
    """The micro-batches of a replica, as its ranks use them in one step. A `MicroBatches`.

    Each micro-batch is read and collated once on the rank of the first stage and once on the rank of the last
    stage. Both ranks get the same batch, because random numbers follow only from seed, step and sample. Adds up
    the losses that the last stage computes.
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
        self._prepared: dict[int, tuple[Any, Any]] = {}
        """Micro-batch -> its batch and the first layer's inputs, until `forget`."""
        self._losses: dict[int, torch.Tensor] = {}
        """Micro-batch -> its part of the loss; a micro-batch that is computed a second time replaces its part."""
        self._weights: dict[int, Weight] = {}

    @property
    def loss_sum(self) -> torch.Tensor | float:
        """This rank's part of the global batch's loss: of the mean, or of the totals divided by the batch's
        samples."""
        return sum(self._losses.values(), start=0.0)

    @property
    def weight(self) -> Weight:
        """This rank's part of the loss's divisor: its samples, or the weights that the loss has returned."""
        return sum(self._weights.values(), start=0.0)

    @property
    def num_counted(self) -> int:
        """Number of samples whose loss this rank has computed."""
        return sum(self._chunks[number].num_counted for number in self._losses)

    def num_samples(self, number: int) -> int:
        """Number of samples of micro-batch `number`, at least one."""
        return len(self._chunks[number].positions)

    def prepare(self, number: int) -> None:
        """Read and collate micro-batch `number`, unless that is done. To be called before `inputs` and `loss`, and
        not within `drawing`."""
        positions = self._chunks[number].positions
        if number not in self._prepared:
            indices = self._sampler.indices(self._cursor, positions)
            # The last stage needs this call, too: making the inputs may change the batch, for example by masking.
            prepared = self._forward.prepared(self._cursor, positions, indices, self._chain.inputs)
            self._prepared[number] = prepared

    def inputs(self, number: int) -> Any:
        """The first layer's arguments for micro-batch `number`, which has to be prepared: a tensor or a tuple of
        tensors."""
        return self._prepared[number][1]

    def loss(self, output: Any, number: int) -> torch.Tensor:
        """Micro-batch `number`'s weighted part of the global batch's loss, shape (), computed from the last
        layer's output. Also adds it to `loss_sum`. Raises `TaskError` where the task returns no loss."""
        chunk = self._chunks[number]
        batch, _ = self._prepared[number]
        loss = self._forward.checked(self._chain.end(output, batch))
        counted = chunk.num_counted if loss.weight is None else int(chunk.num_counted > 0)
        weighted = loss.value * (counted / self._num_global)
        self._losses[number] = weighted.detach()
        weight = chunk.num_counted if loss.weight is None else loss.weight
        self._weights[number] = weight if chunk.num_counted else 0
        return weighted

    @contextmanager
    def drawing(self, number: int) -> Iterator[Callable[..., Any]]:
        """Context in which passes of micro-batch `number` draw its random numbers, the same ones each time.
        Yields a function through which the caller calls the forward pass, in the spec's precision."""
        with self._forward.drawing(self._cursor.step, self._chunks[number].positions) as call:

            def in_precision(function: Callable[..., Any], *arguments: Any) -> Any:
                with self._forward.precision():
                    return call(function, *arguments)

            yield in_precision

    def forget(self, number: int) -> None:
        """Free micro-batch `number`: this worker no longer needs its inputs and its loss."""
        self._prepared.pop(number, None)
