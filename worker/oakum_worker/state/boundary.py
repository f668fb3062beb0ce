"""Copies of the values that a step may change before it is taken, as they were at the last step boundary.

Weights and the optimizer's state change only when a step is taken. The task's code may change other values before
that: buffers, parameters that the optimizer does not train (a momentum encoder), the task's own state. If a peer
is lost in between, the step is repeated and has to begin with the old values; a checkpoint in the middle of a step
needs the old values, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from oakum_worker.errors import TaskError
from oakum_worker.state.buffers import BufferSnapshot
from oakum_worker.state.tree import Document, assemble, dismantle
from oakum_worker.task import Stateful, Task
from oakum_worker.torch_internals import tensor_version


class BoundarySnapshot:
    """Records, at each step boundary, a task's buffers, untrained parameters and extra state, so that they can be
    put back.

    All of it is copied, except the parameters of a frozen backbone (see `_UntrainedParameters`).
    """

    def __init__(self, task: Task) -> None:
        self._buffers = BufferSnapshot(task.model)
        self._parameters = _UntrainedParameters(task)
        self._parts = _PartsSnapshot(task.extra_state)

    @torch.no_grad()
    def take(self) -> None:
        """Record all values as they are at this step boundary."""
        self._buffers.take()
        self._parameters.take()
        self._parts.take()

    def learn(self) -> None:
        """Find out which parameters of a frozen backbone this step has changed; they are copied from then on. To
        be called when the step's gradients are complete."""
        self._parameters.learn()

    @torch.no_grad()
    def restore(self) -> None:
        """Put back the values that were recorded last."""
        self._buffers.restore()
        self._parameters.restore()
        self._parts.restore()

    def model(self) -> dict[str, torch.Tensor]:
        """Qualified name -> copy of each buffer and untrained parameter that may have changed since `take`. Raises
        `TaskError` for a changed parameter that has no copy."""
        return self._buffers.copies | self._parameters.copies()

    def parts(self) -> dict[str, Any]:
        """Name -> recorded `state_dict` of each part in the task's `extra_state`."""
        return self._parts.states()


class _UntrainedParameters:
    """Records the parameters that the optimizer does not change.

    They are copied at each boundary if they have no more elements than the trained parameters, since they may be
    changed in ways that leave no trace (`p.data.mul_`). Otherwise they are taken for a frozen backbone, whose copy
    would cost the memory and time that freezing saves. A parameter of a backbone is copied only from the step on
    in which its version or its memory was seen to change. If that step is aborted, the change stays.
    """

    def __init__(self, task: Task) -> None:
        optimized = {id(p) for group in task.optimizer.param_groups for p in group["params"]}
        trained = [p for p in task.model.parameters() if p.requires_grad and id(p) in optimized]
        trained_ids = {id(p) for p in trained}
        # Those on the meta device are of layers that are on other ranks.
        others = [p for p in task.model.parameters() if id(p) not in trained_ids and not p.is_meta]
        self._names = {
            name: id(p)
            for name, p in task.model.named_parameters(remove_duplicate=False)
            if id(p) not in trained_ids and not p.is_meta
        }
        copied = sum(p.numel() for p in others) <= sum(p.numel() for p in trained)
        self._copied = {id(p): _Copied(p) for p in others if copied}
        self._watched = {id(p): _Watched(p) for p in others if not copied}

    def take(self) -> None:
        for copied in self._copied.values():
            copied.take()
        for watched in self._watched.values():
            watched.take()

    def learn(self) -> None:
        changed = [key for key, watched in self._watched.items() if watched.has_changed]
        for key in changed:
            self._copied[key] = _Copied(self._watched.pop(key).parameter)

    def restore(self) -> None:
        for copied in self._copied.values():
            copied.restore()
        self.learn()

    def copies(self) -> dict[str, torch.Tensor]:
        for name, key in self._names.items():
            if key in self._watched and self._watched[key].has_changed:
                raise TaskError(f"{name}, which is not trained, changes in this step for the first time")
        return {name: self._copied[key].copy for name, key in self._names.items() if key in self._copied}


class _Copied:
    def __init__(self, parameter: nn.Parameter) -> None:
        self._parameter = parameter
        self.copy = _local(parameter).clone()

    def take(self) -> None:
        self.copy.copy_(_local(self._parameter))

    def restore(self) -> None:
        _local(self._parameter).copy_(self.copy)


class _Watched:
    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self.take()

    def take(self) -> None:
        # Held on to, so that no other tensor comes to lie at its address.
        self._version, self._memory = tensor_version(self.parameter), _local(self.parameter)

    @property
    def has_changed(self) -> bool:
        moved = _local(self.parameter).data_ptr() != self._memory.data_ptr()
        return moved or tensor_version(self.parameter) != self._version


def _local(parameter: nn.Parameter) -> torch.Tensor:
    """The parameter's tensor; in a sharded trainer, this rank's rows of it."""
    tensor = parameter.detach()
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


class _PartsSnapshot:
    """Records the task's own state. Any code may change it, so all of it is copied at every boundary."""

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        self._parts = parts
        self._noted: dict[str, tuple[Document, dict[str, torch.Tensor]]] = {}

    def take(self) -> None:
        for name, part in self._parts.items():
            document, tensors = dismantle(dict(part.state_dict()))
            before = self._noted[name][1] if name in self._noted else {}
            self._noted[name] = document, {path: _copied(t, before.get(path)) for path, t in tensors.items()}

    def restore(self) -> None:
        states = self.states()
        self._noted.clear()  # a part may keep the tensors it is given
        for name, state in states.items():
            self._parts[name].load_state_dict(state)

    def states(self) -> dict[str, Any]:
        return {name: assemble(document, tensors) for name, (document, tensors) in self._noted.items()}


def _copied(tensor: torch.Tensor, memory: torch.Tensor | None) -> torch.Tensor:
    """A copy, in `memory` if it fits there."""
    fits = memory is not None and (memory.shape, memory.dtype, memory.device) == (
        tensor.shape,
        tensor.dtype,
        tensor.device,
    )
    return memory.copy_(tensor) if memory is not None and fits else tensor.clone()
