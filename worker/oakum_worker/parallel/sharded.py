"""A step of sharded data parallelism: FSDP2 gathers parameters and scatters gradients, block by block.

As in `oakum_worker.parallel.data`, each rank weights its mean loss by n_r / n and gradients are added up, so every
rank has its rows of the gradient of the global batch's mean loss, whatever the shares. Totals are divided by the
sum of their weights at the end.

FSDP2's collectives carry only parameters and gradients. One additional small all-reduce carries the numbers that
all ranks need: the loss, the samples, the caller's votes and those of the state's keepers. It starts with the
step's last backward pass and is waited for after that pass, so it adds no round trip.

Every forward and backward pass is a collective. All ranks therefore compute the same number of micro-batches; a
rank that has no samples left computes the batch's first sample with weight 0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from oakum_worker.errors import GroupError
from oakum_worker.losses import Weight, to_mean
from oakum_worker.parallel.buckets import multiply_gradients
from oakum_worker.parallel.lost_peers import lost_peers
from oakum_worker.parallel.shards import Shards
from oakum_worker.parallel.step_engine import (
    GlobalBatch,
    Reduced,
    SplitStateEngine,
    StateVotes,
    StepVotes,
    compute_passes,
)
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.template import ModelTemplate
from oakum_worker.parallel.waiting import wait_for

_LOSS, _SAMPLES, _SIGNAL, _FLAG, _WEIGHT = range(5)
"""Positions of the numbers in the step's additional all-reduce; the keepers' votes follow them."""


class ShardedEngine(SplitStateEngine):
    """`StepEngine` of a sharded trainer: FSDP2 gathers parameters and scatters gradients. A rank alone computes as
    without sharding.

    `compute` calls `begin` once and `backward` for each micro-batch.
    """

    passes_communicate = True

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.group: dist.ProcessGroup | None = None
        self.votes: Callable[[], StateVotes] = StateVotes
        self.counted = StateVotes()
        self.steps = 0

    def join(
        self,
        group: dist.ProcessGroup | None,
        world_size: int,
        *,
        rank: int = 0,
        subgroups: Subgroups | None = None,
    ) -> None:
        """Work over `group` from now on; a `world_size` of 1, with `group` None, is a rank alone. Does not
        communicate. `subgroups` is not used."""
        self.group = group if world_size > 1 else None
        self._rank, self._world_size = rank, world_size
        self.counted = StateVotes()

    def evaluates_on(self, rank: int) -> bool:
        """True: every rank evaluates, since `forward` of a sharded model communicates."""
        return True

    def compute(self, batch: GlobalBatch, votes: Callable[[], StepVotes]) -> None:
        """Compute forward and backward passes of this rank's share of the batch, in as many micro-batches as every
        other rank. Raises `GroupError` if a rank is gone."""
        chunks = batch.chunks(self._rank, self._world_size, together=True)
        self.begin(sum(chunk.num_counted for chunk in chunks), batch.num_samples, votes)
        compute_passes(self, batch, chunks)

    def begin(self, num_local: int, num_global: int, votes: Callable[[], StepVotes]) -> None:
        """Start a step in which this rank computes `num_local` of `num_global` samples: clear all gradients, and
        note what this rank adds to the step's all-reduce. `votes` is called when that is sent."""
        self._num_global, self._step_votes = num_global, votes
        self._work: dist.Work | None = None
        for parameter in self._shards.parameters:
            parameter.grad = None
        if self.look is not None and num_local:
            self.look.expect(self._shards.parameters)
        numbers = [0.0, num_local, 0.0, 0.0, 0.0, *self.votes()]
        self._numbers = torch.tensor(numbers, dtype=torch.float64, device=self._shards.device)

    def backward(
        self,
        loss: torch.Tensor,
        num_samples: int,
        *,
        last: bool,
        scale: float = 1.0,
        weight: Weight | None = None,
    ) -> None:
        """Accumulate `scale` times the gradient of `loss`, the mean over `num_samples` samples.

        With a `weight` the loss is a total that has to be divided by the sum of all weights. With `num_samples` 0
        the loss adds nothing. Every rank has to call it the same number of times. Raises `GroupError` if a rank is
        gone.
        """
        part = (num_samples if weight is None else int(num_samples > 0)) / self._num_global
        if num_samples:
            self._numbers[_LOSS] += loss.detach().to(self._numbers.device) * part
            self._numbers[_WEIGHT] += num_samples if weight is None else weight
        if self.look is not None:
            for parameter, leaf in self._shards.leaves():
                self.look.follow(parameter, leaf)
        if last:
            self._step_votes().write(self._numbers, _SIGNAL, _FLAG)
        with lost_peers("during a step"):
            if last and self.group is not None:
                self._work = dist.all_reduce(self._numbers, group=self.group, async_op=True)
            loss.backward(torch.full_like(loss, part * scale))

    def finish(self) -> Reduced:
        """Wait until every `p.grad` is this rank's rows of the gradient of the global batch's mean loss. Returns
        the mean loss and the sums of the ranks' votes.

        Raises `GroupError` if a rank is gone or ranks are at different steps, and `TaskError` if the loss of the
        first step was computed with the model that the entrypoint has built.
        """
        with lost_peers("during a step"):
            if self._work is not None:
                wait_for(self._work, self._numbers)
        if self.look is not None and self._shards.users is not None:
            self._shards.users.refuse_gradients()
        for parameter in self._shards.parameters:
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        loss, num_samples, signal, flag, weight, *counted = self._numbers.tolist()
        if num_samples != self._num_global and self.group is not None:
            raise GroupError(
                f"the ranks together took {num_samples:g} samples of a batch of {self._num_global}: "
                "they are not at the same step"
            )
        factor = to_mean(self._num_global, weight)
        multiply_gradients(self._shards.parameters, (), factor)
        self.counted = StateVotes.of(counted)
        self.steps += 1
        return Reduced(loss * factor, StepVotes.of(signal, flag))


def warm_up() -> None:
    """Take one step of a tiny sharded model in a group of this process alone. It makes torch import many modules,
    which takes a second, so that the first real step does not."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, _ = ModelTemplate(nn.Linear(2, 2)).build(dist.group.WORLD, 0, 1)
        optimizer = torch.optim.AdamW(model.parameters())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    finally:
        dist.destroy_process_group()
