"""State that is neither the model's, the optimizer's nor in `extra_state`: counters, lists, generators.

It is searched for where training code keeps it: in attributes of the model's modules and of the data set, in the
variables that the task's functions enclose, in the objects whose methods they are, and in the module variables
that they name. State of other functions that the task's functions call is not found.
"""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from oakum_worker.rehearsal.values import first_difference

_MOST_ITEMS, _MOST_ELEMENTS = 1000, 1 << 20
_MOST_INNER_ITEMS, _MOST_INNER_ELEMENTS = 100, 1 << 12
"""Limits for values within a container: a list of all samples must not be copied."""
_OF_MODULES = frozenset(vars(nn.Module())) | {"_is_full_backward_hook"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_ABSENT = object()


class _Place(Protocol):
    """Interface of a namespace, such as an object's attributes, whose variables can be listed, read, set and
    removed by name."""

    def names(self) -> list[str]: ...
    def get(self, name: str) -> Any: ...
    def put(self, name: str, value: Any) -> None: ...
    def remove(self, name: str) -> None: ...


@dataclass(frozen=True)
class _Attributes:
    """The variables of an object or a Python module, as its `__dict__` holds them; only those named in `only`,
    unless that is None."""

    variables: MutableMapping[str, Any]
    only: frozenset[str] | None = None

    def names(self) -> list[str]:
        return [n for n in list(self.variables) if n not in _OF_MODULES and (self.only is None or n in self.only)]

    def get(self, name: str) -> Any:
        return self.variables.get(name, _ABSENT)

    def put(self, name: str, value: Any) -> None:
        self.variables[name] = value

    def remove(self, name: str) -> None:
        self.variables.pop(name, None)


@dataclass(frozen=True)
class _Enclosed:
    """The variables of an enclosing function that a nested function uses."""

    cells: dict[str, Any]

    def names(self) -> list[str]:
        return list(self.cells)

    def get(self, name: str) -> Any:
        try:
            return self.cells[name].cell_contents
        except ValueError:  # not assigned yet
            return _ABSENT

    def put(self, name: str, value: Any) -> None:
        self.cells[name].cell_contents = value

    def remove(self, name: str) -> None:
        del self.cells[name].cell_contents


@dataclass(frozen=True)
class Kept:
    """The recorded value of one variable, and a function that puts it back."""

    where: str
    value: Any
    is_generator: bool
    restore: Callable[[], None]


class HiddenState:
    """The variables in which a task's code may keep state that Oakum does not save. They can be recorded, put back
    and compared."""

    def __init__(self, places: list[tuple[str, _Place]]) -> None:
        self._places = places

    @classmethod
    def of_model(cls, model: nn.Module, functions: list[Any]) -> HiddenState:
        """The variables of the model's modules and of `functions`, the task's functions."""
        places: list[tuple[str, _Place]] = [
            (f"model.{name}" if name else "model", _Attributes(vars(module)))
            for name, module in model.named_modules()
        ]
        visited = {id(module) for module in model.modules()}
        for function in functions:
            places += _places_of_function(function, visited)
        return cls(places)

    @classmethod
    def of_data_set(cls, dataset: Any) -> HiddenState:
        """The variables of the data set, and of the data sets and transforms in its attributes, up to three levels
        deep."""
        places: list[tuple[str, _Place]] = []
        for label, owner in _with_parts("dataset", dataset):
            places.append((label, _Attributes(vars(owner))))
        return cls(places)

    def take(self) -> dict[str, Kept]:
        """Record the values of all variables of a kind that can be recorded: plain values, tensors, generators,
        containers, iterators. Large tensors and containers are left out. Returns location, such as
        "model.layer.count" -> recorded value."""
        taken = {}
        for label, place in self._places:
            for name in place.names():
                value = place.get(name)
                where = f"{label}.{name}" if label else name
                if value is not _ABSENT and (kept := _kept(where, place, name, value)) is not None:
                    taken[where] = kept
        return taken

    def restore(self, taken: dict[str, Kept]) -> None:
        """Put the recorded values back into their variables, and delete variables that did not exist when `taken`
        was recorded."""
        for label, place in self._places:
            for name in place.names():
                where = f"{label}.{name}" if label else name
                if where not in taken and _kept(where, place, name, place.get(name)) is not None:
                    place.remove(name)
        for kept in taken.values():
            kept.restore()


@dataclass(frozen=True)
class Change:
    """A variable whose value has changed."""

    where: str
    what: str
    value: Any
    is_generator: bool


def changes(before: dict[str, Kept], after: dict[str, Kept]) -> list[Change]:
    """The variables whose values differ between two results of `HiddenState.take`; those of only one result are
    left out. Random generators come first, since other values may differ because of them."""
    differing = []
    for where, kept in after.items():
        if where not in before:
            continue
        what = first_difference(before[where].value, kept.value)
        if what is not None:
            differing.append(Change(where, what, kept.value, kept.is_generator))
    return sorted(differing, key=lambda change: not change.is_generator)


def _with_parts(label: str, owner: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > 3 or not hasattr(owner, "__dict__"):
        return
    yield label, owner
    for name, value in list(vars(owner).items()):
        values = list(value)[:20] if isinstance(value, list | tuple) else [value]
        for part in values:
            if hasattr(part, "__getitem__") and hasattr(part, "__dict__") and not isinstance(part, torch.Tensor):
                yield from _with_parts(f"{label}.{name}", part, depth + 1)
            elif callable(part) and hasattr(part, "__dict__") and not isinstance(part, type | nn.Module):
                yield from _with_parts(f"{label}.{name}", part, depth + 1)  # a transform


def _places_of_function(function: Any, visited: set[int], depth: int = 0) -> list[tuple[str, _Place]]:
    """The namespaces in which a function, method or callable object keeps variables, each with the name of its
    location.

    Also those of the callables that it holds, up to three levels deep. Objects whose id is in `visited` are left
    out, and `visited` gets the ids of those that were found.
    """
    if depth > 3 or function is None or id(function) in visited or isinstance(function, type):
        return []
    visited.add(id(function))
    if isinstance(function, nn.Module):
        label = type(function).__name__
        return [
            (f"{label}.{name}" if name else label, _Attributes(vars(module)))
            for name, module in function.named_modules()
        ]
    if isinstance(function, partial):
        return _places_of_function(function.func, visited, depth + 1)
    if (owner := getattr(function, "__self__", None)) is not None and not isinstance(owner, type(sys)):
        return _places_of_function(owner, visited, depth + 1) if hasattr(owner, "__dict__") else []
    code = getattr(function, "__code__", None)
    if code is None:
        if not hasattr(function, "__dict__") or type(function).__module__.partition(".")[0] == "torch":
            return []
        inner = [value for value in vars(function).values() if callable(value)]
        own = [(type(function).__name__, _Attributes(vars(function)))]
        return own + [place for value in inner for place in _places_of_function(value, visited, depth + 1)]
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    enclosed = _Enclosed(cells)
    used = frozenset(code.co_names)
    places: list[tuple[str, _Place]] = [("", enclosed), ("", _Attributes(function.__globals__, used))]
    for name in cells:
        value = enclosed.get(name)
        if callable(value) and value is not _ABSENT:
            places += _places_of_function(value, visited, depth + 1)
    return places


def _kept(where: str, place: _Place, name: str, value: Any) -> Kept | None:
    if isinstance(value, nn.Parameter | nn.Module):
        return None
    if isinstance(value, _PLAIN):
        return Kept(where, value, False, partial(place.put, name, value))
    if isinstance(value, torch.Tensor):
        return _kept_tensor(where, place, name, value)
    if (generator := _kept_generator(where, value)) is not None:
        return generator
    return _kept_container(where, place, name, value)


def _kept_tensor(where: str, place: _Place, name: str, value: torch.Tensor) -> Kept | None:
    if value.numel() > _MOST_ELEMENTS or value.is_meta or value.layout != torch.strided:
        return None
    noted = value.detach().clone()

    @torch.no_grad()
    def restore() -> None:
        if first_difference(value.detach(), noted) is not None:
            value.detach().copy_(noted)
        place.put(name, value)

    return Kept(where, noted, False, restore)


def _kept_generator(where: str, value: Any) -> Kept | None:
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return Kept(where, state, True, partial(_set_state, value, state))
    if isinstance(value, random.Random):
        plain = value.getstate()
        return Kept(where, plain, True, partial(value.setstate, plain))
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        noted = copy.deepcopy(bits.state)
        return Kept(where, noted, True, partial(setattr, bits, "state", noted))
    if isinstance(value, numpy.random.RandomState):
        legacy = value.get_state()
        return Kept(where, legacy, True, partial(value.set_state, legacy))
    return None


def _set_state(generator: torch.Generator, state: torch.Tensor) -> None:
    generator.set_state(state)


def _kept_container(where: str, place: _Place, name: str, value: Any) -> Kept | None:
    if isinstance(value, list | deque | dict | set | tuple) and len(value) <= _MOST_ITEMS:
        plain = _plain(value)
        return Kept(where, plain, False, partial(_refill, place, name, value, list(_contents(value))))
    is_iterator = type(value).__name__ in ("range_iterator", "count", "list_iterator", "cycle")
    if is_iterator:
        noted = copy.copy(value)
        return Kept(where, repr(value.__reduce__()[1:]), False, lambda: place.put(name, copy.copy(noted)))
    return None


def _plain(value: Any, depth: int = 0) -> Any:
    """A copy of a value for comparison. Where a value is too large or nested too deep, or no plain value,
    container or tensor, its length, its shape or None takes its place."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        is_small = value.numel() <= _MOST_INNER_ELEMENTS and not value.is_meta
        return value.detach().clone() if is_small else tuple(value.shape)
    if depth > 3 or not isinstance(value, list | deque | dict | set | tuple):
        return None
    if len(value) > (_MOST_INNER_ITEMS if depth else _MOST_ITEMS):
        return len(value)
    if isinstance(value, dict):
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, set):
        return {item for item in value if isinstance(item, _PLAIN)} | {len(value)}
    return [_plain(item, depth + 1) for item in value]


def _contents(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """For each mutable container within `value`, up to three levels deep, and `value` itself last: the container
    and a copy of what it holds. Containers of more than `_MOST_ITEMS` items are left out."""
    if depth > 3 or not isinstance(value, list | deque | dict | set | tuple) or len(value) > _MOST_ITEMS:
        return
    for item in value.values() if isinstance(value, dict) else value:
        yield from _contents(item, depth + 1)
    if not isinstance(value, tuple):
        yield value, copy.copy(value)


def _refill(place: _Place, name: str, value: Any, contents: list[tuple[Any, Any]]) -> None:
    for container, before in contents:
        container.clear()
        if isinstance(container, dict | set):
            container.update(before)
        else:
            container.extend(before)
    place.put(name, value)
