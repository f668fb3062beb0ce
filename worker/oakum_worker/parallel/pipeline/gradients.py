"""Gradients of a pipeline's stages, each summed over the ranks that hold the stage.

These are the stage's workers in all replicas, and where a schedule has several pipes the workers of each. The loss
is weighted already, so the sum is the gradient of the global batch's mean loss.

Each stage has a group of its own, also where the ranks are the same: two workers come to their stages in different
orders, and collectives of one group need one order. A parameter of several stages (tied weights) is summed once,
over the ranks that hold any of them: a rank that holds two of its stages has both parts in one `p.grad` already.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from oakum_worker.chain import Chain
from oakum_worker.errors import GroupError
from oakum_worker.parallel.buckets import Bucket, lay_out, summed_in
from oakum_worker.parallel.pipeline.stages import parameters_of
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.waiting import begin_all_reduce

_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20


class StageGradients:
    """Sums one rank's gradients over the holders of its stages.

    A step is `begin`, a `sync` for each stage as soon as its gradients are complete here, and `finish`. `begin`
    and `finish` are due on every rank, also where there was nothing to compute. Collectives that fail raise
    `GroupError`; the gradients are then worthless.
    """

    def __init__(
        self,
        chain: Chain,
        cuts: Sequence[range],
        holders: Sequence[Sequence[int]],
        rank: int,
        subgroups: Subgroups,
        *,
        first_bucket_bytes: int = _FIRST_BUCKET_BYTES,
        bucket_bytes: int = _BUCKET_BYTES,
    ) -> None:
        """Collective among the generation's ranks. `cuts[stage]` are the layers of a stage, `holders[stage]` the
        ranks that have it, in rising order (`Arrangement.holders_of`)."""
        caps = first_bucket_bytes, bucket_bytes
        self._sums: list[_Sum] = []
        # One order on all ranks, or two would wait for each other to form different groups.
        for stages, parameters in _by_stages(chain, cuts).items():
            ranks = sorted({holder for stage in stages for holder in holders[stage]})
            if rank in ranks:
                held = {stage for stage in stages if rank in holders[stage]}
                group = subgroups.form(f"stages-{'-'.join(map(str, stages))}", ranks)
                self._sums.append(_Sum(parameters, held, group, caps))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of this rank's stages that require gradients, each once."""
        return [parameter for one in self._sums for parameter in one.parameters]

    def begin(self) -> None:
        """Start a step: no gradient is left of the one before."""
        for one in self._sums:
            one.begin()

    def sync(self, stage: int) -> None:
        """The stage's gradients are complete on this rank: begin to sum them. Does not wait."""
        for one in self._sums:
            one.complete(stage)

    def finish(self) -> None:
        """Wait until every `p.grad` is the sum; one that took no part in the loss is zeros."""
        for one in self._sums:
            one.send()
        for one in self._sums:
            one.finish()


class _Sum:
    """The gradients of some parameters, which the same ranks hold."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        stages: set[int],
        group: dist.ProcessGroup | None,
        caps: tuple[int, int],
    ) -> None:
        """`stages` are those that are on this rank."""
        self.parameters = parameters
        self._stages = stages
        self._group = group
        self._buckets: list[Bucket] = []
        if group is not None or any(p.dtype != summed_in(p) for p in parameters):
            # The last layers' gradients are there first.
            self._buckets, _ = lay_out(list(reversed(parameters)), *caps, 0)
        for bucket in self._buckets:
            for number, parameter in enumerate(bucket.parameters):
                if bucket.widens(number):
                    hook = partial(_gather, bucket, number)
                    parameter.register_post_accumulate_grad_hook(hook)

    def begin(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        for bucket in self._buckets:
            bucket.open()
        self._waiting = set(self._stages)
        self._is_sent = False

    def complete(self, stage: int) -> None:
        if stage in self._waiting:
            self._waiting.remove(stage)
            if not self._waiting:
                self.send()

    def send(self) -> None:
        if self._is_sent:
            return
        self._is_sent = True
        for bucket in self._buckets:
            for number in range(len(bucket.parameters)):
                bucket.complete(number)
            if self._group is not None and bucket.parameters:
                try:
                    bucket.work = begin_all_reduce(bucket.flat, self._group)
                except RuntimeError as error:
                    raise GroupError(f"gradients could not be sent: {error}") from error

    def finish(self) -> None:
        for bucket in self._buckets:
            if bucket.work is not None:
                try:
                    bucket.work.wait()
                except RuntimeError as error:
                    raise GroupError(f"a rank was lost during a step: {error}") from error
                bucket.work = None
            bucket.hand_out()
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def _by_stages(chain: Chain, cuts: Sequence[range]) -> dict[tuple[int, ...], list[nn.Parameter]]:
    """The parameters of each stage, and those that stages share, by the stages that have them."""
    stages_of: dict[nn.Parameter, tuple[int, ...]] = {}
    for stage, layers in enumerate(cuts):
        for parameter in parameters_of(chain, layers):
            stages_of[parameter] = (*stages_of.get(parameter, ()), stage)
    grouped: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for parameter, stages in stages_of.items():
        grouped.setdefault(stages, []).append(parameter)
    return grouped


def _gather(bucket: Bucket, number: int, _: torch.Tensor) -> None:
    bucket.gather(number)
