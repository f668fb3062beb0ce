"""Calls that go on from a `TorchFunctionMode` as they would have without it, compiled or not."""

from __future__ import annotations

from collections.abc import Callable
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


def _within(mode: TorchFunctionMode, function: Callable[..., Any]) -> Callable[..., Any]:
    def call_within(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return function(*args, **kwargs)

    return call_within
