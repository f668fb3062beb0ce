"""Tables of verdicts, held against the installed library: no argument of a newer one is ignored silently."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from oakum.library_names import private
from oakum.surface.verdicts import Verdict
from oakum_worker.errors import TrainingWarning

__all__ = ["Surface", "unknown_arguments"]

Kind = Literal["arguments", "fields", "members", "attributes", "overrides"]
"""What a table lists: a callable's parameters, a dataclass's fields, all public names of a class, all public
attributes that only its objects have, or names that a subclass may define anew. Only the last is not whole."""


@dataclass(frozen=True, slots=True)
class Surface:
    """One table: the names of one class or function of a library, and what becomes of each."""

    of: str
    """Where the library has it: `module:attribute.attribute`."""
    kind: Kind
    table: Mapping[str, Verdict]

    @property
    def name(self) -> str:
        """Its name as users write it, as in `accelerate.Accelerator`."""
        return self.of.replace(":", ".")

    def __str__(self) -> str:
        return f"{self.kind} of {self.name}"

    def names_of_library(self) -> frozenset[str]:
        """The names that the installed library has. Raises `ValueError` for attributes, which only an object
        has."""
        if self.kind == "attributes":
            raise ValueError(f"the attributes of {self.name} are those of an object")
        owner = private(self.of)
        if self.kind == "fields":
            return frozenset(field.name for field in dataclasses.fields(owner))
        if self.kind == "arguments":
            return frozenset(_parameters(owner))
        package = owner.__module__.partition(".")[0]
        own = [base for base in owner.__mro__ if base.__module__.partition(".")[0] == package]
        names = {name for base in own for name in vars(base)}
        return frozenset(names) if self.kind == "overrides" else frozenset(n for n in names if n[0] != "_")

    def defaults(self) -> dict[str, Any]:
        """Argument or field -> its default, of those that have one."""
        owner = private(self.of)
        if self.kind == "fields":
            return dict(
                _default(f) for f in dataclasses.fields(owner) if _default(f)[1] is not dataclasses.MISSING
            )
        return {one.name: one.default for one in _parameters(owner).values() if one.default is not one.empty}

    def warn_of_unknown_arguments(self, given: Mapping[str, Any]) -> None:
        """Warn, by `TrainingWarning`, of arguments that were given and that the table does not know."""
        for name in unknown_arguments(self.table, given, self.defaults()):
            warnings.warn(
                f"oakum does not know the argument {name} of {self.name}, which is newer than this version of "
                "Oakum: what it does may depend on the number of nodes",
                TrainingWarning,
                stacklevel=3,
            )


def unknown_arguments(
    table: Mapping[str, Verdict], given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> list[str]:
    """The library's arguments that a table does not know and whose value is not the default.

    What is given and is no argument of the library, such as a field of a user's subclass, is none of them.
    """
    return [
        name
        for name, value in given.items()
        if name not in table and name in defaults and not _equal(value, defaults[name])
    ]


def _equal(value: Any, default: Any) -> bool:
    # Values that compare to an array have no one answer.
    try:
        return value is default or bool(value == default)
    except Exception:  # whatever a value's own comparison raises
        return False


def _parameters(found: Any) -> dict[str, inspect.Parameter]:
    return {name: one for name, one in inspect.signature(found).parameters.items() if name != "self"}


def _default(field: dataclasses.Field[Any]) -> tuple[str, Any]:
    factory = field.default_factory
    return field.name, field.default if factory is dataclasses.MISSING else factory()
