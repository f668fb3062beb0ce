"""Has a copy of this process compute in double precision, whatever the script asks for: rounding in half, and even
in single precision, is larger than what many a mean over tokens or a small term of a loss differs by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from oakum_worker.function_mode import call
from oakum_worker.torch_internals import disable_autocast, tree_map

_SHORTER = frozenset({torch.float32, torch.float16, torch.bfloat16})
_TO_SHORTER = frozenset({torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16})
_LARGEST_MODEL_BYTES = 1 << 30


def can_be_in_double(model: nn.Module) -> bool:
    """Whether the model computes in shorter types than double, and is small enough for a copy that does."""
    tensors = [*model.parameters(), *model.buffers()]
    return any(one.dtype in _SHORTER for one in tensors) and sum(t.nbytes for t in tensors) <= _LARGEST_MODEL_BYTES


def compute_in_double(model: nn.Module) -> None:
    """From now on, and until this process ends, compute in float64 where a shorter type is asked for: by default,
    by `torch.autocast`, by the weights of `model` and by casts. What the script has made before in a shorter type
    stays so, and may raise where it meets the others."""
    disable_autocast()
    torch.set_default_dtype(torch.float64)
    for module in model.modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.dtype in _SHORTER:
                tensor.data = tensor.data.double()
    _InDouble().__enter__()


def in_double(batch: Any) -> Any:
    """A batch with its tensors in float64 where they are of a shorter type."""
    if isinstance(batch, Mapping) and not isinstance(batch, dict):
        return type(batch)({name: in_double(one) for name, one in batch.items()})  # type: ignore[call-arg]
    return tree_map(_doubled, batch)


def _doubled(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in _SHORTER else value


class _InDouble(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args = tuple(_lengthened(one) for one in args)
        kwargs = {name: _lengthened(one) for name, one in (kwargs or {}).items()}
        return call(self, torch.Tensor.double if func in _TO_SHORTER else func, args, kwargs)


def _lengthened(argument: Any) -> Any:
    return torch.float64 if isinstance(argument, torch.dtype) and argument in _SHORTER else argument
