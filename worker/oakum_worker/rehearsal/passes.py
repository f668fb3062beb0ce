"""Forward passes of a rehearsal: computed as in training, except for effects that would make comparisons useless.

Dropout is off, since an element of a padded sample gets another random number in a longer batch. Layers run in
evaluation mode if their results in training are known to depend on other samples or on the number of samples
computed at once (BatchNorm, dropout within recurrent layers). Models compute in the precision of their weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from oakum_worker.function_mode import call
from oakum_worker.randomness.batch_dims import BatchDims, Seen
from oakum_worker.rehearsal.samples import Recorded
from oakum_worker.spec import TrainerSpec
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.forward_pass import ForwardPass
from oakum_worker.task import Task
from oakum_worker.torch_internals import NormBase, tree_leaves

_DROPOUTS = (
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
)


class SteppedError(BaseException):
    """Raised where an optimizer was about to step within a forward pass. Not an `Exception`, since the task's code
    might catch that."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__()
        self.optimizer = optimizer


@dataclass(frozen=True)
class LossComputation:
    """The result of computing the loss of some samples."""

    loss: float
    """The loss as a mean."""
    weight: float
    """The loss's weight in the mean over parts: its samples, or the weight that the task returned with a total."""
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the batch's tensors, without the first dimension."""
    draws: bool
    """Whether the loss drew random numbers from torch's global generator."""
    draws_elsewhere: bool
    """Whether the loss drew random numbers from NumPy's or Python's global generator."""


class Passes:
    """Computes the loss of samples in forward passes that are reproducible, as the module says."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        self._task, self._spec = task, spec
        self._model_modes = _library_layers(task.model)

    def compute(self, samples: Sequence[Any], first: int = 0) -> LossComputation:
        """Compute the loss of `samples`, as if they were at the positions from `first` on of a global batch.
        Raises `SteppedError` where an optimizer steps meanwhile, and whatever the task's code raises. Returns
        the loss, with what was noticed on the way."""
        notes: dict[str, Any] = {}
        tried = dataclasses.replace(self._task, dataset=Recorded(samples), loss=self._watched(notes))
        forward = ForwardPass(tried, self._spec, contextlib.nullcontext)
        positions = range(first, first + len(samples))
        with (
            _training_without(self._model_modes),
            _no_steps(),
            torch.enable_grad(),
            forward.loss(Cursor(), positions, range(len(samples))) as loss,
        ):
            value, weight = loss.mean, len(samples) if loss.weight is None else loss.weight
        return LossComputation(value, float(weight), **notes)

    def draws(self, samples: Sequence[Any]) -> Seen:
        """What the loss of `samples` draws, computed as in training. Raises what `compute` raises."""
        dims = BatchDims()
        tried = dataclasses.replace(self._task, dataset=Recorded(samples))
        forward = ForwardPass(tried, self._spec, contextlib.nullcontext, dims=dims)
        whole = range(len(samples))
        with _no_steps(), torch.enable_grad(), dims.observed() as calls, forward.loss(Cursor(), whole, whole):
            return calls

    def _watched(self, notes: dict[str, Any]) -> Callable[[nn.Module, Any], Any]:
        """The task's loss, wrapped to note in `notes` the shapes of its batch and whether it draws."""
        task_loss = self._task.loss

        def loss(model: nn.Module, batch: Any) -> Any:
            leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
            notes["shapes"] = tuple(tuple(leaf.shape[1:]) for leaf in leaves)
            before, others = torch.default_generator.get_state(), states_elsewhere()
            with _WithoutDropout():
                value = task_loss(model, batch)
            notes["draws"] = not torch.equal(before, torch.default_generator.get_state())
            notes["draws_elsewhere"] = others != states_elsewhere()
            return value

        return loss


class _WithoutDropout(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            elif kwargs.get("dropout_p"):
                kwargs = {**kwargs, "dropout_p": 0.0}
        return call(self, func, args, kwargs)


def _library_layers(model: nn.Module) -> list[nn.Module]:
    """The model's torch layers that may compute differently in training: normalisation, recurrent and attention
    layers, and every layer of `torch.nn` without children."""
    kinds = (NormBase, nn.RNNBase, nn.MultiheadAttention)
    return [
        module
        for module in model.modules()
        if isinstance(module, kinds)
        or (type(module).__module__.startswith("torch.nn.modules") and not list(module.children()))
    ]


@contextmanager
def _training_without(layers: list[nn.Module]) -> Iterator[None]:
    modes = {layer: layer.training for layer in layers}
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer, training in modes.items():
            layer.training = training


@contextmanager
def _no_steps() -> Iterator[None]:
    """Context in which an optimizer that is about to step raises `SteppedError` instead."""

    def refuse(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        raise SteppedError(optimizer)

    handle = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()


def states_elsewhere() -> list[Any]:
    """The states of Python's global generator and of NumPy's, if NumPy is imported."""
    numpy: Any = sys.modules.get("numpy")
    states: list[Any] = [random.getstate()]
    if numpy is not None:
        _, keys, position, *_ = numpy.random.get_state()
        states.append((position, keys.tobytes()))
    return states
