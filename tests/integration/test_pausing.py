"""A trainer that is paused, retried or made shorter, with a real service: it goes on where it stopped."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from oakum_service.cli import load_commands
from oakum_service.cli.app import app
from oakum_service.client.oakum_client import OakumClient
from oakum_service.standing import Status
from oakum_service.states import TrainerState
from running_service import RunningService, small_spec, state_of, wait_for_size, wait_for_steps
from waiting import wait_until


def resumptions(client: OakumClient, name: str) -> list[str]:
    events = client.recent_events(500).events
    return [e.message for e in events if e.subject == name and "resumes from its checkpoint" in e.message]


def test_a_paused_trainer_gives_its_nodes_to_others_and_goes_on_where_it_stopped(service: RunningService) -> None:
    client = service.start()
    # The higher priority is what it gets its nodes back by: both trainers may gain equally from these.
    client.submit(small_spec("paused", epochs=100_000, max_nodes=2, priority=1))
    client.submit(small_spec("other", epochs=100_000, max_nodes=4))
    wait_for_size(client, "paused", 2)
    wait_for_steps(client, "paused")
    client.pause("paused", "its data moves")
    wait_for_size(client, "other", 4)
    view = client.trainer("paused")
    assert (view.status, view.nodes, view.checkpoint_step) == (Status.PAUSED, [], view.step)
    client.unpause("paused")
    wait_until("it resumes", lambda: resumptions(client, "paused"))
    assert [f"at step {view.step} " in message for message in resumptions(client, "paused")] == [True]


def test_a_cancelled_trainer_that_is_retried_goes_on_from_its_checkpoint(service: RunningService) -> None:
    client = service.start()
    client.submit(small_spec("again", epochs=100_000, max_nodes=2, checkpoint={"every_s": 0.5}))
    wait_until("it has a checkpoint", lambda: client.trainer("again").checkpoint_step)
    client.cancel("again")
    wait_until("it has left", lambda: not client.cluster().num_fragments)
    assert state_of(client, "again") is TrainerState.CANCELLED
    step = client.trainer("again").checkpoint_step
    client.retry("again")
    wait_until("it resumes", lambda: resumptions(client, "again"))
    (message,) = resumptions(client, "again")
    found = re.search(r"at step (\d+) ", message)
    # Rank 0 may have been writing a newer checkpoint when the trainer was cancelled.
    assert found is not None
    assert step is not None
    assert int(found[1]) >= step > 0


def test_a_paused_trainer_is_made_shorter_and_ends_after_its_new_number_of_epochs(
    shared_service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = shared_service.client()
    client.submit(small_spec("shortened", epochs=100_000, max_nodes=2))
    wait_for_steps(client, "shortened")
    client.pause("shortened", "")
    monkeypatch.setenv("OAKUM_URL", client.address.url)
    monkeypatch.setenv("OAKUM_TOKEN", str(client.address.token))
    load_commands()

    def scaled() -> bool:
        epochs = client.trainer("shortened").epoch + 2
        done = CliRunner().invoke(app, ["scale", "shortened", "--epochs", str(epochs)])
        assert done.exit_code == 0 or "still leaving" in str(done.exception), done.exception
        return done.exit_code == 0

    wait_until("its fragments have left", scaled)
    paused = client.trainer("shortened")
    client.unpause("shortened")
    wait_until("it ends", lambda: state_of(client, "shortened").ended)
    view = client.trainer("shortened")
    assert view.state is TrainerState.FINISHED, view.message
    assert (view.spec.epochs, view.step) == (paused.spec.epochs, view.total_steps)
    assert view.step > paused.step > 0
    assert view.total_steps == paused.total_steps
