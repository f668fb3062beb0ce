"""The embedded cluster with time limits, as clusters have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from oakum_worker.spec import TrainerSpec
from running_service import RunningService, events_of, small_spec
from waiting import wait_until

_NAME = "small"
_LIMIT_S = 60.0


def _spec() -> TrainerSpec:
    return small_spec(_NAME, epochs=100_000, max_nodes=1, ranks_per_node=1, arguments={"step_s": 0.1})


@pytest.mark.timeout(600)
def test_a_trainer_on_one_node_trains_on_beyond_its_fragments_time_limit(tmp_path: Path) -> None:
    limit = {"OAKUM_LOCAL_LOAD": "0", "OAKUM_LOCAL_TIME_LIMIT_S": str(_LIMIT_S)}
    service = RunningService(tmp_path, nodes=2, **limit)
    client = service.start()
    try:
        client.submit(_spec())
        wait_until("it trains", lambda: client.trainer(_NAME).nodes)
        [first] = client.trainer(_NAME).nodes
        wait_until("a successor is named", lambda: events_of(client, "fragment.renewed"), _LIMIT_S)
        [other] = {"node1", "node2"} - {first}
        said = events_of(client, "fragment.renewed")[0].message
        assert said.startswith(f"{first} reaches its time limit in ")
        assert said.endswith(f", and {other} takes over")
        wait_until("the successor trains alone", lambda: client.trainer(_NAME).nodes == [other], _LIMIT_S)
        assert len(events_of(client, "trainer.running")) == 1
        assert events_of(client, "trainer.waiting") == []
        [left] = wait_until("the first fragment has ended", lambda: events_of(client, "fragment.left"))
        assert left.message == f"{first}: released"
    finally:
        service.end()
