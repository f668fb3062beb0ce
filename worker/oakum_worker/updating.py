"""What happens between a step's gradients and its new weights: loss scaling, clipping, LARS, learning rates.

Every rank has the same reduced gradients and does the same with them, so all of this needs no collective, save for
norms of tensors that are sharded.
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

from oakum_worker.errors import TaskError, TrainingWarning
from oakum_worker.lars import TrustRatios
from oakum_worker.parallel.offload import Offloaded
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task

_AUTOCAST_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_SMALLEST_LOSS_SCALE = 2.0**-16


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What came of a step's gradients."""

    skipped: bool = False
    """Whether they were not finite, as float16 gradients are now and then, and the weights stayed as they were.
    The same on all ranks."""
    grad_norm: torch.Tensor | None = None
    """The norm before clipping, shape (), on the device; None where nothing is clipped."""


class Updater:
    """Turns the global batch's gradient into new weights, as the spec asks for.

    The optimizer's learning rates are multiplied for the time of its step alone, so the task's scheduler finds in
    `group["lr"]` what it left there.

    float16: gradients are computed of the loss times `loss_scale`, and divided by it before anything else sees
    them. Where one is infinite or NaN, the step is *skipped*: weights and the optimizer's state stay as they
    were, and the scale is halved. The batch is consumed all the same and the scheduler steps, since both count
    batches; a schedule so ends with the data. Whether to skip follows from the reduced gradients, so all ranks
    decide alike.

    An offloaded optimizer skips such a step in any precision. Where ranks have different parameters, it is the
    norm of the whole gradient that decides for all of them.
    """

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        """Raises `TaskError` where the task's optimizer or weights do not go with what the spec asks for."""
        self._optimizer = task.optimizer
        _check_offloading(task, spec)
        self._scheduler = task.scheduler
        self._device = next(task.model.parameters()).device
        self._autocast = _AUTOCAST_TYPES.get(spec.precision)
        self._clip_grad_norm = spec.clip_grad_norm
        self.grad_norm: Callable[[], torch.Tensor] | None = None
        """Finds the norm of the whole gradient, where this rank's parameters are not all; a collective."""
        self._has_warned = False
        self._warm_up = spec.warm_up
        self._trust_ratios = TrustRatios(task.optimizer, spec.lars) if spec.lars is not None else None
        self._scaler: GradScaler | None = None
        self._loss_scale = 1.0
        if spec.precision == "float16":
            self._scale_losses()

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        """Within it forward and loss are computed in the spec's precision. For one use."""
        if self._autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, self._autocast)

    @property
    def loss_scale(self) -> float:
        """What the next step's gradients have to be multiplied with, for `GradientReducer.backward`."""
        return self._loss_scale

    def update(self, epochs_done: float, gain: float = 1.0, *, schedule_steps: int = 1) -> Update:
        """Take the optimizer's step, then the scheduler's.

        `epochs_done` are those before the step; the learning rate is multiplied with `gain`. Raises `TaskError`
        where float16 gradients stay infinite or NaN whatever the loss scale.
        """
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        norm = self._clip()
        with self._rates_multiplied(self._warm_up_factor(epochs_done) * gain), self._trust():
            skipped = self._step(norm)
        if self._scheduler is not None:
            for _ in range(schedule_steps):
                _step_schedule(self._scheduler, skipped)
        return Update(skipped, norm)

    def state_dict(self) -> dict[str, Any]:
        """The loss scale and its history, as plain numbers; empty without one."""
        return {} if self._scaler is None else {"scaler": self._scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state. Raises `KeyError` where it is another precision's."""
        if self._scaler is not None:
            self._scaler.load_state_dict(state["scaler"])
            self._loss_scale = self._scaler.get_scale()

    @property
    def _parameters(self) -> list[torch.nn.Parameter]:
        """The optimizer's; a sharded trainer has others in each generation."""
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def _scale_losses(self) -> None:
        half = next((p for p in self._parameters if p.dtype == torch.float16), None)
        if half is not None:
            raise TaskError(
                f"precision is float16 and the model has float16 parameters (one of shape {tuple(half.shape)}): "
                "keep the weights in float32, products are then computed in float16; or use bfloat16"
            )
        self._scaler = GradScaler(self._device.type)
        # It makes its scale when it first scales something, which a rank without samples never does.
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
            # The objects themselves: a rate that is a tensor may be known to others.
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def _trust(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._trust_ratios is None else self._trust_ratios.applied()

    def _step(self, norm: torch.Tensor | None) -> bool:
        """Take the optimizer's step; True where it was skipped. `norm` is the gradient's, where it is known."""
        if self._scaler is not None:
            return self._step_scaled(self._scaler)
        if isinstance(self._optimizer, Offloaded):
            return self._step_offloaded(self._optimizer, norm)
        self._optimizer.step()
        return False

    def _step_offloaded(self, optimizer: Offloaded, norm: torch.Tensor | None) -> bool:
        optimizer.overflowed = False
        if self.grad_norm is not None:
            # What this rank alone finds must not decide, or ranks would be at different steps.
            optimizer.checks_overflow = False
            whole = self.grad_norm() if norm is None else norm
            optimizer.overflowed = not whole.isfinite()
        if not optimizer.overflowed:
            optimizer.step()
        if optimizer.overflowed and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "a gradient was infinite or NaN, so a step was skipped on all ranks, and so will others be, of "
                "which nothing is said: if the loss is not finite, lower the learning rate or clip gradients; if "
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
            raise TaskError(
                f"gradients in float16 are infinite or NaN even with a loss scale of {self._loss_scale:g}: "
                "the loss itself seems not to be finite; lower the learning rate, clip gradients, or use bfloat16"
            )
        return self._loss_scale < before


def _check_offloading(task: Task, spec: TrainerSpec) -> None:
    if isinstance(task.optimizer, Offloaded) and spec.parallel.data == "sharded":
        name = type(task.optimizer).__name__
        raise TaskError(
            f"parallel.data is sharded and the task's optimizer is {name}, which takes whole parameters: use "
            f"torch.optim.{name.removeprefix('Offloaded')}, of whose state each rank then has its share, or leave "
            "out parallel.data"
        )


def _step_schedule(scheduler: LRScheduler, skipped: bool) -> None:
    if not skipped:
        scheduler.step()
        return
    with warnings.catch_warnings():
        # torch warns of a scheduler that steps before the optimizer has ever done so.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        scheduler.step()
