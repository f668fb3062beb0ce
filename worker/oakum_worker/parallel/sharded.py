"""A step of sharded data parallelism: FSDP2 gathers parameters and deals gradients out, block by block.

The mathematics are those of `oakum_worker.parallel.data`: each rank weights its mean loss by n_r / n and gradients
are added up, so that every rank has its rows of the gradient of the global batch's mean loss, whatever the shares.

FSDP2's collectives carry nothing else. What all ranks have to agree on, the loss, the caller's signal and what
else is counted, goes in one small all-reduce of its own. It starts with the step's last backward pass and is
waited for after it, so it costs no round trip of its own.

Every forward and backward pass is a collective. All ranks therefore compute the same number of micro-batches; one
that has no sample left computes the batch's first one and counts it for nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from oakum_worker.errors import GroupError
from oakum_worker.group import lost_peers
from oakum_worker.parallel.data import Reduced
from oakum_worker.parallel.shards import Shards
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.template import ModelTemplate

_LOSS, _SAMPLES, _SIGNAL, _FLAG, _VOTES = range(5)


def no_votes() -> tuple[int, ...]:
    """Nothing to count."""
    return ()


class ShardedEngine:
    """Takes the part of `GradientReducer` for a sharded trainer; alone, it leaves gradients to torch.

    A step is `begin`, `backward` for each of its `chunks`, `finish`, on every rank.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.group: dist.ProcessGroup | None = None
        """Over which it works; None for a rank alone."""
        self.votes: Callable[[], tuple[int, ...]] = no_votes
        """Asked once in each step for numbers to add up over the ranks; as many on every rank."""
        self.counted: tuple[int, ...] = ()
        """The last finished step's sums of them."""
        self.steps = 0
        """Steps whose gradients were complete. Weights may have changed since if the loop has counted fewer."""

    def join(
        self, group: dist.ProcessGroup | None, world_size: int, *, subgroups: Subgroups | None = None
    ) -> None:
        """Work over `group` from now on; None is a generation of one rank. Does not communicate.

        FSDP2 needs no other group.
        """
        self.group = group if world_size > 1 else None
        self.counted = ()

    def begin(
        self,
        num_local: int,
        num_global: int,
        signal: int,
        flag: int = 0,
        *,
        carried: torch.Tensor | float | None = None,
    ) -> None:
        """Start a step in which this rank computes `num_local` of `num_global` samples.

        The gradient's noise is not measured here, so there is nothing to be `carried`.
        """
        assert carried is None
        self._num_global = num_global
        self._work: dist.Work | None = None
        for parameter in self._shards.parameters:
            parameter.grad = None
        numbers = [0.0, num_local, signal, flag, *self.votes()]
        self._numbers = torch.tensor(numbers, dtype=torch.float64, device=self._shards.device)

    def backward(self, loss: torch.Tensor, num_samples: int, *, last: bool, scale: float = 1.0) -> None:
        """Accumulate `scale` times the gradient of `loss`, the mean over `num_samples` samples, or of no weight.

        Due on every rank the same number of times. Raises `GroupError` when a rank is gone.
        """
        weight = num_samples / self._num_global
        if num_samples:
            self._numbers[_LOSS] += loss.detach().to(self._numbers.device) * weight
        with lost_peers("during a step"):
            if last and self.group is not None:
                self._work = dist.all_reduce(self._numbers, group=self.group, async_op=True)
            loss.backward(torch.full_like(loss, weight * scale))

    def finish(self) -> Reduced:
        """Wait until every `p.grad` is this rank's rows of the global batch's. Raises `GroupError`."""
        with lost_peers("during a step"):
            if self._work is not None:
                self._work.wait()
        for parameter in self._shards.parameters:
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        loss, num_samples, signal, flag, *counted = self._numbers.tolist()
        if num_samples != self._num_global and self.group is not None:
            raise GroupError(
                f"the ranks together took {num_samples:g} samples of a batch of {self._num_global}: "
                "they are not at the same step"
            )
        self.counted = tuple(round(number) for number in counted)
        self.steps += 1
        return Reduced(loss, round(signal), round(flag))


def warm_up() -> None:
    """Do once what a first sharded step does: torch imports half of itself on the way, which takes a second."""
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
