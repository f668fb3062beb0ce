"""Which options a spec gives: an option is named as a user would write it.

`compile` is given where it differs from its default, and `parallel.data: sharded` where it has that value.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def is_given(model: BaseModel, option: str) -> bool:
    """Whether a spec, or one of its parts, has the option."""
    path, has_value, value = option.partition(": ")
    found = value_at(model, path)
    return bool(found == value if has_value else found != _default(model, path))


def value_at(model: BaseModel, path: str) -> Any:
    """The value of the field at the path, such as `parallel.data`; None where a part on the way is left out."""
    value: Any = model
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


def _default(model: BaseModel, path: str) -> Any:
    *parents, name = path.split(".")
    parent = value_at(model, ".".join(parents)) if parents else model
    return type(parent).model_fields[name].get_default(call_default_factory=True)
