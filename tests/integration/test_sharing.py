"""Caps, priorities and an administrator's own objective, in a service that runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from running_service import EXAMPLES, TASKS, RunningService, small_spec, wait_for_size
from waiting import wait_until


@pytest.fixture
def capped(tmp_path: Path) -> Iterator[RunningService]:
    """A service of four nodes, of which nobody gets more than three."""
    running = RunningService(tmp_path, PYTHONPATH=f"{EXAMPLES}:{TASKS}", OAKUM_USER_CAP="3")
    yield running
    running.end()


def test_a_user_gets_no_more_than_the_cap_and_is_told_so(capped: RunningService) -> None:
    client = capped.start("--objective", "weight * samples / rate_one")
    client.submit(small_spec("digits", epochs=100_000))
    assert wait_for_size(client, "digits", 3).user == "local-admin"
    told = client.explain("digits")
    assert (told.granted, told.why) == (3, "user_cap")
    assert told.reason == "Trains on 3 nodes: local-admin's trainers have 3 of the 3 nodes that they may have."
    assert client.plan().objective == "weight * samples / rate_one"


def test_a_trainer_of_a_higher_priority_takes_nodes_whatever_the_others_gain(service: RunningService) -> None:
    client = service.start()
    client.submit(small_spec("usual", epochs=100_000, weight=1000.0))
    wait_for_size(client, "usual", 4)
    client.submit(small_spec("urgent", epochs=100_000, priority=1))
    wait_for_size(client, "urgent", 4)
    told: Any = wait_until(
        "the plan says why", lambda: (told := client.explain("usual")).why == "priority" and told
    )
    assert told.reason.endswith("every node has gone to trainers of a higher priority, such as urgent.")
