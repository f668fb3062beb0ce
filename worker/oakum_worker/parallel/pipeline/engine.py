"""Interfaces of a pipeline engine and of the micro-batches it computes: one worker's part of a replica's step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from oakum_worker.losses import Weight


class MicroBatches(Protocol):
    """A replica's share of a global batch, cut into micro-batches. Equal on all workers of the replica."""

    def num_samples(self, number: int) -> int:
        """Number of samples of a micro-batch, at least one. Micro-batches with equal numbers of samples pass
        values of equal shapes between stages."""

    def prepare(self, number: int) -> None:
        """Read and collate the micro-batch. To be called before `inputs` and `loss`, and not within `drawing`."""

    def inputs(self, number: int) -> Any:
        """The first layer's arguments: a tensor or a tuple of tensors."""

    def loss(self, output: Any, number: int) -> torch.Tensor:
        """The micro-batch's part of the global batch's loss, shape (), computed from the last layer's output.

        The part is weighted: the sum over all micro-batches of all replicas is the mean loss, or the total divided
        by the batch's samples. The latter becomes the mean once all weights are known.
        """

    def drawing(self, number: int) -> AbstractContextManager[Callable[..., Any]]:
        """Context in which a forward pass draws the micro-batch's random numbers, the same ones each time.

        Yields a function through which the caller calls the forward pass. The backward pass runs within the
        context, too.
        """

    def forget(self, number: int) -> None:
        """Free the micro-batch: this worker no longer needs its inputs and its loss."""


class CountedMicroBatches(MicroBatches, Protocol):
    """Micro-batches that add up the losses computed on this rank."""

    @property
    def loss_sum(self) -> torch.Tensor | float:
        """This rank's part of the global batch's mean loss; where the task returns totals, this rank's totals
        divided by the batch's samples."""

    @property
    def num_counted(self) -> int:
        """Number of samples whose loss this rank has computed."""

    @property
    def weight(self) -> Weight:
        """This rank's part of what the loss's sum is divided by: its samples, or the weights that the task
        returned."""


class WorkerEngine(Protocol):
    """Computes one worker's part of each step of a replica."""

    def run(self, work: MicroBatches) -> None:
        """Compute the step's forward and backward passes, and add this worker's gradients to `p.grad`.

        Starts to sum a stage's gradients over its holders as soon as this worker has finished the stage, and does
        not wait for the sums. Raises `GroupError` if a peer is gone, and whatever the task's code raises.
        """
