"""Normalisation whose results do not depend on how a batch is spread: over ranks, or over samples of one group.

BatchNorm normalises by the samples that one rank computes at once, so what a model learns depends on the number of
ranks and on the micro-batch. What a spec can have instead:

- *synchronised*: the ranks share the statistics of the micro-batch that they compute together. Output and gradient
  are then those of one process with all of it, whatever the ranks' shares. Running statistics are those of the
  whole step's batch, updated once when the step is taken. Several micro-batches are still normalised apart.
- *group*: GroupNorm (Wu and He, arXiv:1803.08494), in which each sample is normalised by itself. It depends
  neither on ranks nor on micro-batches, and needs no communication. Also what goes with pipelines ("Towards
  accelerating model parallelism in distributed deep learning systems", PLOS ONE 2023).

Modules change their class in place: they stay the same objects with the same parameters, wherever the task, its
optimizer or a chain of layers holds on to them. torch's own SyncBatchNorm takes no tensors on the CPU, works on a
group that it is built with, and updates running statistics once for each micro-batch.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from oakum_worker.errors import TaskError, TrainingWarning
from oakum_worker.group import lost_peers
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.waiting import all_gather, all_reduce
from oakum_worker.spec_options import BatchNormChoice

_KNOWN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_MOST_GROUPS = 32
"""What Wu and He use."""
_LEAST_CHANNELS = 2
_LEAST_CHANNELS_1D = 16
"""Of a group. Where a sample has one value in each channel, two channels would always become -1 and 1."""


class Moments(NamedTuple):
    """Of the values of each of C channels."""

    num_values: torch.Tensor
    """How many there are for one channel, shape ()."""
    mean: torch.Tensor
    """Shape (C,)."""
    squares: torch.Tensor
    """Sums of squared differences from the mean, shape (C,)."""


def pooled(parts: list[Moments]) -> Moments:
    """The moments of all parts' values together (Chan, Golub and LeVeque 1979); some parts may be empty."""
    counts = torch.stack([part.num_values for part in parts])
    means = torch.stack([part.mean for part in parts])
    total = counts.sum()
    mean = (counts[:, None] * means).sum(0) / total
    between = (counts[:, None] * (means - mean).square()).sum(0)
    return Moments(total, mean, torch.stack([part.squares for part in parts]).sum(0) + between)


class Synchronisation:
    """What the synchronised layers of a model have in common: over whom, and when running statistics change.

    Within a step, from `begin` to `commit`, running statistics wait for its end. Else they change with each
    forward pass, as torch's do.
    """

    def __init__(self) -> None:
        self.group: dist.ProcessGroup | None = None
        """Ranks that all compute the same number of forward and backward passes; None for a rank alone."""
        self.counts = True
        """Whether this rank's next samples count; where not, they are there for the others' sake alone."""
        self.defers = False
        """Whether running statistics wait for the end of a step."""
        self._layers: list[SynchronisedBatchNorm] = []

    def add(self, layer: SynchronisedBatchNorm) -> None:
        """Have a layer take part."""
        layer.synchronisation = self
        self._layers.append(layer)

    @property
    def is_used(self) -> bool:
        """Whether any layer takes part: all ranks then have to compute as many micro-batches."""
        return bool(self._layers)

    def join(self, group: dist.ProcessGroup | None, subgroups: Subgroups | None) -> None:
        """Share statistics over `group` from now on; None is a rank alone.

        With `subgroups`, which are for CPUs, over connections of its own, which gradients on their way do not hold
        up: collective then. Raises `GroupError` when a rank is gone.
        """
        self.defers = False
        self.group = group
        tensors = [tensor for layer in self._layers for tensor in layer.state_dict().values()]
        on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
        if group is not None and subgroups is not None and self.is_used and on_cpu:
            self.group = subgroups.form("normalisation", range(group.size()))

    def begin(self) -> None:
        """A step begins; what one before it has left that was not taken is forgotten."""
        self.defers, self.counts = True, True
        for layer in self._layers:
            layer.noted = None

    def commit(self) -> None:
        """The step is taken: update running statistics once, with those of its whole batch."""
        self.defers = False
        for layer in self._layers:
            layer.update_running_statistics()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of a model is for itself alone, and process groups cannot be copied.
        return Synchronisation, ()


class SynchronisedBatchNorm(_BatchNorm):
    """BatchNorm by the statistics of all ranks' samples, for inputs (N, C) or (N, C, ...), on any device.

    In training mode each forward pass, and each backward pass, is a collective of the ranks. A rank that is lost
    is a `GroupError`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.synchronisation = Synchronisation()
        self.noted: Moments | None = None
        """Of the present step's batch as far as it has been computed."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """In evaluation mode by the running statistics, as torch's."""
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        found = self._moments(input)
        if self.track_running_stats and torch._C._current_graph_task_id() == -1:
            # Within a backward pass it is a checkpointed layer that computes the same once more.
            self.noted = found if self.noted is None else pooled([self.noted, found])
            if not self.synchronisation.defers:
                self.update_running_statistics()
        output: torch.Tensor = _Normalise.apply(
            input, self.weight, self.bias, found, self.eps, self.synchronisation
        )
        return output

    @torch.no_grad()
    def update_running_statistics(self) -> None:
        """Take in what was noted since the last time."""
        noted, self.noted = self.noted, None
        if noted is None or self.running_mean is None or self.running_var is None:
            return
        factor = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if factor is None:
                factor = 1 / self.num_batches_tracked.item()
        assert factor is not None
        self.running_mean.lerp_(noted.mean.to(self.running_mean.dtype), factor)
        variance = noted.squares / (noted.num_values - 1).clamp(min=1)
        self.running_var.lerp_(variance.to(self.running_var.dtype), factor)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.ndim < 2 or input.shape[1] != self.num_features:
            raise ValueError(
                f"the input has shape {tuple(input.shape)}: expected (samples, {self.num_features}, ...)"
            )

    @torch.no_grad()
    def _moments(self, input: torch.Tensor) -> Moments:
        """Of the ranks' samples together, the same bits on every rank."""
        values = _widened(input)
        counts = self.synchronisation.counts
        count = values.new_full((), values.numel() // self.num_features * counts)
        mean = values.mean(_others(values))
        squares = (values - _as_channels(mean, values)).square().sum(_others(values))
        group = self.synchronisation.group
        if group is None:
            return Moments(count, mean, squares)
        own = torch.cat([count[None], mean, squares * counts])
        with lost_peers("in a normalisation"):
            everybodys = all_gather(own, group)
        sizes = [1, self.num_features, self.num_features]
        return pooled([Moments(part[0], *part.split(sizes)[1:]) for part in everybodys])


class _Normalise(torch.autograd.Function):
    """y = w (x - mean) / sqrt(var + eps) + b, in whose gradient mean and variance are functions of all samples.

    With n values of a channel on all ranks and x^ = (x - mean) / sqrt(var + eps) (Ioffe and Szegedy,
    arXiv:1502.03167, section 3),

        dL/dx = w / sqrt(var + eps) (dL/dy - sum dL/dy / n - x^ sum(dL/dy x^) / n),

    L being the sum of what the ranks compute backward from, and the sums over all ranks' samples.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        moments: Moments,
        eps: float,
        synchronisation: Synchronisation,
    ) -> torch.Tensor:
        scale = torch.rsqrt(moments.squares / moments.num_values + eps)
        ctx.save_for_backward(input, weight, moments.num_values, moments.mean, scale)
        ctx.group, ctx.counts = synchronisation.group, synchronisation.counts
        output = _normalised(input, moments.mean, scale)
        if weight is not None:
            output *= _as_channels(weight, output)
        if bias is not None:
            output += _as_channels(bias, output)
        return output.to(input.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight, count, mean, scale = ctx.saved_tensors
        outward = _widened(gradients[0])
        normalised = _normalised(input, mean, scale)
        bias_gradient = outward.sum(_others(outward))
        weight_gradient = (outward * normalised).sum(_others(outward))
        sums = torch.stack([bias_gradient, weight_gradient])
        if ctx.group is not None:
            with lost_peers("in a normalisation"):
                all_reduce(sums, ctx.group)
        through_mean, through_variance = (_as_channels(one, outward) for one in sums / count * ctx.counts)
        inward = outward - through_mean - normalised * through_variance
        inward *= _as_channels(scale if weight is None else scale * weight, inward)
        if weight is None:
            return inward.to(input.dtype), None, None, None, None, None
        own = (weight_gradient.to(weight.dtype), bias_gradient.to(weight.dtype))
        return inward.to(input.dtype), *own, None, None, None


def _widened(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _normalised(input: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    values = _widened(input)
    return (values - _as_channels(mean, values)) * _as_channels(scale, values)


def _others(values: torch.Tensor) -> list[int]:
    """All dimensions but that of the channels."""
    return [0, *range(2, values.ndim)]


def _as_channels(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Shape (C,) as (1, C, 1, ...)."""
    return values.view(1, -1, *[1] * (like.ndim - 2))


def normalise(model: nn.Module, choice: BatchNormChoice) -> Synchronisation:
    """Turn the model's BatchNorm layers into what a spec asks for, and have those that are synchronised share it.

    Raises `TaskError` for a layer that is derived from torch's and may do anything.
    """
    for name, layer in model.named_modules():
        if choice == "keep" or not isinstance(layer, _BatchNorm) or isinstance(layer, SynchronisedBatchNorm):
            continue
        if type(layer) not in _KNOWN:
            raise TaskError(
                f"parallel.batch_norm is {choice} and {name or 'the model'} is a {type(layer).__name__}: only "
                "torch's own BatchNorm layers can be replaced; use those, or leave out batch_norm"
            )
        _synchronise(layer) if choice == "synchronised" else _group(layer)
    synchronisation = Synchronisation()
    for layer in model.modules():
        if isinstance(layer, SynchronisedBatchNorm):
            synchronisation.add(layer)
    return synchronisation


def _synchronise(layer: _BatchNorm) -> None:
    changed: Any = layer
    changed.__class__ = SynchronisedBatchNorm
    changed.noted = None


def _group(layer: _BatchNorm) -> None:
    num_channels = layer.num_features
    least = _LEAST_CHANNELS_1D if isinstance(layer, nn.BatchNorm1d) else _LEAST_CHANNELS
    most = min(_MOST_GROUPS, max(num_channels // least, 1))
    fitting = [number for number in range(1, most + 1) if num_channels % number == 0]
    changed: Any = layer
    changed._buffers.clear()
    for name in ("num_features", "momentum", "track_running_stats", "process_group"):
        vars(changed).pop(name, None)
    changed.__class__ = nn.GroupNorm
    changed.num_groups, changed.num_channels = fitting[-1], num_channels


def warn_of_batch_norm(model: nn.Module) -> None:
    """For a model whose micro-batches are computed apart, as in a pipeline: BatchNorm then normalises by each."""
    names = [name or "the model" for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)]
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"{', '.join(names[:3])}{more} normalise by one micro-batch at a time, so results depend on its size: "
            "set parallel.batch_norm: group, or use GroupNorm or LayerNorm",
            TrainingWarning,
            stacklevel=2,
        )
