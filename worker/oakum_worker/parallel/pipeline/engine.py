"""What an engine is given and does: one replica's share of a step, as one of its workers computes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class MicroBatches(Protocol):
    """A replica's share of a global batch, cut into micro-batches. The same on all workers of the replica."""

    def num_samples(self, number: int) -> int:
        """How many samples a micro-batch has, at least one. Values of equal shapes pass for equal numbers."""

    def inputs(self, number: int) -> Any:
        """What the first layer is called with: a tensor or a tuple of tensors."""

    def loss(self, output: Any, number: int) -> torch.Tensor:
        """The micro-batch's part of the global batch's mean loss, shape (), of the last layer's output.

        Weighted already: the sum over all micro-batches of all replicas is that mean.
        """

    def drawing(self, number: int) -> AbstractContextManager[Callable[..., Any]]:
        """Within it a forward pass draws what belongs to the micro-batch, as often as it is computed.

        Gives a function through which the forward pass is to be called; its backward pass runs within it, too.
        """


class Engine(Protocol):
    """One worker's part of a replica's step."""

    def run(self, work: MicroBatches) -> None:
        """Compute forward and backward of the step: adds to `p.grad` what this worker's micro-batches give.

        Begins to sum gradients over a stage's holders as soon as a stage is done here; does not wait for that.
        Raises `GroupError` when a peer is gone, and whatever the task's code raises.
        """
