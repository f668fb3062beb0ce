"""Fragments of the previous version trained by this version's service, and the other way round."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from oakum_service.api.schemas.trainers import TrainerChange
from oakum_service.states import TrainerState
from running_service import (
    EXAMPLES,
    TASKS,
    RunningService,
    small_spec,
    state_of,
    wait_for_generation,
    wait_for_size,
)
from waiting import wait_until

pytestmark = pytest.mark.xdist_group("neighbouring versions")
ROOT = Path(__file__).resolve().parents[2]
PREVIOUS = ROOT / "tests" / "data" / "version-0.1.0.tar.xz"
"""The previous version's packages, as written by
`git archive COMMIT service solver worker migrations pyproject.toml | xz -9`."""

# Python runs it at its start, in each of the service's and the fragments' processes. The latter import the worker
# alone, so the package that is put first decides whose code they run.
_SITECUSTOMIZE = """
import sys
is_service = "serve" in sys.orig_argv
folders = {previous!r} if is_service == {service_is_previous!r} else {current!r}
sys.path[:0] = folders
with open({seen!r} + ("/service" if is_service else "/fragments"), "a") as file:
    print(folders[0], file=file)
"""
_PREVIOUS_FOLDERS = ("service", "solver", "worker")
_FOLDERS = ("service", "client", "solver", "worker")


@pytest.fixture(scope="module")
def previous_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the previous version's files."""
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(PREVIOUS) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(params=["previous service", "previous fragments"])
def service(request: pytest.FixtureRequest, previous_version: Path, tmp_path: Path) -> Iterator[RunningService]:
    """A service whose fragments are of the other version and are not forked."""
    start_up = tmp_path / "start-up"
    start_up.mkdir()
    (start_up / "sitecustomize.py").write_text(
        _SITECUSTOMIZE.format(
            previous=[str(previous_version / name) for name in _PREVIOUS_FOLDERS],
            current=[str(ROOT / name) for name in _FOLDERS],
            service_is_previous=request.param == "previous service",
            seen=str(start_up),
        ),
        encoding="utf-8",
    )
    running = RunningService(
        tmp_path, nodes=2, PYTHONPATH=f"{start_up}:{EXAMPLES}:{TASKS}", OAKUM_LOCAL_FORK_SERVER="false"
    )
    running.starts_afresh = True
    if request.param == "previous service":
        running.module = "oakum_service"
    yield running
    running.end()


def test_a_trainer_grows_shrinks_and_ends(
    service: RunningService, previous_version: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    client = service.start()
    gate = tmp_path / "gate"
    # Longer than any wait for nodes: training must not be over when they come.
    paced = {"entrypoint": "small_task:paced_task", "arguments": {"gate": str(gate), "step_s": 1.0}, "epochs": 30}
    client.submit(small_spec("neighbours", max_nodes=1, **paced))
    half = wait_for_size(client, "neighbours", 1)
    client.change("neighbours", TrainerChange(max_nodes=2))
    full = wait_for_generation(client, "neighbours", half.generation, nodes=2)
    service.take_nodes(1, run_s=600.0)  # it does not come back
    wait_for_generation(client, "neighbours", full.data["generation"], nodes=1)
    gate.touch()
    wait_until("the trainer ends", lambda: state_of(client, "neighbours").ended)
    view = client.trainer("neighbours")
    assert view.state is TrainerState.FINISHED, view.message
    assert view.step == view.total_steps
    ran = {
        name: set((tmp_path / "start-up" / name).read_text("utf-8").split()) for name in ("service", "fragments")
    }
    previous, current = {str(previous_version / "service")}, {str(ROOT / "service")}
    expected = (previous, current) if "previous service" in request.node.name else (current, previous)
    assert (ran["service"], ran["fragments"]) == expected
