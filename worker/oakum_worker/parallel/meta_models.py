"""Models without parameter values: their parameters are on the meta device, which holds no data."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from oakum_worker.errors import TaskError

_T = TypeVar("_T")


def without_values(model: nn.Module, structure: _T) -> _T:
    """A deep copy of `structure`, in which the model's parameters are on the meta device. Copies the model itself,
    or several objects that share modules with it.

    Raises `TaskError` where `structure` cannot be copied.
    """
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    return deep_copy(structure, memo)


def deep_copy(structure: _T, memo: dict[int, object]) -> _T:
    """A deep copy of a model or of objects with modules of one, in which `memo[id(part)]` takes the place of each
    part. Raises `TaskError` where `structure` cannot be copied."""
    try:
        return copy.deepcopy(structure, memo)
    except Exception as error:
        raise TaskError(
            f"the model cannot be copied ({type(error).__name__}: {error}), which dividing its parameters needs: "
            "keep only what copy.deepcopy takes in its attributes"
        ) from error


def give_memory(unit: nn.Module, model: nn.Module, device: torch.device) -> None:
    """Replace a unit's parameters on the meta device by uninitialised ones, wherever the model uses them.

    `nn.Module.to_empty` would untie tied weights.
    """
    empty = [parameter for parameter in unit.parameters() if parameter.is_meta]
    real = {id(p): nn.Parameter(torch.empty_like(p, device=device), p.requires_grad) for p in empty}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(parameter) in real:
                setattr(module, name, real[id(parameter)])
