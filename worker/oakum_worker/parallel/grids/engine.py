"""A step of a tensor-parallel trainer: the ranks of a grid compute each product of their replica's share together.

The batch is divided among replicas as among the ranks of plain data parallelism. All ranks of a grid read each of
their replica's micro-batches in full, compute with their own part of it, and find the same loss. Gradients of a
block are then complete within the grid, and are summed over the ranks with the same place in other grids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from oakum_worker.losses import LossValue, Weight
from oakum_worker.parallel.chunks import Chunk, own_chunks
from oakum_worker.parallel.divided_engine import DividedEngine
from oakum_worker.parallel.grids.arranging import GridArranger
from oakum_worker.parallel.grids.state import GridState
from oakum_worker.parallel.lost_peers import lost_peers
from oakum_worker.parallel.pipeline.gradients import GradientSum
from oakum_worker.parallel.step_engine import GlobalBatch, Reduced, StepVotes
from oakum_worker.parallel.tensor.computing import computing
from oakum_worker.parallel.tensor.wires import Wires
from oakum_worker.task import Task

_LOSS, _SAMPLES, _SIGNAL, _FLAG, _WEIGHT = range(5)
"""Positions of the numbers in the step's additional all-reduce; the keepers' votes follow them."""
_BUCKET_BYTES = 25 << 20


class GridLoss:
    """Takes the place of the task's `loss`, and computes it on the ranks of a grid together."""

    def __init__(self, loss: Callable[[nn.Module, Any], LossValue], *, keep_gathered: bool) -> None:
        self._loss = loss
        self._keep_gathered = keep_gathered
        self.wires: Wires | None = None
        """This rank's connections within its grid; None where it has whole parameters."""
        self.num_samples = 0
        """Samples of the micro-batch that is computed next."""

    def __call__(self, model: nn.Module, batch: Any) -> LossValue:
        """The loss of the whole micro-batch, on every rank of the grid. Collective among the grid's ranks; without
        a grid it is the task's own loss."""
        if self.wires is None:
            return self._loss(model, batch)
        with computing(self.wires, self.num_samples, keep_gathered=self._keep_gathered) as share:
            return self._loss(model, share(batch))


class GridEngine(DividedEngine):
    """`StepEngine` of a tensor-parallel trainer: computes this rank's part of its replica's share of each batch. A
    spare rank computes nothing and only takes part in sums."""

    def __init__(
        self, task: Task, state: GridState, arranger: GridArranger, *, keep_gathered: bool = False
    ) -> None:
        """Replaces `task.loss` by one that is computed on a grid's ranks together."""
        super().__init__(state, arranger)
        self._state = state
        self._loss = GridLoss(task.loss, keep_gathered=keep_gathered)
        task.loss = self._loss
        self._gradients: GradientSum | None = None

    @property
    def received(self) -> int:
        """Elements that this rank has received within its grid in this generation."""
        return 0 if self._loss.wires is None else self._loss.wires.received

    def compute(self, batch: GlobalBatch, votes: Callable[[], StepVotes]) -> None:
        """Compute forward and backward passes of this rank's part; nothing on a spare rank. Gradients begin to be
        summed over the replicas. In a generation's first step, connects to the ranks with which this rank works.
        Raises `GroupError` if a rank is gone, and whatever the task's code raises."""
        if self._gradients is None:
            self._set_up()
        assert self._gradients is not None
        self._gradients.begin()
        arrangement, rank = self._state.arrangement, self._state.place.rank
        seat = arrangement.seat(rank)
        self._num_global, self._step_votes = batch.num_samples, votes
        numbers = [0.0, 0.0, 0.0, 0.0, 0.0, *self.votes()]
        self._numbers = torch.tensor(numbers, dtype=torch.float64)
        if seat is not None:
            size = arrangement.micro_batch
            chunks = own_chunks(batch.num_samples, seat.replica, arrangement.num_replicas, size)
            if self.look is not None and chunks:
                self.look.expect_from(self._state.parameters)
            for chunk in chunks:
                self._pass(batch, chunk, speaks=seat.position == 0)
        self._gradients.complete(0)

    def finish(self) -> Reduced:
        """Wait until every `p.grad` is this rank's block of the gradient of the global batch's mean loss. Returns
        the mean loss and the sums of the ranks' votes.

        Raises `GroupError` if a rank is gone or ranks are at different steps.
        """
        assert self._gradients is not None
        self._step_votes().write(self._numbers, _SIGNAL, _FLAG)
        return self._finished(self._numbers, self._num_global, self._gradients)

    @contextmanager
    def whole_model(self) -> Iterator[bool]:
        """Context in which rank 0 has the whole model and computes alone; a collective. Yields whether this rank
        has the whole model.

        Within the context rank 0 needs memory for all parameters of the model. Raises `GroupError` if a rank is
        gone.
        """
        wires, self._loss.wires = self._loss.wires, None
        try:
            with super().whole_model() as is_whole:
                yield is_whole
        finally:
            self._loss.wires = wires

    def _disconnect(self) -> None:
        self._loss.wires, self._gradients = None, None

    def _pass(self, batch: GlobalBatch, chunk: Chunk, *, speaks: bool) -> None:
        """Compute a micro-batch's forward and backward pass. With `speaks`, as on one rank of each grid, its loss
        is also added to the step's numbers."""
        self._loss.num_samples = len(chunk.positions)
        with batch.loss(chunk) as loss:
            counted = chunk.num_counted if loss.weight is None else int(chunk.num_counted > 0)
            part = counted / self._num_global
            if speaks and chunk.num_counted:
                self._note(loss.value, chunk.num_counted, part, loss.weight)
            with lost_peers("during a step"):
                loss.value.backward(torch.full_like(loss.value, part * batch.loss_scale))

    def _note(self, loss: torch.Tensor, num_samples: int, part: float, weight: Weight | None) -> None:
        self._numbers[_LOSS] += loss.detach().to("cpu", torch.float64) * part
        self._numbers[_SAMPLES] += num_samples
        self._numbers[_WEIGHT] += num_samples if weight is None else float(weight)

    def _set_up(self) -> None:
        """Connect to the ranks of this rank's grid, and to those of other grids with the same blocks."""
        arrangement, rank = self._state.arrangement, self._state.place.rank
        seat, group = arrangement.seat(rank), None
        if seat is not None:
            members = arrangement.grid_of(rank)
            if len(members) > 1:
                name = f"grid-{seat.replica}"
                self._loss.wires = Wires.form(arrangement.grid, members, rank, self._subgroups, name)
            holders = arrangement.holders_of(0, seat.position)
            group = self._subgroups.form(f"replicas-{seat.position}", holders)
        trained = [parameter for parameter in self._state.parameters if parameter.requires_grad]
        self._gradients = GradientSum(trained, {0}, group, (_BUCKET_BYTES, _BUCKET_BYTES))
