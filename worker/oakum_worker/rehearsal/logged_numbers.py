"""Numbers that a script seems to log: losses, their sums and means, and lists of numbers.

A mean of losses looks the same whether it is printed or divides the next loss. Which of the two it is shows where
something else stands in its place: a copy of the process changes the numbers and computes the loss again.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from oakum_worker.rehearsal.own_objects import FOREIGN, package_of, variables_of

_DEEPEST, _MOST_ITEMS = 3, 1000


@dataclass(frozen=True)
class _Place:
    """Where a number, or a list of them, is kept."""

    name: str
    """What the script calls what holds it."""
    path: str
    value: Any
    put: Callable[[Any], None]
    """Puts another value there."""


class LoggedNumbers:
    """The numbers that a script's variables and callbacks hold."""

    def __init__(self, frame: FrameType | None, holders: Mapping[str, object], saved: Collection[int]) -> None:
        """`holders` are what is called so; `saved` are the identities of objects that are saved."""
        self._frame, self._holders, self._saved_ids = frame, holders, saved
        self._names = {*(variables_of(frame) if frame is not None else ()), *holders}
        self._before = {one.path: one.value for one in self._places()}

    def changed(self) -> list[str]:
        """The names of what has been there since the beginning and holds numbers that have changed."""
        return list(dict.fromkeys(one.name for one in self._changed()))

    def disturb(self) -> None:
        """Change these numbers."""
        for one in [*self._changed()]:
            one.put(_disturbed(one.value))

    def release(self) -> None:
        """Forget the variables, and what they hold."""
        self._frame = None
        self._before.clear()

    def _changed(self) -> Iterator[_Place]:
        for one in self._places():
            if one.path not in self._before or not _equal(self._before[one.path], one.value):
                yield one

    def _places(self) -> Iterator[_Place]:
        frame = self._frame
        if frame is not None:
            for name, value in variables_of(frame).items():
                if name not in self._names:  # the loop's own, made anew in each iteration
                    continue
                yield from self._within(f"`{name}`", f"`{name}`", value, _Setter(frame, name), 0)
        for name, holder in self._holders.items():
            yield from self._within(name, name, holder, _nowhere, 0)

    def _within(
        self, name: str, path: str, value: Any, put: Callable[[Any], None], depth: int
    ) -> Iterator[_Place]:
        if id(value) in self._saved_ids or depth > _DEEPEST:
            return
        if isinstance(value, float):
            yield _Place(name, path, value, put)
        elif isinstance(value, list | deque) and len(value) <= _MOST_ITEMS and all(map(_is_number, value)):
            yield _Place(name, path, tuple(value), _filler(value))
        elif isinstance(value, dict) and len(value) <= _MOST_ITEMS:
            for key, one in list(value.items()):
                yield from self._within(name, f"{path}[{key!r}]", one, _Item(value, key), depth + 1)
        elif hasattr(value, "__dict__") and not isinstance(value, type) and package_of(value) not in FOREIGN:
            for key, one in list(vars(value).items()):
                yield from self._within(name, f"{path}.{key}", one, _Item(vars(value), key), depth + 1)


@dataclass(frozen=True)
class _Item:
    """Puts a value into a dictionary."""

    into: dict[Any, Any]
    key: Any

    def __call__(self, value: Any) -> None:
        self.into[self.key] = value


@dataclass(frozen=True)
class _Setter:
    """Puts a value into a variable."""

    frame: FrameType
    name: str

    def __call__(self, value: Any) -> None:
        if self.name not in self.frame.f_locals:
            self.frame.f_globals[self.name] = value
            return
        self.frame.f_locals[self.name] = value
        # Before Python 3.13 `f_locals` of a function is a copy, which debuggers write back in this way.
        write_back = getattr(ctypes.pythonapi, "PyFrame_LocalsToFast", None)
        if write_back is not None:
            write_back(ctypes.py_object(self.frame), ctypes.c_int(0))


def _filler(container: Any) -> Callable[[Any], None]:
    def fill(values: Any) -> None:
        container.clear()
        container.extend(values)

    return fill


def _nowhere(_: Any) -> None:
    """Nothing holds it."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float):
        return bool(one == other)
    return len(one) == len(other) and all(a is b or bool(a == b) for a, b in zip(one, other, strict=True))


def _disturbed(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_disturbed(one) for one in value]
    with contextlib.suppress(RuntimeError):  # a tensor of integers
        if not isinstance(value, bool):
            return 1.5 * value + 1
    return value
