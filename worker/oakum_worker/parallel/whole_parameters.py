"""Describes a model's parameters as they are when they are whole, and puts other parameters in their places."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import nn


class ParameterKind(NamedTuple):
    """A parameter's shape, type and whether it is trained, without its values."""

    shape: torch.Size
    dtype: torch.dtype
    is_trained: bool

    def empty(self, device: torch.device | str) -> nn.Parameter:
        """A whole parameter of this kind, uninitialised."""
        return nn.Parameter(torch.empty(self.shape, dtype=self.dtype, device=device), self.is_trained)

    def without_memory(self, device: torch.device) -> nn.Parameter:
        """A parameter of this kind whose elements are all the same zero in memory, so that it takes hardly any."""
        zero = torch.zeros((), dtype=self.dtype, device=device)
        return nn.Parameter(zero.expand(self.shape), self.is_trained)


def kinds_of(model: nn.Module) -> dict[str, ParameterKind]:
    """Name -> kind of each parameter; a tied parameter has its first name alone."""
    return {name: ParameterKind(p.shape, p.dtype, p.requires_grad) for name, p in model.named_parameters()}


def put_parameters(model: nn.Module, values: Mapping[str, nn.Parameter]) -> None:
    """Replace the model's parameters by `values` (name -> parameter), in the model itself; tied parameters stay
    tied."""
    for module, attribute, name in list(_slots(model)):
        setattr(module, attribute, values[name])


@contextlib.contextmanager
def replaced_parameters(model: nn.Module, values: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Context in which the model has the parameters `values` (name -> parameter) in place of its own; tied ones
    stay tied."""
    own = dict(model.named_parameters())
    try:
        put_parameters(model, values)
        yield
    finally:
        put_parameters(model, own)


def _slots(model: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """(module, attribute, name) of every place of a parameter; a tied one has several places and one name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for module in model.modules():
        for attribute, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            yield module, attribute, names[id(parameter)]
