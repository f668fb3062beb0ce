"""Normalisation layers whose results do not depend on how a batch is spread over ranks.

BatchNorm normalises by the samples that one rank computes at once, so a model's training depends on the number of
ranks and on the micro-batch. A spec can ask for one of two replacements:

- *synchronised*: the ranks share the statistics of the micro-batch that they compute together. Output and gradient
  are then those of one process with all of it, whatever the ranks' shares. Running statistics are those of the
  whole step's batch, updated once when the step is taken. Several micro-batches are still normalised apart.
- *group*: GroupNorm (Wu and He, arXiv:1803.08494), in which each sample is normalised by itself. It depends
  neither on ranks nor on micro-batches, and needs no communication. Also what goes with pipelines ("Towards
  accelerating model parallelism in distributed deep learning systems", PLOS ONE 2023).

Modules change their class in place: the task, its optimizer and a chain of layers keep their references to the
same objects and parameters. torch's own SyncBatchNorm would not do: it accepts no tensors on the CPU, keeps the
group with which it was built, and updates running statistics once for each micro-batch.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from oakum_worker.errors import TaskError, TrainingWarning
from oakum_worker.listing import some_of
from oakum_worker.parallel.lost_peers import LostInPasses, collective_of_passes
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.waiting import all_gather, all_reduce
from oakum_worker.spec_options import BatchNormChoice
from oakum_worker.torch_internals import BatchNorm, backward_pass_id, drop_buffers

_KNOWN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_WHEN = "in a normalisation"
_MOST_GROUPS = 32
"""Number of groups that Wu and He use."""
_LEAST_CHANNELS = 2
_LEAST_CHANNELS_1D = 16
"""Least channels of a group if a sample has one value per channel: two such channels would always become -1 and
1."""


class Moments(NamedTuple):
    """Count, mean and sum of squares of the values of each of C channels."""

    num_values: torch.Tensor
    """Number of values of one channel, shape ()."""
    mean: torch.Tensor
    """Mean of each channel, shape (C,)."""
    squares: torch.Tensor
    """Sum of squared differences from the mean for each channel, shape (C,)."""


def pool(parts: list[Moments]) -> Moments:
    """The moments of the values of all parts together (Chan, Golub and LeVeque 1979); parts may be empty."""
    counts = torch.stack([part.num_values for part in parts])
    means = torch.stack([part.mean for part in parts])
    total = counts.sum()
    mean = (counts[:, None] * means).sum(0) / total
    between = (counts[:, None] * (means - mean).square()).sum(0)
    return Moments(total, mean, torch.stack([part.squares for part in parts]).sum(0) + between)


class Synchronisation:
    """State shared by the synchronised layers of a model: their process group, and when running statistics change.

    Within a step, from `begin` to `commit`, running statistics change only at its end. Outside a step they change
    with each forward pass, as torch's do.
    """

    def __init__(self) -> None:
        self.group: dist.ProcessGroup | None = None
        """Group over which statistics are shared; None for a single rank. All its ranks must compute equally many
        passes."""
        self.counts = True
        """Whether this rank's next samples count in the statistics; false for fillers that keep the ranks in
        step."""
        self.defers = False
        """Whether running statistics wait for the end of the step."""
        self.lost: LostInPasses | None = None
        """Notes a lost rank where the passes cannot be ended early; otherwise they raise `GroupError`."""
        self._layers: list[SynchronisedBatchNorm] = []

    def add(self, layer: SynchronisedBatchNorm) -> None:
        """Make a layer use this shared state."""
        layer.synchronisation = self
        self._layers.append(layer)

    @property
    def is_used(self) -> bool:
        """Whether any layer uses it; all ranks then have to compute equally many micro-batches."""
        return bool(self._layers)

    def join(self, group: dist.ProcessGroup | None, subgroups: Subgroups | None) -> None:
        """Share statistics over `group` from now on; None for a single rank.

        With `subgroups` (on CPUs), a separate group with the same ranks is formed, so that statistics do not wait
        behind gradients; the call is then collective. Raises `GroupError` when a rank is gone.
        """
        self.defers = False
        self.group = group
        tensors = [tensor for layer in self._layers for tensor in layer.state_dict().values()]
        on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
        if group is not None and subgroups is not None and self.is_used and on_cpu:
            self.group = subgroups.form("normalisation", range(group.size()))

    def begin(self) -> None:
        """Begin a step: from now on running statistics wait for `commit`. Statistics noted in an earlier step that
        was never committed are discarded."""
        self.defers, self.counts = True, True
        for layer in self._layers:
            layer.noted = None

    def commit(self) -> None:
        """End a step: update the running statistics once, with the statistics of its whole batch."""
        self.defers = False
        for layer in self._layers:
            layer.update_running_statistics()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copied model is used by one rank alone, and process groups cannot be copied.
        return Synchronisation, ()


class SynchronisedBatchNorm(BatchNorm):
    """BatchNorm with the statistics of all ranks' samples, for inputs of shape (N, C) or (N, C, ...) on any
    device.

    In training mode each forward and each backward pass is a collective, which raises `GroupError` when a rank is
    lost.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.synchronisation = Synchronisation()
        self.noted: Moments | None = None
        """Moments of the samples of the present step that have been computed so far."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise `input`: in training mode by the ranks' statistics, in evaluation mode by the running ones."""
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        moments = self._moments(input)
        if self.track_running_stats and backward_pass_id() == -1:
            # During backward, a checkpointed layer computes its forward pass a second time: it must not count
            # twice.
            self.noted = moments if self.noted is None else pool([self.noted, moments])
            if not self.synchronisation.defers:
                self.update_running_statistics()
        output: torch.Tensor = _Normalise.apply(
            input, self.weight, self.bias, moments, self.eps, self.synchronisation
        )
        return output

    @torch.no_grad()
    def update_running_statistics(self) -> None:
        """Update the running statistics with `noted`, and clear it."""
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
        """Moments of all ranks' samples together, bit for bit the same on every rank."""
        values = _widen(input)
        counts = self.synchronisation.counts
        count = values.new_full((), values.numel() // self.num_features * counts)
        mean = values.mean(_others(values))
        squares = (values - _as_channels(mean, values)).square().sum(_others(values))
        group = self.synchronisation.group
        if group is None:
            return Moments(count, mean, squares)
        own = torch.cat([count[None], mean, squares * counts])
        everybodys: list[torch.Tensor] = []
        with collective_of_passes(_WHEN, self.synchronisation.lost) as is_whole:
            if is_whole:
                everybodys = all_gather(own, group)
        if not everybodys:
            return Moments(values.new_full((), values.numel() // self.num_features), mean, squares)
        sizes = [1, self.num_features, self.num_features]
        return pool([Moments(part[0], *part.split(sizes)[1:]) for part in everybodys])


class _Normalise(torch.autograd.Function):
    """y = w (x - mean) / sqrt(var + eps) + b, with the gradient through mean and var to the samples of all ranks.

    With n values of a channel on all ranks and x^ = (x - mean) / sqrt(var + eps) (Ioffe and Szegedy,
    arXiv:1502.03167, section 3),

        dL/dx = w / sqrt(var + eps) (dL/dy - sum dL/dy / n - x^ sum(dL/dy x^) / n),

    where L is the sum of the ranks' losses, and the sums run over the samples of all ranks.
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
        ctx.group, ctx.counts, ctx.lost = synchronisation.group, synchronisation.counts, synchronisation.lost
        output = _standardise(input, moments.mean, scale)
        if weight is not None:
            output *= _as_channels(weight, output)
        if bias is not None:
            output += _as_channels(bias, output)
        return output.to(input.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight, count, mean, scale = ctx.saved_tensors
        outward = _widen(gradients[0])
        normalised = _standardise(input, mean, scale)
        bias_gradient = outward.sum(_others(outward))
        weight_gradient = (outward * normalised).sum(_others(outward))
        sums = torch.stack([bias_gradient, weight_gradient])
        if ctx.group is not None:
            with collective_of_passes(_WHEN, ctx.lost) as is_whole:
                if is_whole:
                    all_reduce(sums, ctx.group)
        through_mean, through_variance = (_as_channels(one, outward) for one in sums / count * ctx.counts)
        inward = outward - through_mean - normalised * through_variance
        inward *= _as_channels(scale if weight is None else scale * weight, inward)
        if weight is None:
            return inward.to(input.dtype), None, None, None, None, None
        own = (weight_gradient.to(weight.dtype), bias_gradient.to(weight.dtype))
        return inward.to(input.dtype), *own, None, None, None


def _widen(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _standardise(input: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    values = _widen(input)
    return (values - _as_channels(mean, values)) * _as_channels(scale, values)


def _others(values: torch.Tensor) -> list[int]:
    """All dimensions except that of the channels."""
    return [0, *range(2, values.ndim)]


def _as_channels(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """View `values` of shape (C,) as (1, C, 1, ...), with as many dimensions as `like`."""
    return values.view(1, -1, *[1] * (like.ndim - 2))


def normalise(model: nn.Module, choice: BatchNormChoice) -> Synchronisation:
    """Replace the model's BatchNorm layers by what the spec asks for; return the shared state of synchronised
    ones.

    Raises `TaskError` for a class derived from torch's BatchNorm, whose behaviour is unknown.
    """
    for name, layer in model.named_modules():
        if choice == "keep" or not isinstance(layer, BatchNorm) or isinstance(layer, SynchronisedBatchNorm):
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


def _synchronise(layer: BatchNorm) -> None:
    changed: Any = layer
    changed.__class__ = SynchronisedBatchNorm
    changed.noted = None


def _group(layer: BatchNorm) -> None:
    num_channels = layer.num_features
    least = _LEAST_CHANNELS_1D if isinstance(layer, nn.BatchNorm1d) else _LEAST_CHANNELS
    most = min(_MOST_GROUPS, max(num_channels // least, 1))
    fitting = [number for number in range(1, most + 1) if num_channels % number == 0]
    changed: Any = layer
    drop_buffers(layer)
    for name in ("num_features", "momentum", "track_running_stats", "process_group"):
        vars(changed).pop(name, None)
    changed.__class__ = nn.GroupNorm
    changed.num_groups, changed.num_channels = fitting[-1], num_channels


def warn_of_batch_norm(model: nn.Module) -> None:
    """Warn that BatchNorm normalises by single micro-batches, for a model that computes them apart, as pipelines
    do."""
    names = [name or "the model" for name, layer in model.named_modules() if isinstance(layer, BatchNorm)]
    if names:
        warnings.warn(
            f"{some_of(names)} normalise by one micro-batch at a time, so results depend on its size: "
            "set parallel.batch_norm: group, or use GroupNorm or LayerNorm",
            TrainingWarning,
            stacklevel=2,
        )
