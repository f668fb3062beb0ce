"""Fixtures of the tests that run a real service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from running_service import EXAMPLES, TASKS, RunningService


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """A service with four virtual nodes and no foreground load; nothing of it is left behind. Ranks that are
    not freed stay blocked for longer than any test waits."""
    running = RunningService(tmp_path, PYTHONPATH=f"{EXAMPLES}:{TASKS}", OAKUM_REGROUP_TIMEOUT_S="600")
    yield running
    running.end()
