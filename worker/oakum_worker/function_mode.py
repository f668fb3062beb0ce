"""Calls that go on from a `TorchFunctionMode` as they would have without it, compiled or not."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# What a compiler makes of `torch.utils.checkpoint.checkpoint`.
_CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


def call(mode: TorchFunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a mode's `__torch_function__` returns for a function that it has no answer of its own for."""
    if func is _CHECKPOINT:
        # The one function that takes a function to call. The mode is off while it answers, and is due there again.
        return func(_within(mode, args[0]), *args[1:], **kwargs)
    if func is torch.Tensor.unflatten:
        # Its part in Python calls `super`, which a compiler cannot trace when the call comes through a mode.
        return torch.unflatten(*args, **kwargs)
    return func(*args, **kwargs)


def opened(function: Any, **others: Any) -> FunctionType:
    """A copy of a function of torch's that goes on where a mode is active, instead of handing itself to the mode.

    What it calls then goes through the mode. The mode is off while it answers, so the original would call
    everything without it.
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
