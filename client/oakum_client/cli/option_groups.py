"""Commands with many options take them as dataclasses, one for each group of options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, get_type_hints


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator for a command whose parameters are dataclasses, each a group of options. Typer sees one parameter
    for each of their fields, and the command gets the filled-in dataclasses.

    Fields are annotated as Typer's parameters are, and no two groups have a field of the same name.
    """
    groups = {name: group for name, group in get_type_hints(command).items() if name != "return"}

    @wraps(command)
    def command_of_options(**options: Any) -> None:
        command(
            **{
                name: group(**{field.name: options[field.name] for field in fields(group)})
                for name, group in groups.items()
            }
        )

    command_of_options.__signature__ = Signature(  # type: ignore[attr-defined]
        [parameter for group in groups.values() for parameter in _parameters(group)]
    )
    command_of_options.__annotations__ = {}
    return command_of_options


def _parameters(group: type[Any]) -> Iterator[Parameter]:
    types = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = Parameter.empty if field.default is MISSING else field.default
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=types[field.name])
