"""Fixtures of the service's unit tests."""

from __future__ import annotations

import pytest

from answering_service import service as service
from empty_databases import empty_database as empty_database
from empty_databases import sessions as sessions


@pytest.fixture(autouse=True)
def _no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the terminal width that pytest's worker processes inherit although nothing is printed to a
    terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)
