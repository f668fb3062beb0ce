"""Has a copy of this process compute in single precision, whatever the script asks for: the rounding of half
precision is larger than what many a mean over tokens differs by."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from oakum_worker.function_mode import call
from oakum_worker.torch_internals import disable_autocast

_HALF = frozenset({torch.float16, torch.bfloat16})
_TO_HALF = frozenset({torch.Tensor.half, torch.Tensor.bfloat16})


def compute_in_single(model: nn.Module) -> None:
    """From now on, and until this process ends, compute in float32 where float16 or bfloat16 is asked for: by
    `torch.autocast`, by the weights of `model` and by casts. What the script has made in half precision before
    stays so, and may raise where it meets the others."""
    disable_autocast()
    for module in model.modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.dtype in _HALF:
                tensor.data = tensor.data.float()
    _InSingle().__enter__()


class _InSingle(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args = tuple(_single(one) for one in args)
        kwargs = {name: _single(one) for name, one in (kwargs or {}).items()}
        return call(self, torch.Tensor.float if func in _TO_HALF else func, args, kwargs)


def _single(argument: Any) -> Any:
    return torch.float32 if isinstance(argument, torch.dtype) and argument in _HALF else argument
