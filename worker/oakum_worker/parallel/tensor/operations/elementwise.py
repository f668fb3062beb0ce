"""Functions of single elements: each rank computes its own block of the result."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from oakum_worker.parallel.tensor.grids import Axes
from oakum_worker.parallel.tensor.placements import Split, Splits
from oakum_worker.parallel.tensor.spread import RULES, Spread, Work, answer_uncut, block, known
from oakum_worker.torch_internals import tree_map

# fmt: off
_NAMES = (
    "abs", "neg", "exp", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "square", "reciprocal", "sin",
    "cos", "tanh", "sigmoid", "erf", "sign", "floor", "ceil", "round", "add", "sub", "mul", "div",
    "true_divide", "floor_divide", "remainder", "pow", "maximum", "minimum", "fmod", "where", "masked_fill",
    "clamp", "clamp_min", "clamp_max", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
    "logical_not", "logical_xor", "isnan", "isinf", "isfinite", "addcmul", "lerp", "nan_to_num", "relu",
    "to", "float", "double", "half", "bfloat16", "type_as", "contiguous", "clone", "detach", "zeros_like",
    "ones_like", "full_like", "hypot", "atan2", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__",
    "__isub__", "__mul__", "__rmul__", "__imul__", "__truediv__", "__rtruediv__", "__itruediv__", "__pow__",
    "__rpow__", "__neg__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__and__", "__or__",
    "__invert__", "__floordiv__", "__mod__", "add_", "sub_", "mul_", "div_", "masked_fill_", "neg_",
    "relu_", "clamp_", "tanh_", "sigmoid_", "bitwise_and", "bitwise_or", "bitwise_not", "rsub", "long",
    "int", "bool", "type",
)
# fmt: on
# fmt: off
_ACTIVATIONS = (
    "relu", "gelu", "silu", "mish", "tanh", "sigmoid", "elu", "selu", "celu", "leaky_relu", "softplus",
    "hardtanh", "relu6", "hardswish", "hardsigmoid", "logsigmoid", "softsign", "tanhshrink", "softshrink",
    "hardshrink",
)
# fmt: on


def elementwise(func: Any, work: Work, *args: Any, **kwargs: Any) -> Any:
    """Rule for functions of single elements: returns the result as a spread tensor, of which each rank computes
    its block from the blocks of the arguments."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if not any(isinstance(value, Spread) and value.axes for value in tensors):
        return answer_uncut(work, func, args, kwargs)
    kwargs.pop("inplace", None)
    tensors = [known(work, value) for value in tensors]
    func = _OUT_OF_PLACE.get(func, func)
    shape = torch.broadcast_shapes(*(value.shape for value in _of_result(func, tensors)))
    splits = common_splits(tensors, shape)

    def own(value: Any) -> Any:
        return block(work, value, shape, splits, "vector") if isinstance(value, torch.Tensor) else value

    args, kwargs = tree_map(own, (args, kwargs))
    return Spread(func(*args, **kwargs), shape, splits, work)


def _of_result(func: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return tensors[:1] if func in _OF_FIRST else tensors


def common_splits(tensors: list[torch.Tensor], shape: torch.Size) -> Splits:
    """The splits of the result, of this shape, of an elementwise function of these tensors. Each dimension is
    cut as in one of the tensors; where they differ, as in the one that is cut along more axes of the grid. No
    axis cuts two dimensions."""
    spread = [value for value in tensors if isinstance(value, Spread)]
    spread.sort(key=lambda value: -len(value.axes))
    splits: list[Split | None] = [None] * len(shape)
    taken: set[str] = set()
    for value in spread:
        for dim, split in _aligned(value, shape):
            if split is None or _axes(splits[dim]):
                continue
            if not taken.intersection(split.axes):
                splits[dim] = split
                taken.update(split.axes)
    return tuple(splits)


def _axes(split: Split | None) -> Axes:
    return split.axes if split is not None else ()


def _aligned(value: Spread, shape: torch.Size) -> Iterator[tuple[int, Split | None]]:
    offset = len(shape) - value.ndim
    for dim, split in enumerate(value.splits):
        if value.shape[dim] == shape[dim + offset]:
            yield dim + offset, split


_OUT_OF_PLACE = {
    getattr(torch.Tensor, f"{name}_"): getattr(torch.Tensor, name)
    for name in ("add", "sub", "mul", "div", "masked_fill", "neg", "relu", "clamp", "tanh", "sigmoid")
} | {
    getattr(torch.Tensor, f"__i{name}__"): getattr(torch.Tensor, f"__{name}__")
    for name in ("add", "sub", "mul", "truediv")
}
_OF_FIRST = {torch.Tensor.type_as}

for _name in _NAMES:
    for _home in (torch, torch.Tensor):
        if (_func := getattr(_home, _name, None)) is not None and callable(_func) and not isinstance(_func, type):
            RULES[_func] = partial(elementwise, _func)
for _name in _ACTIVATIONS:
    RULES[getattr(F, _name)] = partial(elementwise, getattr(F, _name))
RULES[torch.nn.functional.relu_] = partial(elementwise, F.relu)
