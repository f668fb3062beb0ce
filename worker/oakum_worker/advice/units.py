"""Finds the layers of a model whose algorithm can be chosen, and records the arguments that they are called
with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from oakum_worker.torch_internals import tree_leaves

_WHOLE = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.LSTM, nn.GRU, nn.RNN)
_PRODUCTS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call of a layer, detached from the autograd graph that made them."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of all tensors among the arguments."""
        return tuple(
            tuple(leaf.shape) for leaf in tree_leaves([*self.arguments, self.keywords]) if _is_tensor(leaf)
        )


@dataclass(slots=True)
class Unit:
    """A layer whose algorithm is chosen as a whole, or all layers that are alike in class, options and argument
    shapes."""

    names: list[str]
    """Names of the modules in the model, the first one called first."""
    module: nn.Module
    """The module of the first name."""
    call: Call

    @property
    def kind(self) -> str:
        """The module's class."""
        return type(self.module).__name__


def units_of(model: nn.Module, run: Callable[[], Any]) -> list[Unit]:
    """The model's units, in the order in which `run` first calls them.

    A unit is a convolution, a linear, recurrent, attention or transformer layer of torch, a block of several
    layers that stands in a `ModuleList`, or a module whose own code calls scaled dot-product attention. Modules
    whose class, options and argument shapes are equal are one unit. What `run` raises is raised.
    """
    attending = _attending(model, run)
    modules = dict(_units_of(model, attending))
    calls: dict[str, Call] = {}
    handles = [
        module.register_forward_pre_hook(_noting(name, calls), with_kwargs=True)
        for name, module in modules.items()
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    alike: dict[tuple[str, str, tuple[tuple[int, ...], ...]], Unit] = {}
    for name, call in calls.items():
        module = modules[name]
        key = (type(module).__qualname__, repr(module), call.shapes())
        if key in alike:
            alike[key].names.append(name)
        else:
            alike[key] = Unit([name], module, call)
    return list(alike.values())


def _units_of(model: nn.Module, attending: set[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    if model in attending or isinstance(model, (*_WHOLE, *_PRODUCTS)):
        yield "", model
    else:
        yield from _within(model, "", attending)


def _within(model: nn.Module, name: str, attending: set[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    blocks = isinstance(model, nn.ModuleList)
    for child_name, child in model.named_children():
        full = f"{name}.{child_name}" if name else child_name
        is_block = blocks and any(True for _ in child.children())
        if isinstance(child, (*_WHOLE, *_PRODUCTS)) or is_block or child in attending:
            yield full, child
        else:
            yield from _within(child, full, attending)


def _attending(model: nn.Module, run: Callable[[], Any]) -> set[nn.Module]:
    """The modules whose own code calls scaled dot-product attention."""
    running: list[nn.Module] = []
    attending: set[nn.Module] = set()

    def begin(module: nn.Module, _: object) -> None:
        running.append(module)

    def end(*_: object) -> None:
        running.pop()

    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(begin))
            hooks.enter_context(module.register_forward_hook(end, always_call=True))
        hooks.enter_context(AttentionCalls(lambda: attending.update(running[-1:])))
        run()
    return attending


class AttentionCalls(TorchFunctionMode):
    """Context that calls `note` at each call of scaled dot-product attention."""

    def __init__(self, note: Callable[[], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        # What torch's own layers call with weights wanted computes them by products, and hides what it calls.
        whole = func is functional.multi_head_attention_forward and not options.get("need_weights", True)
        if whole or func is functional.scaled_dot_product_attention:
            self._note()
        return func(*args, **options)


def _noting(name: str, calls: dict[str, Call]) -> Callable[..., None]:
    def note(_module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if name not in calls:
            calls[name] = Call(
                tuple(_detached(one) for one in arguments), {key: _detached(one) for key, one in keywords.items()}
            )

    return note


def _detached(value: Any) -> Any:
    return value.detach() if _is_tensor(value) else value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
