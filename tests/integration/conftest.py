"""Fixtures of the tests that run a real service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from empty_databases import empty_database as empty_database
from empty_databases import sessions as sessions
from postgres_database import empty_url as empty_url
from postgres_server import postgres as postgres
from running_service import EXAMPLES, TASKS, RunningService, let_go


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """A service with four virtual nodes and no foreground load; nothing of it is left behind."""
    running = RunningService(tmp_path, PYTHONPATH=f"{EXAMPLES}:{TASKS}")
    yield running
    running.end()


@pytest.fixture(scope="session")
def _shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    running = RunningService(tmp_path_factory.mktemp("shared"), PYTHONPATH=f"{EXAMPLES}:{TASKS}")
    running.start()
    yield running
    running.end()


@pytest.fixture
def shared_service(_shared_service: RunningService) -> Iterator[RunningService]:
    """A service of four nodes for tests that look at nothing but trainers of their own, each under its own name.

    It runs when a test begins, and no trainer of another test does.
    """
    yield _shared_service
    let_go(_shared_service)


@pytest.fixture
def states_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets each thread of a test be a rank whose script uses Hugging Face's libraries, which are written for one
    rank a process: gives each thread its own state of Accelerate, and has Accelerate leave the environment as it
    is.

    It empties and restores the environment for each `Accelerator`. A thread that forms its gloo group meanwhile
    reads memory that `setenv` has freed, and two threads that restore at once can leave the environment empty.
    """
    from accelerate import state
    from accelerate.utils import environment

    for kind in (state.PartialState, state.AcceleratorState, state.GradientState):
        monkeypatch.setattr(kind, "_shared_state", state.ThreadLocalSharedDict())
    monkeypatch.setattr(environment, "clear_environment", nullcontext)
    # Accelerate sets it for a moment to look for GPUs. Where it is there already, `setenv` moves no memory.
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all tests of the shared service to one worker of pytest-xdist, since each further worker would start
    a service of its own."""
    for item in items:
        if item.path.parent == Path(__file__).parent and "_shared_service" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("shared service"))
