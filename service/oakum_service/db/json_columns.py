"""Columns whose JSON is a typed value in code: rows give and take the value, the database keeps the JSON."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import JSON, ColumnElement, Dialect, Text, cast, type_coerce
from sqlalchemy.types import TypeDecorator

from oakum_worker.errors import fault_of

_log = logging.getLogger("oakum")


class JsonOf(TypeDecorator[Any]):
    """Column type that keeps values of one type as JSON: a pydantic model, a dataclass, or a collection of such.

    A value is validated when it is written, so that no row is written that cannot be read. Raises pydantic's
    `ValidationError` if a value, or the JSON in a row, is not of the type. Optional JSON that is not of the type,
    as an earlier version may have written, is read as None: it must not keep the rest of the row from being read.
    """

    impl = JSON
    cache_ok = True

    def __init__(self, value: Any, *, optional: bool = False, sparse: bool = False, cached: int = 0) -> None:
        """`value`: the type. `optional`: None is kept as `{}`. `sparse`: fields that are None are left out of the
        JSON. `cached`: so many of the values read last are kept, and rows with equal JSON share one, which nobody
        may change: it saves time where the type is large."""
        super().__init__()
        self.value, self.optional, self.sparse, self.cached = value, optional, sparse, cached
        self._adapter: TypeAdapter[Any] = TypeAdapter(value)
        self._read_text = lru_cache(cached)(self._of_text) if cached else self._of_text

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """The JSON to write for `value`. None is written as `{}` if the column is optional, else as NULL."""
        if value is None:
            return {} if self.optional else None
        valid = self._adapter.validate_python(value)
        return self._adapter.dump_python(valid, mode="json", exclude_none=self.sparse)

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Read the JSON as text from any database: pydantic parses it faster than a driver does, and equal texts
        need not be parsed again."""
        return type_coerce(cast(column, Text), self)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """The function that turns the JSON text in a row into the column's value. No JSON (NULL), and the JSON
        `null`, become None."""
        return lambda text: None if text is None or text == "null" else self._read_text(text)

    def _of_text(self, text: str) -> Any:
        if self.optional and text == "{}":
            return None
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            if not self.optional:
                raise
            _log.warning(
                "JSON of an earlier version is left out: %s", fault_of(error.errors(include_url=False)[0])
            )
            return None
