"""Restores a task as it was before its code was tried."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from oakum_worker.errors import TaskError
from oakum_worker.randomness import keyed
from oakum_worker.rehearsal.hidden_state import HiddenState
from oakum_worker.state.boundary import BoundarySnapshot
from oakum_worker.step.requirements import requirements
from oakum_worker.task import Task
from oakum_worker.torch_internals import tensor_version

LARGEST_COPY_BYTES = 256 << 20
"""Largest total size of trained weights that are copied. Changes of larger weights are told from their tensors'
version counters, and cannot be undone."""


class Watch:
    """Records a task's state before its code is tried, tells what the code has changed, and puts the state
    back."""

    def __init__(self, task: Task, hidden: HiddenState) -> None:
        """Record the state of `task` and its `hidden` state. Raises `TaskError` if the task's state has values of
        types that cannot be saved."""
        self._model = task.model
        self._hidden = hidden
        self._noted = hidden.take()
        self._boundary = BoundarySnapshot(task)
        try:
            self._boundary.take()
        except TypeError as error:
            raise TaskError(f"the task's state cannot be saved: {error}") from error
        optimized = {id(p) for group in task.optimizer.param_groups for p in group["params"]}
        self._trained = {n: p for n, p in task.model.named_parameters() if id(p) in optimized and not p.is_meta}
        self.copies_weights = sum(p.nbytes for p in self._trained.values()) <= LARGEST_COPY_BYTES
        """Whether the trained weights are copied, so that changed ones can be restored."""
        self._copies = {n: p.detach().clone() for n, p in self._trained.items()} if self.copies_weights else {}
        self._versions = {name: tensor_version(p) for name, p in self._trained.items()}
        self._gradients = {name: p.grad for name, p in task.model.named_parameters()}
        self._required = requirements(task.model)
        self._modes = {module: module.training for module in task.model.modules()}

    def changed_weights(self) -> list[str]:
        """Names of the trained parameters that have changed since the state was recorded."""
        if self._copies:
            return [n for n, p in self._trained.items() if not _equal(p.detach(), self._copies[n])]
        return [name for name, p in self._trained.items() if tensor_version(p) != self._versions[name]]

    def changed_requirements(self) -> list[str]:
        """Names of the parameters whose `requires_grad` has changed since the state was recorded."""
        return [n for n, required in requirements(self._model).items() if required != self._required[n]]

    @torch.no_grad()
    def restore_state(self) -> None:
        """Put back what belongs to the trainer's state: weights that were copied, gradients, `requires_grad`,
        training modes, buffers and the task's own state. The hidden state, which code keeps in variables outside
        the trainer's state, stays as it is."""
        for name, parameter in self._model.named_parameters():
            parameter.requires_grad_(self._required[name])
            parameter.grad = self._gradients[name]
        for name, copy in self._copies.items():
            if not _equal(self._trained[name].detach(), copy):
                self._trained[name].copy_(copy)
        for module, training in self._modes.items():
            module.training = training
        self._boundary.restore()
        self._boundary.take()  # a part may keep the tensors that it was given

    def restore(self) -> None:
        """Put back the trainer's state, as `restore_state` does, and the hidden state."""
        self.restore_state()
        self._hidden.restore(self._noted)


def hidden_state(task: Task) -> HiddenState:
    """The variables outside the trainer's state in which the model, the loss, `collate` and the hooks may keep
    something."""
    hooks = (task.on_epoch_start, task.on_step_start, task.on_step_end)
    return HiddenState.of_model(task.model, [task.loss, task.collate, *hooks])


@contextmanager
def attributes_kept(task: Task) -> Iterator[None]:
    """Context that restores, on exit, the hidden state of the model, the data set and the task's functions, and
    every parameter's `requires_grad`."""
    kept = [(hidden, hidden.take()) for hidden in (hidden_state(task), HiddenState.of_data_set(task.dataset))]
    required = requirements(task.model)
    try:
        yield
    finally:
        for name, parameter in task.model.named_parameters():
            parameter.requires_grad_(required[name])
        for hidden, taken in kept:
            hidden.restore(taken)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Context that restores the global random generators on exit. Within it no warnings are shown, and one-time
    warnings of random draws are not used up."""
    devices = [device for device in (torch.cuda, torch.xpu) if device.is_initialized()]
    states: list[Any] = [device.get_rng_state_all() for device in devices]
    host, plain = torch.default_generator.get_state(), random.getstate()
    numpy: Any = sys.modules.get("numpy")
    legacy = numpy.random.get_state() if numpy is not None else None
    with warnings.catch_warnings(), keyed.fresh_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.default_generator.set_state(host)
            random.setstate(plain)
            if numpy is not None:
                numpy.random.set_state(legacy)
            for device, state in zip(devices, states, strict=True):
                device.set_rng_state_all(state)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())
