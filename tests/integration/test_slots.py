"""The embedded cluster with nodes in parts: a job of one slot takes one fragment, and no other leaves. A fragment
has one slot, or several of one node."""

from __future__ import annotations

from pathlib import Path

import pytest

from oakum_service.documents.slots import node_of
from oakum_service.states import NodeState
from running_service import RunningService, events_of, small_spec, wait_for_size
from waiting import wait_until

_NAME = "elastic"


@pytest.mark.timeout(600)
def test_a_trainer_on_slots_of_two_nodes_loses_one_and_gets_it_back(tmp_path: Path) -> None:
    service = RunningService(tmp_path, nodes=2, OAKUM_LOCAL_SLOTS="2", OAKUM_LOCAL_LOAD="0")
    client = service.start()
    try:
        client.submit(small_spec(_NAME, epochs=100_000, max_nodes=4, ranks_per_node=1, arguments={"step_s": 0.2}))
        wait_for_size(client, _NAME, 4)
        nodes = client.trainer(_NAME).nodes
        assert sorted(nodes) == ["node1:0", "node1:1", "node2:0", "node2:1"]
        launched = len(events_of(client, "fragment.launched"))
        service.take_nodes(1, 20.0)
        wait_until("three slots are left", lambda: len(client.trainer(_NAME).nodes) == 3)
        [taken] = set(nodes) - set(client.trainer(_NAME).nodes)
        states = {node.name: node.state for node in client.nodes().nodes}
        assert [name for name, state in states.items() if state is NodeState.FOREGROUND] == [taken]
        assert node_of(taken) in {node_of(node) for node in client.trainer(_NAME).nodes}, "its neighbour trains on"
        wait_until("the slot is back", lambda: len(client.trainer(_NAME).nodes) == 4)
        assert len(events_of(client, "fragment.launched")) == launched + 1
        assert client.trainer(_NAME).nodes_lost == 1
    finally:
        service.end()


@pytest.mark.timeout(600)
def test_a_fragment_of_two_slots_leaves_as_a_whole_when_a_job_takes_one_of_them(tmp_path: Path) -> None:
    service = RunningService(tmp_path, nodes=2, OAKUM_LOCAL_SLOTS="2", OAKUM_LOCAL_LOAD="0")
    client = service.start()
    try:
        pairs = small_spec(_NAME, epochs=100_000, max_nodes=4, slots_per_fragment=2, arguments={"step_s": 0.2})
        client.submit(pairs)
        wait_for_size(client, _NAME, 4)
        assert sorted(client.trainer(_NAME).nodes) == ["node1:0", "node1:1", "node2:0", "node2:1"]
        launched, gained = len(events_of(client, "fragment.launched")), client.trainer(_NAME).nodes_gained
        assert launched == 2
        service.take_nodes(1, 20.0)
        wait_until("one fragment is left", lambda: len(client.trainer(_NAME).nodes) == 2)
        [kept] = {node_of(node) for node in client.trainer(_NAME).nodes}
        states = {node.name: node.state for node in client.nodes().nodes}
        [taken] = [name for name, state in states.items() if state is NodeState.FOREGROUND]
        assert node_of(taken) != kept
        wait_until(
            "it is told what is missing",
            lambda: "2 slots of one node, and only 1 node has so many idle" in client.explain(_NAME).reason,
        )
        wait_until("both slots are back", lambda: len(client.trainer(_NAME).nodes) == 4)
        assert len(events_of(client, "fragment.launched")) == launched + 1
        trainer = client.trainer(_NAME)
        assert (trainer.nodes_lost, trainer.nodes_gained) == (2, gained + 2)
        wait_until("rates are measured per slot", lambda: client.trainer(_NAME).measured_rates != [])
        assert {rate.nodes for rate in client.trainer(_NAME).measured_rates} <= {2, 4}
    finally:
        service.end()
