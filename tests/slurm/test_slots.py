"""The service on a real Slurm whose jobs share nodes: a GPU is the least that is taken, by us and from us."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oakum_client.rest.client import OakumClient
from oakum_service.config import SlurmSettings
from oakum_service.documents.slots import node_of
from oakum_service.schedulers.slurm.accounting_log import read_accounting
from oakum_service.states import NodeState
from running_service import small_spec
from slurm_service import SlurmService, step_of, wait_for_size
from slurm_site import SlurmSite, wait_until

_NODES, _GPUS = 2, 2
_NAME = "elastic"


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SlurmSite]:
    """Two nodes of two GPUs each, which jobs share."""
    site = SlurmSite.make(nodes=_NODES, gpus=_GPUS, cpus=2 * _GPUS, grace_s=60)
    yield site
    site.down()


@pytest.fixture
def service(shared: SlurmSite, tmp_path: Path) -> Iterator[SlurmService]:
    running = SlurmService(tmp_path, shared, OAKUM_SLURM_SLOTS="gpu")
    yield running
    running.end()


def states_of(client: OakumClient) -> dict[str, NodeState]:
    return {node.name: node.state for node in client.nodes().nodes}


def assert_idle_beside_a_job_of_one_gpu(site: SlurmSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The accounting tells the slots that a job on n001 has left idle, with n002 given as a whole."""
    with monkeypatch.context() as patched:
        for name, value in site.environment.items():
            patched.setenv(name, value)
        job = site.wait_for_sacct(site.submit_gpus(1, run_s=3.0, options=("--nodelist=n001",)))
        assert job.start is not None
        assert job.end is not None
        log = read_accounting(SlurmSettings(partition="fill", slots="gpu"), job.start + 1.0, job.end - 1.0)
    assert log.parts is not None
    assert (log.nodes, log.parts.slots.tolist()) == (("n001:0", "n002:0"), [2, 1])


@pytest.mark.timeout(600)
def test_nodes_of_a_partition_in_which_jobs_get_whole_nodes_are_given_whole_beside_others_in_parts(
    shared: SlurmSite, service: SlurmService, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared.run("scontrol", "update", "PartitionName=main", "Nodes=n001")
    whole = ("PartitionName=big", "Nodes=n002", "OverSubscribe=EXCLUSIVE", "PriorityTier=100", "PreemptMode=OFF")
    shared.run("scontrol", "create", *whole)
    assert_idle_beside_a_job_of_one_gpu(shared, monkeypatch)
    client = service.start()
    wait_until("nodes are known: {}", lambda: len(states_of(client)) == 3, now=lambda: states_of(client))
    assert sorted(states_of(client)) == ["n001:0", "n001:1", "n002"]
    client.submit(small_spec(_NAME, epochs=100_000, max_nodes=3, arguments={"step_s": 0.5}))
    wait_for_size(client, _NAME, 3)
    shown = shared.run("squeue", "--noheader", "--states=RUNNING", "--format=%N %b %h").split("\n")
    assert sorted(filter(None, shown)) == [*["n001 gres:gpu:a100:1 OK"] * 2, "n002 N/A NO"]

    job = shared.submit_gpus(1, run_s=600.0, options=("--partition=big",))
    shared.wait_for_state(job, "RUNNING")
    wait_for_size(client, _NAME, 2)
    wait_until("the job has all of its node", lambda: states_of(client)["n002"] is NodeState.FOREGROUND)


@pytest.mark.timeout(900)
def test_a_job_of_one_gpu_takes_one_fragment_and_disturbs_no_other(
    shared: SlurmSite, service: SlurmService
) -> None:
    began_at = time.time()
    client = service.start()
    client.submit(small_spec(_NAME, epochs=100_000, max_nodes=4, arguments={"step_s": 0.5}))
    wait_for_size(client, _NAME, 4)
    assert sorted(states_of(client)) == ["n001:0", "n001:1", "n002:0", "n002:1"]
    before = {job.id: job.nodes for job in service.own_jobs()}
    assert sorted(before.values()) == ["n001", "n001", "n002", "n002"]

    job = shared.submit_gpus(1, run_s=600.0, options=("--nodelist=n001",))
    wait_for_size(client, _NAME, 3)
    shared.wait_for_state(job, "RUNNING")
    wait_until(
        "the job is seen on its slot", lambda: job in {node.foreground_job for node in client.nodes().nodes}
    )
    [taken] = [node for node in client.nodes().nodes if node.foreground_job == job]
    assert node_of(taken.name) == "n001"
    left = {each.id for each in service.own_jobs() if each.state == "RUNNING"}
    assert left < before.keys(), "nothing was started anew, and nothing else was ended"
    assert len(left) == 3
    assert client.trainer(_NAME).nodes_lost == 1
    step = step_of(client, _NAME)
    wait_until("it trains on", lambda: step_of(client, _NAME) > step)

    shared.run("scancel", job)
    wait_for_size(client, _NAME, 4)
    ours = [row for row in shared.sacct() if row.name.startswith("oakum-") and (row.start or 0.0) >= began_at]
    assert len(ours) == 5
