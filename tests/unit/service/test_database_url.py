"""URLs of databases in the forms of SQLAlchemy and of PostgreSQL's own programs, and poolers before a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from cells import each
from oakum_service.db.engine import _prepare_postgresql
from oakum_service.db.url import parse_url
from oakum_service.errors import ConfigurationError


@each(
    ("url", "expected"),
    [
        ("postgresql://ada@h1:5433/db", {"host": "h1", "port": 5433, "user": "ada", "dbname": "db"}),
        ("postgres://h1/db", {"host": "h1", "dbname": "db"}),
        (
            "postgresql://h1:5432,h2:5433/db?target_session_attrs=read-write",
            {"host": "h1,h2", "port": "5432,5433", "dbname": "db", "target_session_attrs": "read-write"},
        ),
        (
            "postgresql://ada:p%40ss@h1,[::1]:5433/db",
            {"host": "h1,::1", "port": "5432,5433", "dbname": "db", "user": "ada", "password": "p@ss"},
        ),
    ],
)
def test_each_form_reaches_the_driver(url: str, expected: dict[str, Any]) -> None:
    assert PGDialect_psycopg().create_connect_args(parse_url(url))[1] == expected


@each("url", ["database", "postgresql://h1:x/db", "postgresql://h1:1,h2:x/db", ""])
def test_what_is_no_url_is_refused_with_the_forms_that_are(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"expected sqlite:.*, postgresql://user@host:5432/db or"):
        parse_url(url)


class Connection:
    """A driver's connection that was told of one process of the server, and is answered by another or the same."""

    def __init__(self, told: int, answering: int) -> None:
        self.info = SimpleNamespace(backend_pid=told)
        self.adapters = SimpleNamespace(register_dumper=lambda *_: None)
        self.prepare_threshold: int | None = 5
        self.answering = answering

    def cursor(self) -> Connection:
        return self

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, query: str) -> None:
        assert query == "SELECT pg_backend_pid()"

    def fetchone(self) -> tuple[int]:
        return (self.answering,)

    def rollback(self) -> None:
        pass


@each(("told", "answering", "threshold"), [(7, 7, 5), (7, 8, None)])
def test_no_statement_is_prepared_behind_a_pooler(told: int, answering: int, threshold: int | None) -> None:
    connection = Connection(told, answering)
    _prepare_postgresql(connection, None)
    assert connection.prepare_threshold == threshold
