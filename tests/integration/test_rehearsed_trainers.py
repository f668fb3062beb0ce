"""Trainers that would be another training on more nodes, handed to a real service."""

from __future__ import annotations

from oakum_service.states import TrainerState
from running_service import RunningService, events_of, small_spec, state_of
from waiting import wait_until


def test_a_sum_for_a_loss_fails_before_its_first_step_and_says_what_to_write(
    shared_service: RunningService,
) -> None:
    client = shared_service.client()
    client.submit(small_spec("summed", entrypoint="small_task:summed_task", max_nodes=2))
    wait_until("it fails", lambda: state_of(client, "summed") is TrainerState.FAILED)
    view = client.trainer("summed")
    assert "It is the sum over the samples: take reduction='mean'" in view.message
    assert view.step == 0


def test_on_one_node_alone_it_trains_and_warns(shared_service: RunningService) -> None:
    client = shared_service.client()
    client.submit(small_spec("summed-alone", entrypoint="small_task:summed_task", max_nodes=1, epochs=2))
    wait_until("it ends", lambda: state_of(client, "summed-alone") is TrainerState.FINISHED)
    warnings = [event.message for event in events_of(client, "trainer.warning") if event.subject == "summed-alone"]
    assert any("It is the sum over the samples" in text for text in warnings)
