"""Trainers that diverge, through a real service and alone: they end as that, and keep what was good."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from oakum_client.rest.client import OakumClient
from oakum_service.states import TrainerState
from oakum_worker.__main__ import app
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.spec import TrainerSpec
from oakum_worker.state.finiteness import first_not_finite
from oakum_worker.state.tree import dismantle
from running_service import TASKS, RunningService, events_of, small_spec
from waiting import wait_until
from warm_processes import run_warm

LEFT_TO_THE_SOAK: dict[str, dict[str, Any]] = {
    "sharded": {"parallel": {"data": "sharded"}},
    "pipeline": {
        "parallel": {"pipeline": {"stages": 2}},
        "arguments": {"what": "nan", "layered": True, "step_s": 0.01},
    },
}


def diverging(name: str, **fields: Any) -> TrainerSpec:
    """The spec of a trainer whose loss is NaN from step 30 on."""
    given = {
        "arguments": {"what": "nan"},
        "min_nodes": 2,
        "max_nodes": 2,
        "checkpoint": {"every_s": 0.05, "keep": 1},
    }
    return small_spec(name, entrypoint="failing_task:task", **{**given, **fields})


def follow(
    client: OakumClient, folder: Path, spec: TrainerSpec, *options: str
) -> subprocess.CompletedProcess[str]:
    file = folder / f"{spec.name}.json"
    file.write_text(spec.model_dump_json(), encoding="utf-8")
    command = ("oakum", "submit", str(file), "--follow", "--no-check", *options)
    environment = os.environ | {"OAKUM_URL": client.address.url, "OAKUM_TOKEN": str(client.address.token)}
    return run_warm(*command, environment=environment)


def test_a_loss_that_is_nan_ends_the_trainer_as_diverged_and_another_begins_from_its_last_good_checkpoint(
    shared_service: RunningService, tmp_path: Path
) -> None:
    client = shared_service.client()
    bad = diverging("bad", arguments={"what": "nan", "step_s": 0.1})  # time enough for a checkpoint before
    ends_as_diverged_and_keeps_what_was_good(shared_service, bad, tmp_path)
    is_not_tried_again_and_leaves_its_nodes(shared_service, "bad")
    good = diverging("good", arguments={"what": "nan", "at": 10**6}, epochs=4, min_nodes=1, max_nodes=1)
    done = follow(client, tmp_path, good, "--from", "bad")
    assert done.returncode == 0, done.stdout + done.stderr
    after = client.trainer("good")
    events = [event for event in client.recent_events(500).events if event.subject == "good"]
    resumed = [
        text for text in (event.message for event in events) if "resumes from its checkpoint at step" in text
    ]
    step = int(resumed[0].split(" at step ")[1].split()[0])
    assert 0 < step < 31
    assert after.step == 40
    assert sum(after.steps_at_size.values()) == 40 - step


def ends_as_diverged_and_keeps_what_was_good(service: RunningService, spec: TrainerSpec, folder: Path) -> None:
    client = service.client()
    done = follow(client, folder, spec)
    view = client.trainer(spec.name)
    assert (view.state, done.returncode) == (TrainerState.DIVERGED, 3), done.stdout + done.stderr
    assert view.message.startswith("the loss was nan at step 30; it has been so for 5 steps in a row. Lower"), view
    view = wait_until("rank 0's last word", lambda: (v := client.trainer(spec.name)).checkpoint_step and v)
    assert view.message.rstrip(".") in " ".join(done.stdout.split())
    checkpoints = DurableCheckpoints(service.data_dir / "checkpoints" / view.id, keep=1)
    newest = checkpoints.newest()
    assert newest is not None
    # The service may have heard that it has diverged before it has heard of the last checkpoint.
    assert 0 < view.checkpoint_step <= newest.step < 31
    state: dict[str, Any] = {}
    checkpoints.load(newest, state)
    assert first_not_finite(dismantle(state["model"])[1].items()) is None


def is_not_tried_again_and_leaves_its_nodes(service: RunningService, name: str) -> None:
    client = service.client()
    wait_until("its nodes are free", lambda: not service.ranks())
    view = client.trainer(name)
    assert (view.state, view.attempt) == (TrainerState.DIVERGED, None)
    assert len([event for event in events_of(client, "generation.formed") if event.subject == name]) == 1


@pytest.mark.soak
@pytest.mark.parametrize("engine", LEFT_TO_THE_SOAK)
def test_of_what_is_spread_over_ranks_the_last_checkpoint_is_good_too(
    shared_service: RunningService, tmp_path: Path, engine: str
) -> None:
    ends_as_diverged_and_keeps_what_was_good(
        shared_service, diverging(engine, **LEFT_TO_THE_SOAK[engine]), tmp_path
    )


@pytest.mark.parametrize(
    ("what", "first"),
    [
        ("nan", "the loss was nan at step 30"),
        ("gradient", "were not finite after step 30|was not finite at step 30"),
    ],
)
def test_a_run_alone_says_so_and_does_not_end_with_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, first: str
) -> None:
    file = tmp_path / "spec.json"
    file.write_text(
        json.dumps(diverging("alone", arguments={"what": what}).model_dump(mode="json", exclude_unset=True)),
        encoding="utf-8",
    )
    monkeypatch.chdir(TASKS)
    done = CliRunner().invoke(app, ["run", "failing_task:task", "--spec", str(file), "--json"])
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.startswith("diverged: ")
    assert any(text in done.stderr for text in first.split("|")), done.stderr
