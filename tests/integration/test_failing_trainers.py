"""Trainers whose code is wrong, or whose ranks die again and again: they end soon, and say why."""

from __future__ import annotations

from typing import Any

import pytest

from oakum_service.api.schemas.trainers import AttemptView, TrainerView
from oakum_service.client.oakum_client import OakumClient
from oakum_service.states import TrainerState
from running_service import SEVERAL_STARTS_S, RunningService, events_of, small_spec
from waiting import wait_until


def failing(what: str, name: str = "", **fields: Any) -> TrainerView | Any:
    arguments = {"what": what, **fields.pop("arguments", {})}
    return small_spec(name or what, entrypoint="failing_task:task", arguments=arguments, **fields)


def ended(client: OakumClient, name: str) -> TrainerView:
    wait_until(f"{name} has ended", lambda: client.trainer(name).state.ended, SEVERAL_STARTS_S)
    return client.trainer(name)


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_error_that_is_raised_twice_alike_ends_the_trainer_with_its_traceback(
    shared_service: RunningService, nodes: int
) -> None:
    client = shared_service.client()
    name = f"raises-on-{nodes}"
    client.submit(failing("raises", name, min_nodes=nodes, max_nodes=nodes))
    view = ended(client, name)
    assert view.state is TrainerState.FAILED
    assert view.message == "ValueError: points and labels disagree (the same error twice at step 29)"
    assert 'raise ValueError("points and labels disagree")' in view.traceback
    crashes = [event for event in events_of(client, "fragment.crashed") if event.subject == name]
    assert 1 <= len(crashes) <= nodes


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("memory", "out of memory in step 30: RuntimeError: "),
        ("shape", "the loss has shape (3,)"),
    ],
)
def test_what_is_wrong_in_a_step_is_told_with_what_to_change(
    shared_service: RunningService, what: str, said: str
) -> None:
    client = shared_service.client()
    client.submit(failing(what, max_nodes=1))
    view = ended(client, what)
    assert view.state is TrainerState.FAILED
    assert view.message.startswith(said), view.message
    assert view.message.endswith("(the same error twice at step 29)")
    assert ("lower micro_batch (not set" in view.message) is (what == "memory")


def test_ranks_that_are_killed_around_one_step_end_the_trainer_though_steps_succeed_in_between(
    shared_service: RunningService,
) -> None:
    client = shared_service.client()
    spec = failing(
        "killed", max_nodes=1, arguments={"jitter": True, "step_s": 0.05}, checkpoint={"every_s": 600.0}
    )
    client.submit(spec)

    def attempt() -> AttemptView | None:
        view = client.trainer("killed")
        assert not view.state.ended or view.state is TrainerState.FAILED
        return view.attempt

    first = wait_until("its attempts are told of", attempt, SEVERAL_STARTS_S)
    assert (first.most, "was killed (SIGKILL)" in first.after) == (5, True)
    view = ended(client, "killed")
    assert view.state is TrainerState.FAILED
    assert view.message.startswith("5 attempts ended without getting beyond step "), view.message
    assert "rank 0 was killed (SIGKILL) after step " in view.message
