"""Names that a library does not promise to keep, checked where an adapter begins to use them.

A library's new version may rename a method that an adapter overrides: nothing would call the adapter's method any
more, and training would differ without an error. So an adapter lists what it relies on, and refuses to work with a
library that has changed there.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from oakum_worker.errors import SessionError

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Name:
    """A name that an adapter relies on."""

    path: str
    """`module:attribute.attribute` for what a module has; `attribute.attribute` for what an object has."""
    use: str
    """What the adapter does with the name, and so what to look at where it has changed."""
    takes: str | None = None
    """The parameters by name, `self` left out, of what is called or overridden; after "..." others with defaults
    may follow. None where parameters do not matter."""

    def complaint(self, root: object = None) -> str | None:
        """What has changed in the installed library, or None. `root` is the object of a path without a module."""
        value = _attribute(self.path, root)
        if value is _MISSING:
            return f"there is no {self.path} ({self.use})"
        if self.takes is None or _fits(parameters := _parameters(value), self.takes.split()):
            return None
        names = ", ".join(parameter.name for parameter in parameters)
        return f"{self.path} takes ({names}) in place of ({', '.join(self.takes.split())}) ({self.use})"


@dataclass(frozen=True, slots=True)
class Reliance:
    """What one adapter relies on in one library."""

    adapter: str
    """The adapter's public name."""
    library: str
    """The library's name, as pip knows it."""
    tested: str
    """The version of the library with which the adapter's tests passed."""
    names: tuple[Name, ...]
    """Names of the library's modules and classes."""
    of_objects: tuple[Name, ...] = ()
    """Attributes that the library's objects have once they are made."""
    of_training: tuple[Name, ...] = ()
    """Attributes that they have only while training runs."""
    of_others: tuple[Name, ...] = ()
    """Attributes of objects that need other libraries, so that tests alone check them, by the library's text."""

    def check(self) -> None:
        """Raise `SessionError` where the library's modules and classes lack a name, or its parameters differ."""
        self._refuse(name.complaint() for name in self.names)

    def check_object(self, root: object) -> None:
        """Raise `SessionError` where an object that the library has made lacks one of `of_objects`."""
        self._refuse(name.complaint(root) for name in self.of_objects)

    def check_training(self, root: object) -> None:
        """Raise `SessionError` where, while training runs, an object lacks one of `of_training`."""
        self._refuse(name.complaint(root) for name in self.of_training)

    def _refuse(self, faults: Iterator[str | None]) -> None:
        complaints = [complaint for complaint in faults if complaint is not None]
        if complaints:
            raise SessionError(
                f"{self.adapter} does not work with {self.library} {metadata.version(self.library)}, which has "
                f"changed where the adapter relies on it: {'; '.join(complaints)}. It was tested with "
                f"{self.library} {self.tested}: pip install '{self.library}=={self.tested}', or a newer Oakum"
            )


def private(path: str) -> Any:
    """What a module has under a name, `module:attribute`, that was checked before."""
    return _attribute(path, None)


def _attribute(path: str, root: object) -> Any:
    module, _, attributes = path.rpartition(":")
    if module:
        try:
            root = importlib.import_module(module)
        except ImportError:
            return _MISSING
    for attribute in attributes.split("."):
        root = getattr(root, attribute, _MISSING)
        if root is _MISSING:
            break
    return root


def _parameters(function: Any) -> list[inspect.Parameter]:
    return [one for one in inspect.signature(function).parameters.values() if one.name != "self"]


def _fits(parameters: list[inspect.Parameter], expected: list[str]) -> bool:
    if expected[-1:] == ["..."]:
        expected = expected[:-1]
        own, others = parameters[: len(expected)], parameters[len(expected) :]
        if any(one.default is one.empty and one.kind not in _VARIADIC for one in others):
            return False
    else:
        own = parameters
    return [one.name for one in own] == expected


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
