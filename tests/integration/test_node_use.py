"""What an agent sees of its node reaches the charts of its trainer."""

from __future__ import annotations

from running_service import RunningService, small_spec, wait_for_size
from waiting import wait_until


def test_a_fragments_own_computing_and_memory_are_told(shared_service: RunningService) -> None:
    client = shared_service.client()
    client.submit(small_spec("seen", epochs=100_000, max_nodes=1))
    node = wait_for_size(client, "seen", 1).nodes[0]
    (first, *_) = wait_until("its agent tells", lambda: client.node_use("seen", node).points)
    told = [first.cpu, first.own_cpu, first.memory, first.own_memory]
    cpu, own_cpu, memory, own_memory = (0.0 if share is None else share.mean for share in told)
    assert 0 < own_cpu <= 1
    assert 0 < own_memory < memory <= 1
    assert cpu > 0
    (seen,) = client.node_use("seen").nodes
    assert (seen.node, seen.cores is not None and seen.cores >= 1) == (node, True)
    client.cancel("seen")
