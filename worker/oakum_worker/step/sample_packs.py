"""Packs a list of samples into few tensors, which pass between processes much faster than many."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Stacked:
    """Tensors of one shape and type, along a new first dimension."""

    values: torch.Tensor


@dataclass(frozen=True)
class Fields:
    """Samples that are tuples, lists or mappings of the same fields, field by field."""

    kind: type
    keys: tuple[Any, ...]
    """The keys of a mapping; empty for tuples and lists."""
    columns: tuple[Any, ...]
    """For each field the pack of its values."""


@dataclass(frozen=True)
class Pickled:
    """Values of any other form, as bytes: tensors in a pickle need no descriptors of shared memory."""

    data: bytes
    count: int


Pack = Stacked | Fields | Pickled


def pack(samples: Sequence[Any]) -> Pack:
    """The samples, at least one, in as few tensors as they fit in. Raises whatever pickling them raises."""
    first = samples[0]
    if _are_alike(samples):
        return Stacked(torch.stack(list(samples)))
    if (
        type(first) in (tuple, list)
        and first
        and all(type(s) is type(first) and len(s) == len(first) for s in samples)
    ):
        return Fields(type(first), (), tuple(pack([s[i] for s in samples]) for i in range(len(first))))
    if type(first) is dict and first and all(type(s) is dict and list(s) == list(first) for s in samples):
        return Fields(dict, tuple(first), tuple(pack([s[key] for s in samples]) for key in first))
    return Pickled(pickle.dumps(list(samples)), len(samples))


def unpack(packed: Pack) -> list[Any]:
    """The samples of `pack`, with equal values and types, in their order. Stacked tensors are views."""
    if isinstance(packed, Stacked):
        return list(packed.values.unbind())
    if isinstance(packed, Pickled):
        samples: list[Any] = pickle.loads(packed.data)  # noqa: S301  of a process of ours
        return samples
    columns = [unpack(column) for column in packed.columns]
    make: Callable[[Any], Any] = packed.kind
    if packed.kind is dict:
        return [dict(zip(packed.keys, row, strict=True)) for row in zip(*columns, strict=True)]
    return [make(row) for row in zip(*columns, strict=True)]


def _are_alike(samples: Sequence[Any]) -> bool:
    first = samples[0]
    return type(first) is torch.Tensor and all(
        type(s) is torch.Tensor
        and (s.shape, s.dtype, s.layout) == (first.shape, first.dtype, torch.strided)
        and not s.requires_grad
        for s in samples
    )
