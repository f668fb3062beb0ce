"""Sums the gradients of each pipeline stage over the ranks that hold the stage.

These ranks are the stage's workers in all replicas and in all pipes of the schedule. The loss is weighted already,
so the sum is the gradient of the global batch's loss.

Each stage has a process group of its own, even if two stages have the same ranks: workers finish their stages in
different orders, while the collectives of one group need one order. A parameter of several stages (tied weights)
is summed once, over the ranks that hold any of these stages; a rank that holds two of them has added both
gradients in one `p.grad` already.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from oakum_worker.chain import Chain
from oakum_worker.errors import GroupError
from oakum_worker.parallel.buckets import Bucket, lay_out, multiply_gradients, summed_in, weak_hook
from oakum_worker.parallel.lost_peers import lost_peers
from oakum_worker.parallel.pipeline.stages import parameters_of
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.waiting import begin_all_reduce, connect, wait_for

_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20


class StageGradients:
    """Sums one rank's gradients over the ranks that hold its stages.

    A step calls `begin`, `sync` for each stage as soon as its gradients are complete on this rank, and `finish`.
    Every rank has to call `begin` and `finish`, even if it has nothing to compute. A failed collective raises
    `GroupError`; the gradients are then undefined.
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
        """Collective among the generation's ranks.

        `cuts[stage]` are the layers of a stage; `holders[stage]` are the ranks that hold it, in rising order
        (`Arrangement.holders_of`).
        """
        caps = first_bucket_bytes, bucket_bytes
        self._sums: list[GradientSum] = []
        # All ranks form the groups in one order; otherwise two ranks could wait for each other to form different
        # groups.
        for stages, parameters in _by_stages(chain, cuts).items():
            ranks = sorted({holder for stage in stages for holder in holders[stage]})
            if rank in ranks:
                held = {stage for stage in stages if rank in holders[stage]}
                group = subgroups.form(f"stages-{'-'.join(map(str, stages))}", ranks)
                if group is not None and parameters:
                    with lost_peers("while the holders of a stage connected"):
                        connect(group, parameters[0].device)
                self._sums.append(GradientSum(parameters, held, group, caps))

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters of this rank's stages that require gradients, each once."""
        return [parameter for one in self._sums for parameter in one.parameters]

    def begin(self) -> None:
        """Begin a step: set all gradients to None and forget the previous step's sums."""
        for one in self._sums:
            one.begin()

    def sync(self, stage: int) -> None:
        """Begin to sum the stage's gradients, which are complete on this rank. Does not wait."""
        for one in self._sums:
            one.complete(stage)

    def finish(self, factor: float = 1.0) -> None:
        """Wait for all sums; each `p.grad` is then `factor` times its sum, zeros if the loss did not use the
        parameter."""
        for one in self._sums:
            one.send()
        for one in self._sums:
            one.finish(factor)


class GradientSum:
    """Sums the gradients of parameters that are all held by the same ranks."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        stages: set[int],
        group: dist.ProcessGroup | None,
        caps: tuple[int, int],
    ) -> None:
        """`stages` are the stages on this rank that contain the parameters; `group` is None where only this rank
        holds them; `caps` are the sizes in bytes of the first bucket and of the others."""
        self.parameters = parameters
        self._stages = stages
        self._group = group
        self._buckets: list[Bucket] = []
        if group is not None or any(p.dtype != summed_in(p) for p in parameters):
            # Backward completes the gradients of the last layers first.
            self._buckets, _ = lay_out(list(reversed(parameters)), *caps, 0)
        gather = weak_hook(self._gather)
        for place, bucket in enumerate(self._buckets):
            for number, parameter in enumerate(bucket.parameters):
                if bucket.widens(number):
                    parameter.register_post_accumulate_grad_hook(partial(gather, place, number))

    def _gather(self, place: int, number: int, _: torch.Tensor) -> None:
        self._buckets[place].gather(number)

    def begin(self) -> None:
        """Begin a step: set the parameters' gradients to None and forget the previous step's sum."""
        for parameter in self.parameters:
            parameter.grad = None
        for bucket in self._buckets:
            bucket.open()
        self._waiting = set(self._stages)
        self._is_sent = False

    def complete(self, stage: int) -> None:
        """Note that the gradients of `stage` are complete on this rank, and begin to sum if no other stage's are
        missing. Does not wait. Raises `GroupError` when the sum cannot begin."""
        if stage in self._waiting:
            self._waiting.remove(stage)
            if not self._waiting:
                self.send()

    def send(self) -> None:
        """Begin to sum over the ranks, unless that has begun already. Does not wait. Raises `GroupError` when the
        sum cannot begin."""
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

    def finish(self, factor: float) -> None:
        """Wait for the sum; each parameter's `p.grad` is then its sum times `factor`, or zeros without any
        gradient. Raises `GroupError` when a rank is lost."""
        for bucket in self._buckets:
            if bucket.work is not None:
                try:
                    wait_for(bucket.work, bucket.flat)
                except RuntimeError as error:
                    raise GroupError(f"a rank was lost during a step: {error}") from error
                bucket.work = None
        multiply_gradients(self.parameters, self._buckets, factor)
        for bucket in self._buckets:
            bucket.hand_out()
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def _by_stages(chain: Chain, cuts: Sequence[range]) -> dict[tuple[int, ...], list[nn.Parameter]]:
    """Stages -> the parameters that exactly these stages contain; tied weights have several stages."""
    stages_of: dict[nn.Parameter, tuple[int, ...]] = {}
    for stage, layers in enumerate(cuts):
        for parameter in parameters_of(chain, layers):
            stages_of[parameter] = (*stages_of.get(parameter, ()), stage)
    grouped: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for parameter, stages in stages_of.items():
        grouped.setdefault(stages, []).append(parameter)
    return grouped
