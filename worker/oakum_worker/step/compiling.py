"""torch.compile for a model whose share of a batch changes size whenever its trainer gains or loses nodes.

Compiling takes from seconds to minutes, and all ranks would wait whenever one rank compiled within a step. So the
model is compiled once, before the first step, for all batch sizes: the first dimension of the inputs is symbolic.
Nothing is compiled after that. A call that the compiled code does not cover (a batch of a single sample, a model
in eval mode) runs eagerly.

Only `forward` of the task's model is replaced, on the object itself: the names in the model's state, its type, its
other methods and the hooks on its parameters stay as they are. The compiled backward pass completes all gradients
at its end, so gradients are sent at the end and not while the pass runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from oakum_worker.losses import loss_of
from oakum_worker.state.boundary import BoundarySnapshot
from oakum_worker.task import Task
from oakum_worker.torch_internals import mark_first_dimension_dynamic


def compile_forward(
    task: Task, num_samples: int, context: Callable[[int], AbstractContextManager[Any]]
) -> str | None:
    """Compile the model's forward and backward for batches of two samples and more.

    Runs both passes on batches of `num_samples` and of one sample less, within `context(size)`, which has to be
    the context in which later steps run. Blocks until compiling is done and leaves the task's state as it was.
    Returns None, or the reason why compiling failed (for example no C++ compiler); the model is then unchanged.
    """
    model = task.model
    own = vars(model).get("forward")
    compiled = _CompiledForward(model)
    noted = BoundarySnapshot(task)
    noted.take()
    model.forward = compiled
    try:
        for size in (max(num_samples, 3), max(num_samples, 3) - 1):
            batch = task.read([0] * size)
            with context(size):
                loss = loss_of(task.loss(model, batch)).value
            loss.backward()
    except Exception as error:
        del model.forward
        if own is not None:
            model.forward = own
        cause = getattr(error, "inner_exception", error)  # The compiler's own error, if dynamo has wrapped it.
        return f"the model runs uncompiled: {type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}"
    finally:
        noted.restore()
        for parameter in model.parameters():
            parameter.grad = None
    compiled.freeze()
    return None


class _CompiledForward:
    """Takes the place of a model's `forward`: compiled for inputs of any length and, once frozen, never compiled
    again."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._eager = model.forward
        self._compiled = torch.compile(model.forward)
        self._frozen = False

    def freeze(self) -> None:
        self._frozen = True

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy of the model, or one read from a file, has its own class's forward, which uses its own weights.
        return getattr, (self._model, "forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # The task itself compiles code that calls the model.
            return self._eager(*args, **kwargs)
        for tensor in _tensors((args, kwargs)):
            mark_first_dimension_dynamic(tensor)
        if not self._frozen:
            return self._compiled(*args, **kwargs)
        with torch.compiler.set_stance("eager_on_recompile"):
            return self._compiled(*args, **kwargs)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors with at least one dimension in nested containers."""
    if isinstance(value, torch.Tensor):
        if value.ndim:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
