"""torch.compile for a model whose share of a batch changes size whenever its trainer gains or loses nodes.

Compiling takes from seconds to minutes, for which all ranks would wait whenever one compiles within a step. So it
is done once, before the first step, for every size at a time: the first dimension of the inputs is symbolic.
After that nothing is compiled any more: what does not fit, a batch of a single sample or a model in eval mode,
runs eagerly.

Only `forward` of the task's model is exchanged, on the object itself: names in its state, its type, its other
methods and hooks on its parameters stay what they are. The compiled backward completes all gradients at its end,
so they are sent then and not while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from oakum_worker.boundary import BoundarySnapshot
from oakum_worker.task import Task


def compile_forward(
    task: Task, num_samples: int, context: Callable[[int], AbstractContextManager[Any]]
) -> str | None:
    """Compile the model's forward and backward for batches of two samples and more.

    Tries them on batches of `num_samples` and one less, within `context(size)`, which has to be that of the steps
    to come; takes as long as compiling takes, and leaves the task's state as it was. Returns None, or why it could
    not be done (no C++ compiler, say): the model then stays as it was.
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
                loss = task.loss(model, batch)
            loss.backward()
    except Exception as error:
        del model.forward
        if own is not None:
            model.forward = own
        cause = getattr(error, "inner_exception", error)  # What the compiler said, where dynamo wraps it.
        return f"the model runs uncompiled: {type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}"
    finally:
        noted.restore()
        for parameter in model.parameters():
            parameter.grad = None
    compiled.freeze()
    return None


class _CompiledForward:
    """A model's forward, compiled for inputs of any length; once frozen, never compiled again."""

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
        if torch.compiler.is_compiling():  # Part of something larger that the task compiles.
            return self._eager(*args, **kwargs)
        for tensor in _tensors((args, kwargs)):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
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
