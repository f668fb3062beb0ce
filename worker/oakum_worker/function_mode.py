"""Helpers for torch function modes: call torch's functions from within a mode, compiled or not."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# What a compiler makes of `torch.utils.checkpoint.checkpoint`.
_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


def call(mode: TorchFunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `func` for the mode's `__torch_function__` as if the mode did not exist; returns what `func` returns.
    What an activation checkpoint computes again runs with the mode, as it did the first time."""
    if func is _CHECKPOINT:
        # It calls the function in its first argument. The mode is off in `__torch_function__`, so enter it again.
        return func(_within(mode, args[0]), *args[1:], **kwargs)
    if func is torch.Tensor.unflatten:
        # `Tensor.unflatten` calls `super` in Python, which a compiler cannot trace when a mode makes the call.
        return torch.unflatten(*args, **kwargs)
    return func(*args, **kwargs)


def opened(function: Any, **others: Any) -> FunctionType:
    """A copy of one of torch's Python functions that always runs its body, and does not ask the active mode
    first. Torch functions that the copy calls are still seen by the mode.

    The original would pass itself to the mode's `__torch_function__`, within which the mode is off, so the mode
    would not see the functions that it calls. `others` replace globals of the function.
    """
    names = {**function.__globals__, **others}
    names |= {name: _no for name in names if name.startswith("has_torch_function")}
    names.pop("__name__")  # A compiler would look the names up in the module, and find the originals.
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _no(*_: Any) -> bool:
    return False


def _within(mode: TorchFunctionMode, function: Callable[..., Any]) -> Callable[..., Any]:
    def call_within(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return function(*args, **kwargs)

    return call_within
