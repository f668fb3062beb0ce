"""What a step may change before it is taken, as it was at the last step boundary.

Weights and the optimizer's state change only when a step is taken. The task's code may change more before that:
buffers, parameters that nobody trains (a momentum encoder), its own state. When a peer is lost in between, the
step is repeated, and must not find that changed; a checkpoint in the middle of a step needs it as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from oakum_worker.buffers import BufferSnapshot
from oakum_worker.errors import TaskError
from oakum_worker.skeleton import Document, assemble, dismantle
from oakum_worker.task import Stateful, Task


class BoundarySnapshot:
    """Notes a task's buffers, untrained parameters and extra state at each boundary.

    What is noted is copied, but for a frozen backbone (`_UntrainedParameters`).
    """

    def __init__(self, task: Task) -> None:
        self._buffers = BufferSnapshot(task.model)
        self._parameters = _UntrainedParameters(task)
        self._parts = _PartsSnapshot(task.extra_state)

    @torch.no_grad()
    def take(self) -> None:
        """Note everything as it is now, at a step boundary."""
        self._buffers.take()
        self._parameters.take()
        self._parts.take()

    def learn(self) -> None:
        """The step's gradients are there and it is about to be taken: see what it has changed on the way."""
        self._parameters.learn()

    @torch.no_grad()
    def restore(self) -> None:
        """Bring back what was noted last."""
        self._buffers.restore()
        self._parameters.restore()
        self._parts.restore()

    def model(self) -> dict[str, torch.Tensor]:
        """Qualified names and copies of what may have changed since. Raises `TaskError` where there is no copy."""
        return self._buffers.copies | self._parameters.copies()

    def parts(self) -> dict[str, Any]:
        """The states of the task's own parts, by name."""
        return self._parts.states()


class _UntrainedParameters:
    """Those that the optimizer does not change.

    Copied at each boundary where they are no more than the trained ones: they may be changed in ways that leave no
    trace (`p.data.mul_`). More of them are a frozen backbone, whose copy would cost the memory and the time that
    freezing is there to save: of those a parameter is copied only from the step on in which its version or its
    memory was seen to change. That step alone, if it breaks off, keeps the change.
    """

    def __init__(self, task: Task) -> None:
        optimized = {id(p) for group in task.optimizer.param_groups for p in group["params"]}
        trained = [p for p in task.model.parameters() if p.requires_grad and id(p) in optimized]
        known = {id(p) for p in trained}
        # Those on the meta device are of layers that are on other ranks.
        others = [p for p in task.model.parameters() if id(p) not in known and not p.is_meta]
        self._names = {
            name: id(p)
            for name, p in task.model.named_parameters(remove_duplicate=False)
            if id(p) not in known and not p.is_meta
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
        self._version, self._memory = self.parameter._version, _local(self.parameter)

    @property
    def has_changed(self) -> bool:
        moved = _local(self.parameter).data_ptr() != self._memory.data_ptr()
        return moved or self.parameter._version != self._version


def _local(parameter: nn.Parameter) -> torch.Tensor:
    """This rank's rows, where the trainer is sharded."""
    tensor = parameter.detach()
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


class _PartsSnapshot:
    """The task's own state. What changes it is not known: all of it is copied at every boundary."""

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
