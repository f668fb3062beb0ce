"""Compares samples and models' state: nested containers of tensors, arrays and plain values."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_DEEPEST = 20


def first_difference(one: Any, other: Any, path: str = "") -> str | None:
    """Text with the place and the values of the first difference, such as `['image']: 0.25 and 0.75`; None if
    there is none. NaN equals itself. Objects of types that this module cannot compare count as equal."""
    return next(_differences(one, other, path, 0), None)


def _differences(one: Any, other: Any, path: str, depth: int) -> Iterator[str]:
    if depth > _DEEPEST or one is other:
        return
    if type(one) is not type(other):
        yield _describe_difference(path, type(one).__name__, type(other).__name__)
    elif isinstance(one, torch.Tensor):
        yield from _tensor_differences(one, other, path)
    elif isinstance(one, Mapping):
        if list(one) != list(other):
            yield _describe_difference(path, f"the keys {list(one)[:5]}", f"{list(other)[:5]}")
            return
        for key in one:
            yield from _differences(one[key], other[key], f"{path}[{key!r}]", depth + 1)
    elif isinstance(one, list | tuple | deque):
        if len(one) != len(other):
            yield _describe_difference(path, f"{len(one)} items", f"{len(other)}")
            return
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _differences(a, b, f"{path}[{number}]", depth + 1)
    elif isinstance(one, bool | int | float | complex | str | bytes | set | frozenset) or one is None:
        if one != other and not (isinstance(one, float) and math.isnan(one) and math.isnan(other)):
            yield _describe_difference(path, _short(one), _short(other))
    elif dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            pair = getattr(one, field.name, None), getattr(other, field.name, None)
            yield from _differences(*pair, f"{path}.{field.name}", depth + 1)
    elif hasattr(one, "dtype") and hasattr(one, "tolist"):  # NumPy's arrays and numbers
        yield from _differences(one.tolist(), other.tolist(), path, depth + 1)
    elif callable(to_bytes := getattr(one, "tobytes", None)) and to_bytes() != other.tobytes():  # a picture
        yield _describe_difference(path, f"one {type(one).__name__}", "another")


def _tensor_differences(one: torch.Tensor, other: torch.Tensor, path: str) -> Iterator[str]:
    if one.shape != other.shape or one.dtype != other.dtype:
        kinds = (f"{t.dtype} of shape {tuple(t.shape)}".removeprefix("torch.") for t in (one, other))
        yield _describe_difference(path, *kinds)
        return
    if one.layout != torch.strided or one.is_meta:
        return
    differ = (one != other) & ~((one != one) & (other != other))
    if bool(differ.any()):
        at = int(differ.reshape(-1).to(torch.uint8).argmax())
        yield _describe_difference(path, *(_short(t.reshape(-1)[at].item()) for t in (one, other)))


def _describe_difference(path: str, one: str, other: str) -> str:
    return f"{path}: {one} and {other}" if path else f"{one} and {other}"


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
