"""A trainer whose code is wrong ends soon, and says why.

What is counted as an attempt, and what people are told of it, is shown by `tests/unit/service/test_attempts.py`;
the words for lack of memory by `tests/unit/worker/test_failures.py`.
"""

from __future__ import annotations

from oakum_service.states import TrainerState
from running_service import SEVERAL_STARTS_S, RunningService, events_of, small_spec
from waiting import wait_until


def test_an_error_that_is_raised_twice_alike_ends_the_trainer_with_its_traceback(
    shared_service: RunningService,
) -> None:
    """Raised by both ranks, and by a rank alone that says what to change."""
    client = shared_service.client()
    for what, nodes in (("raises", 2), ("memory", 1)):
        arguments = {"entrypoint": "failing_task:task", "arguments": {"what": what}}
        client.submit(small_spec(what, min_nodes=nodes, max_nodes=nodes, **arguments))
    for what in ("raises", "memory"):
        wait_until(f"{what} has ended", lambda what=what: client.trainer(what).state.ended, SEVERAL_STARTS_S)
    raises, memory = client.trainer("raises"), client.trainer("memory")
    assert (raises.state, memory.state) == (TrainerState.FAILED, TrainerState.FAILED)
    assert raises.message == "ValueError: points and labels disagree (the same error twice at step 29)"
    assert 'raise ValueError("points and labels disagree")' in raises.traceback
    crashes = [event for event in events_of(client, "fragment.crashed") if event.subject == "raises"]
    assert 1 <= len(crashes) <= 2
    assert memory.message.startswith("out of memory in step 30: RuntimeError: "), memory.message
    assert memory.message.endswith("(the same error twice at step 29)")
    assert "lower micro_batch (not set" in memory.message
