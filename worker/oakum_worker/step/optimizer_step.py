"""Turns a step's gradients into new weights: loss scaling, clipping, LARS, learning rates.

Where every rank has the same reduced gradients and computes the same update, no collective is needed. Only norms
need one, where tensors are sharded or ranks have different parameters.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_
from torch.optim.lr_scheduler import LRScheduler

from oakum_worker.errors import DivergedError, TaskError, TrainingWarning
from oakum_worker.parallel.offload import Offloaded
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.lars import TrustRatios
from oakum_worker.step.weight_average import WeightAverage
from oakum_worker.task import Task

_AUTOCAST_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_SMALLEST_LOSS_SCALE = 2.0**-16


@dataclass(frozen=True, slots=True, eq=False)
class UpdateOutcome:
    """The result of one update of the weights."""

    skipped: bool = False
    """Whether the weights stayed as they were because a gradient was infinite or NaN, as float16 gradients are now
    and then. Equal on all ranks."""
    grad_norm: torch.Tensor | None = None
    """The gradient's norm before clipping, shape (), on the device; None if the spec does not clip."""


class OptimizerStep:
    """Turns the global batch's gradient into new weights, as the spec asks for.

    The optimizer's learning rates are multiplied during its step only, so the task's scheduler always finds in
    `group["lr"]` the value that it set.

    In float16, gradients are computed from the loss times `loss_scale` and divided by `loss_scale` before anything
    else reads them. If a gradient is infinite or NaN, the step is *skipped*: weights and the optimizer's state
    stay as they were, and the loss scale is halved. The batch counts as consumed and the scheduler steps, so that
    a schedule ends with the data. Whether to skip follows from the reduced gradients, so all ranks decide alike.

    An offloaded optimizer skips such a step in any precision. Where ranks have different parameters, the norm of
    the whole gradient decides for all ranks.
    """

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        """Raises `TaskError` if the spec asks for LARS, an average of the weights or float16, and the task's
        optimizer or weights do not allow it."""
        self._optimizer = task.optimizer
        self._scheduler = task.scheduler
        self._device = next(task.model.parameters()).device
        self._autocast = _AUTOCAST_TYPES.get(spec.precision)
        self._clip_grad_norm = spec.clip_grad_norm
        self.grad_norm: Callable[[], torch.Tensor] | None = None
        """Collective that returns the norm of the whole gradient, shape (). None if this rank has all parameters,
        or torch's own functions find the norm."""
        self._has_warned = False
        self.average = WeightAverage(task.optimizer, spec.ema) if spec.ema is not None else None
        """Moving average of the weights; None unless the spec asks for one."""
        self._warm_up = spec.warm_up
        self._trust_ratios = TrustRatios(task.optimizer, spec.lars) if spec.lars is not None else None
        self._scaler: GradScaler | None = None
        self._loss_scale = 1.0
        if spec.precision == "float16":
            self._scale_losses()

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        """A new context in which the forward pass and the loss are computed in the spec's precision."""
        if self._autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, self._autocast)

    @property
    def loss_scale(self) -> float:
        """The factor by which the next step's gradients have to be multiplied; passed to the engine's
        `backward`."""
        return self._loss_scale

    @property
    def scales_losses(self) -> bool:
        """Whether a loss scale is in use, as it is with float16. Only then infinite or NaN gradients are no
        sign of divergence."""
        return self._scaler is not None

    def update(self, epochs_done: float, gain: float = 1.0, *, schedule_steps: int = 1) -> UpdateOutcome:
        """Take the optimizer's step, then the scheduler's.

        `epochs_done`: epochs, with fractions, finished before the step. The optimizer's learning rates are
        multiplied by `gain`. The scheduler takes `schedule_steps` steps. Raises `DivergedError` if float16
        gradients are still infinite or NaN when the loss scale has fallen below 2**-16.
        """
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        norm = self._clip()
        average = contextlib.nullcontext() if self.average is None else self.average.set_aside()
        with average, self._rates_multiplied(self._warm_up_factor(epochs_done) * gain), self._trust():
            skipped = self._step(norm)
        if self.average is not None and not skipped:
            self.average.update()
        if self._scheduler is not None:
            for _ in range(schedule_steps):
                _step_schedule(self._scheduler, skipped)
        return UpdateOutcome(skipped, norm)

    def state_dict(self) -> dict[str, Any]:
        """The loss scale and its history, as plain numbers; empty if the precision is not float16."""
        return {} if self._scaler is None else {"scaler": self._scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`. Raises `KeyError` if this precision needs a loss scale and the state
        has none."""
        if self._scaler is not None:
            self._scaler.load_state_dict(state["scaler"])
            self._loss_scale = self._scaler.get_scale()

    @property
    def _parameters(self) -> list[torch.nn.Parameter]:
        """The optimizer's present parameters; a sharded trainer has different ones in each generation."""
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def _scale_losses(self) -> None:
        half = next((p for p in self._parameters if p.dtype == torch.float16), None)
        if half is not None:
            raise TaskError(
                f"precision is float16 and the model has float16 parameters (one of shape {tuple(half.shape)}): "
                "keep the weights in float32, products are then computed in float16; or use bfloat16"
            )
        self._scaler = GradScaler(self._device.type)
        # GradScaler creates its scale when it first scales a tensor, and a rank without samples scales none.
        self._scaler.scale(torch.ones((), device=self._device))
        self._loss_scale = self._scaler.get_scale()

    def _clip(self) -> torch.Tensor | None:
        if self._clip_grad_norm is None:
            return None
        if self.grad_norm is not None:
            whole = self.grad_norm()
            clip_grads_with_norm_(self._parameters, self._clip_grad_norm, whole)
            return whole
        norm: Any = clip_grad_norm_(self._parameters, self._clip_grad_norm)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def _warm_up_factor(self, epochs_done: float) -> float:
        if self._warm_up is None or epochs_done >= self._warm_up.epochs:
            return 1.0
        start = self._warm_up.start
        return start + (1 - start) * epochs_done / self._warm_up.epochs

    @contextlib.contextmanager
    def _rates_multiplied(self, factor: float) -> Iterator[None]:
        if factor == 1:
            yield
            return
        groups = self._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * factor
        try:
            yield
        finally:
            # Put the same objects back: other code may hold a reference to a learning rate that is a tensor.
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def _trust(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._trust_ratios is None else self._trust_ratios.applied()

    def _step(self, norm: torch.Tensor | None) -> bool:
        """Take the optimizer's step; returns True if the step was skipped. `norm`: the gradient's norm, if
        known."""
        if self._scaler is not None:
            return self._step_scaled(self._scaler)
        if isinstance(self._optimizer, Offloaded):
            return self._step_offloaded(self._optimizer, norm)
        self._optimizer.step()
        return False

    def _step_offloaded(self, optimizer: Offloaded, norm: torch.Tensor | None) -> bool:
        optimizer.overflowed = False
        if self.grad_norm is not None:
            # This rank's own gradients must not decide, or only some ranks would skip the step.
            optimizer.checks_overflow = False
            whole = self.grad_norm() if norm is None else norm
            optimizer.overflowed = not whole.isfinite()
        if not optimizer.overflowed:
            optimizer.step()
        if optimizer.overflowed and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "a gradient was infinite or NaN, so the step was skipped on all ranks; further skipped steps are "
                "not reported: if the loss is not finite, lower the learning rate or clip gradients; if "
                "parameters are in float16, lower the loss's scale or use bfloat16",
                TrainingWarning,
                stacklevel=2,
            )
        return optimizer.overflowed

    def _step_scaled(self, scaler: GradScaler) -> bool:
        before = self._loss_scale
        scaler.step(self._optimizer)
        scaler.update()
        self._loss_scale = scaler.get_scale()
        if self._loss_scale < _SMALLEST_LOSS_SCALE:
            raise DivergedError(
                f"gradients in float16 are infinite or NaN even with a loss scale of {self._loss_scale:g}: "
                "the loss itself seems not to be finite; lower the learning rate, clip gradients, or use bfloat16"
            )
        return self._loss_scale < before


def _step_schedule(scheduler: LRScheduler, skipped: bool) -> None:
    if not skipped:
        scheduler.step()
        return
    with warnings.catch_warnings():
        # torch warns of a scheduler that steps before the optimizer has taken its first step.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        scheduler.step()
