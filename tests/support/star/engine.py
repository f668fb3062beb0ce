"""A step in which rank 0 adds up what the other ranks send it, and sends everybody the sum."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from oakum_worker.errors import GroupError
from oakum_worker.losses import Weight, to_mean
from oakum_worker.parallel.lost_peers import lost_peers
from oakum_worker.parallel.step_engine import GlobalBatch, Reduced, StepEngine, StepVotes, compute_passes
from oakum_worker.parallel.subgroups import Subgroups

_LOSS, _SAMPLES, _SIGNAL, _FLAG, _WEIGHT, _NUM_NUMBERS = range(6)


class StarEngine(StepEngine):
    """Sums gradients over a star whose centre is rank 0."""

    passes_communicate = False

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.messages = 0
        """Sent by this rank so far."""

    def join(
        self, group: dist.ProcessGroup | None, world_size: int, *, rank: int, subgroups: Subgroups | None
    ) -> None:
        """See `StepEngine`."""
        self._group, self._rank, self._world_size = group, rank, world_size

    def compute(self, batch: GlobalBatch, votes: Callable[[], StepVotes]) -> None:
        """See `StepEngine`."""
        self._num_global = batch.num_samples
        self._numbers = torch.tensor([0.0, 0.0, *votes().numbers, 0.0], dtype=torch.float64)
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        compute_passes(self, batch, batch.chunks(self._rank, self._world_size, together=False))

    def backward(
        self, loss: torch.Tensor, num_samples: int, *, last: bool, scale: float, weight: Weight | None
    ) -> None:
        """Accumulate the gradient of a micro-batch."""
        part = (num_samples if weight is None else int(num_samples > 0)) / self._num_global
        if num_samples:
            self._numbers[_LOSS] += loss.item() * part
            self._numbers[_SAMPLES] += num_samples
            self._numbers[_WEIGHT] += num_samples if weight is None else weight
        (loss * part * scale).backward()

    def finish(self) -> Reduced:
        """See `StepEngine`."""
        gradients = [parameter.grad for parameter in self._parameters]
        told = torch.cat([self._numbers, *(gradient.double().flatten() for gradient in gradients)])
        with lost_peers("at the centre of the star"):
            self._exchange(told)
        loss, num_samples, signal, flag, weight = told[:_NUM_NUMBERS].tolist()
        if num_samples != self._num_global:
            raise GroupError(f"the ranks together took {num_samples:g} samples of a batch of {self._num_global}")
        factor = to_mean(self._num_global, weight)
        rows = told[_NUM_NUMBERS:].split([gradient.numel() for gradient in gradients])
        for gradient, summed in zip(gradients, rows, strict=True):
            gradient.copy_(factor * summed.view_as(gradient))
        return Reduced(loss * factor, StepVotes.of(signal, flag))

    def _exchange(self, told: torch.Tensor) -> None:
        if self._group is None:
            return
        others = range(1, self._world_size) if self._rank == 0 else (0,)
        if self._rank:
            self._send(told, 0)
        for other in others:
            received = torch.empty_like(told)
            self._group.recv([received], other, 0).wait()
            told.copy_(told + received if self._rank == 0 else received)
        if self._rank == 0:
            for other in others:
                self._send(told, other)

    def _send(self, told: torch.Tensor, rank: int) -> None:
        assert self._group is not None
        self._group.send([told], rank, 0).wait()
        self.messages += 1
