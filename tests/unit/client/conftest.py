"""Fixtures of the client's unit tests."""

from __future__ import annotations

from answering_service import no_width as no_width
from answering_service import output as output
from answering_service import service as service
from empty_databases import empty_database as empty_database
