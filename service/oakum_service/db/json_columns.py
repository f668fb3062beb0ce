"""Columns whose JSON is a typed value in code: rows give and take the value, the database keeps the JSON."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import JSON, Dialect
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

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """The value for JSON that has been parsed; None for None."""
        return None if value is None else self._valid(value, self._adapter.validate_python)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """The function that turns a column's content into a value. SQLite gives JSON as text, which pydantic
        parses faster than the standard library."""
        if dialect.name != "sqlite":
            return super().result_processor(dialect, coltype)
        return lambda text: None if text is None else self._read_text(text)

    def _of_text(self, text: str) -> Any:
        return self._valid(text, self._adapter.validate_json)

    def _valid(self, document: Any, read: Callable[[Any], Any]) -> Any:
        if self.optional and document in ({}, "{}"):
            return None
        try:
            return read(document)
        except ValidationError as error:
            if not self.optional:
                raise
            _log.warning(
                "JSON of an earlier version is left out: %s", fault_of(error.errors(include_url=False)[0])
            )
            return None
