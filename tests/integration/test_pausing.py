"""A trainer that is paused, retried or made shorter, with a real service: it goes on where it stopped."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from oakum_client.cli import load_commands
from oakum_client.cli.app import app
from oakum_client.rest.client import OakumClient
from oakum_service.standing import Status
from oakum_service.states import TrainerState
from running_service import RunningService, small_spec, state_of, wait_for_size, wait_for_steps
from waiting import wait_until


def resumptions(client: OakumClient, name: str) -> list[str]:
    events = client.recent_events(500).events
    return [e.message for e in events if e.subject == name and "resumes from its checkpoint" in e.message]


def test_a_trainer_that_is_paused_cancelled_retried_and_made_shorter_goes_on_where_it_stopped(
    shared_service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = shared_service.client()
    # The higher priority is what it gets its nodes back by: both trainers may gain equally from these.
    checkpoint = {"every_s": 0.5}
    client.submit(small_spec("stopped", epochs=100_000, max_nodes=1, priority=1, checkpoint=checkpoint))
    client.submit(small_spec("other", epochs=100_000, max_nodes=4))
    wait_for_size(client, "stopped", 1)
    wait_for_steps(client, "stopped")
    a_pause_gives_its_nodes_to_the_other(client)
    a_cancelled_one_does_too_and_goes_on_when_it_is_retried(client)
    client.cancel("other")
    monkeypatch.setenv("OAKUM_URL", client.address.url)
    monkeypatch.setenv("OAKUM_TOKEN", str(client.address.token))
    while_it_is_paused_it_is_made_shorter_and_then_ends(client)


def a_pause_gives_its_nodes_to_the_other(client: OakumClient) -> None:
    client.pause("stopped", "its data moves")
    wait_for_size(client, "other", 4)
    view = client.trainer("stopped")
    assert (view.status, view.nodes, view.checkpoint_step) == (Status.PAUSED, [], view.step)
    client.unpause("stopped")
    wait_until("it resumes", lambda: resumptions(client, "stopped"))
    assert [f"at step {view.step:,} " in message for message in resumptions(client, "stopped")] == [True]


def a_cancelled_one_does_too_and_goes_on_when_it_is_retried(client: OakumClient) -> None:
    wait_for_size(client, "other", 3)
    before = len(resumptions(client, "stopped"))
    client.cancel("stopped")
    wait_for_size(client, "other", 4)
    cancelled = client.trainer("stopped")
    assert cancelled.state is TrainerState.CANCELLED
    client.retry("stopped")
    wait_until("it resumes", lambda: len(resumptions(client, "stopped")) > before)
    found = re.search(r"at step ([\d,]+) ", resumptions(client, "stopped")[-1])
    # Rank 0 may have been writing a newer checkpoint when the trainer was cancelled.
    assert found is not None
    assert cancelled.checkpoint_step is not None
    assert int(found[1].replace(",", "")) >= cancelled.checkpoint_step > 0


def while_it_is_paused_it_is_made_shorter_and_then_ends(client: OakumClient) -> None:
    wait_for_steps(client, "stopped")
    client.pause("stopped", "")
    load_commands()

    def scaled() -> bool:
        epochs = client.trainer("stopped").epoch + 2
        done = CliRunner().invoke(app, ["scale", "stopped", "--epochs", str(epochs)])
        assert done.exit_code == 0 or "still leaving" in str(done.exception), done.exception
        return done.exit_code == 0

    wait_until("its fragments have left", scaled)
    paused = client.trainer("stopped")
    client.unpause("stopped")
    wait_until("it ends", lambda: state_of(client, "stopped").ended)
    view = client.trainer("stopped")
    assert view.state is TrainerState.FINISHED, view.message
    assert (view.spec.epochs, view.step) == (paused.spec.epochs, view.total_steps)
    assert view.step > paused.step > 0
    assert view.total_steps == paused.total_steps
