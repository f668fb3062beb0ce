"""Fixtures of the tests that run a real service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from running_service import EXAMPLES, TASKS, RunningService, let_go


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """A service with four virtual nodes and no foreground load; nothing of it is left behind. Ranks that are
    not freed stay blocked for longer than any test waits."""
    running = _service_in(tmp_path)
    yield running
    running.end()


@pytest.fixture(scope="session")
def _shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    running = _service_in(tmp_path_factory.mktemp("shared"))
    running.start()
    yield running
    running.end()


@pytest.fixture
def shared_service(_shared_service: RunningService) -> Iterator[RunningService]:
    """Such a service for tests that need no setting of their own and leave it alive, each with trainers under
    names of its own. It runs when a test begins, and no trainer of another test does.
    """
    yield _shared_service
    let_go(_shared_service)


def _service_in(folder: Path) -> RunningService:
    return RunningService(folder, PYTHONPATH=f"{EXAMPLES}:{TASKS}", OAKUM_REGROUP_TIMEOUT_S="600")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all tests of the shared service to one worker of pytest-xdist, since each further worker would start
    a service of its own."""
    for item in items:
        if item.path.parent == Path(__file__).parent and "shared_service" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("shared service of crashes"))
