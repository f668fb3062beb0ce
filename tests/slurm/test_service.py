"""The service on a real Slurm: holes filled, nodes given back, whatever happens to either of them."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oakum_service.states import NodeState, TrainerState
from oakum_worker.spec import TrainerSpec
from running_service import small_spec, state_of, train_alone, wait_for_size
from slurm_service import SlurmService, step_of, wait_for_starts
from slurm_site import SlurmSite
from waiting import wait_until

_GRACE_S = 600
_SOON_S = 200.0
"""Less than the grace, after which Slurm would kill what stays."""


def endless(name: str, **fields: object) -> TrainerSpec:
    """The spec of an endless trainer on one node: each start of a fragment imports torch afresh, for some seconds
    of CPU time."""
    return small_spec(name, **({"epochs": 100_000, "max_nodes": 1} | fields))


@pytest.mark.timeout(1200)
def test_two_trainers_fill_the_cluster_give_way_to_every_job_and_end_as_if_alone(
    slurm: SlurmSite, service: SlurmService, tmp_path: Path
) -> None:
    began_at = time.time()
    client, gate = service.start(), tmp_path / "gate"
    paced = {"entrypoint": "small_task:paced_task", "arguments": {"gate": str(gate), "step_s": 1.0}, "epochs": 60}
    specs = [small_spec(name, seed=seed, max_nodes=2, **paced) for name, seed in (("first", 3), ("second", 4))]
    jobs = [slurm.submit_foreground(nodes=4, run_s=600.0)]
    for spec in specs:
        client.submit(spec)
    for spec in specs:
        wait_for_size(client, spec.name, 2)
    until_seen = f"until test -e {tmp_path}/seen; do sleep 0.1; done"
    jobs += [slurm.submit("main", until_seen) for _ in range(2)]
    wait_until("all are seen to start", lambda: client.cluster().foreground_jobs_started == len(jobs))
    (tmp_path / "seen").touch()
    for job in jobs[1:]:
        assert slurm.wait_for_end(job) == "COMPLETED"
    gate.touch()
    wait_until("both end", lambda: all(state_of(client, spec.name).ended for spec in specs))
    for spec in specs:
        view = client.trainer(spec.name)
        assert view.state is TrainerState.FINISHED, view.message
        assert view.loss == pytest.approx(train_alone(spec, tmp_path)["loss"], rel=1e-9)
    assert any(client.trainer(spec.name).nodes_lost for spec in specs)
    wait_until("no job of ours is left", lambda: not service.running())
    service.assert_one_at_a_time(began_at)
    assert client.cluster().foreground_jobs_started == len(jobs)


def test_a_killed_service_is_missed_by_nobody_and_finds_its_fragments_again(
    slurm: SlurmSite, service: SlurmService
) -> None:
    began_at = time.time()
    client = service.start()
    client.submit(endless("elastic", max_nodes=2))
    wait_for_size(client, "elastic", 2)
    service.kill()
    job = slurm.submit_foreground(nodes=7, run_s=1.0)
    slurm.wait_for_end(job)
    survivors = service.running()
    client = service.start()
    assert f"{survivors} fragments adopted, 0 orphans" in wait_for_starts(client, 2)[-1]
    before = step_of(client, "elastic")
    wait_for_size(client, "elastic", 2)
    wait_until("it trains on", lambda: step_of(client, "elastic") > before + 10)
    service.assert_one_at_a_time(began_at)


def test_a_hung_service_keeps_no_job_waiting(slurm: SlurmSite, service: SlurmService) -> None:
    slurm.set_grace(_GRACE_S)
    client = service.start()
    client.submit(endless("elastic"))
    wait_for_size(client, "elastic", 1)
    assert service.process is not None
    os.kill(service.process.pid, signal.SIGSTOP)
    job = slurm.submit_foreground(nodes=8, run_s=1.0)
    assert slurm.wait_for_end(job, timeout_s=_SOON_S) == "COMPLETED"
    os.kill(service.process.pid, signal.SIGCONT)
    before = step_of(client, "elastic")
    wait_until("it trains on", lambda: step_of(client, "elastic") > before + 10)


def test_training_outlives_a_restart_of_slurmctld_and_a_node_that_goes_down(
    slurm: SlurmSite, service: SlurmService
) -> None:
    began_at = time.time()
    client = service.start()
    client.submit(endless("elastic", max_nodes=2))
    wait_for_size(client, "elastic", 2)
    before = step_of(client, "elastic")
    slurm.restart_slurmctld()
    # A node that registers with the new one is put back, whatever it was set to before.
    slurm.wait_until(
        "all nodes have registered: {}",
        lambda: set(slurm.node_states().values()) <= {"idle", "allocated"},
        now=slurm.node_states,
    )
    wait_until("it trains on", lambda: step_of(client, "elastic") > before + 10)
    lost = client.trainer("elastic").nodes[0]
    slurm.set_node(lost, "DOWN")
    # Down alone would only last until it registers again: `ReturnToService=2`.
    slurm.set_node(lost, "DRAIN")
    wait_until(
        "the node is not used",
        lambda: {n.name: n.state for n in client.nodes().nodes}[lost] is NodeState.UNAVAILABLE,
    )
    wait_until("others are", lambda: len((v := client.trainer("elastic")).nodes) == 2 and lost not in v.nodes)
    slurm.set_node(lost, "RESUME")
    wait_until(
        "it is a hole again", lambda: {n.name: n.state for n in client.nodes().nodes}[lost] is NodeState.HOLE
    )
    after = step_of(client, "elastic")
    wait_until("it trains on", lambda: step_of(client, "elastic") > after + 10)
    service.assert_one_at_a_time(began_at)


def test_a_locked_database_keeps_no_job_waiting(slurm: SlurmSite, service: SlurmService) -> None:
    slurm.set_grace(_GRACE_S)
    client = service.start()
    client.submit(endless("elastic"))
    wait_for_size(client, "elastic", 1)
    database = sqlite3.connect(service.data_dir / "oakum.db", isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    try:
        job = slurm.submit_foreground(nodes=8, run_s=1.0)
        assert slurm.wait_for_end(job, timeout_s=_SOON_S) == "COMPLETED"
    finally:
        database.close()
    before = step_of(client, "elastic")
    wait_until("it trains on", lambda: step_of(client, "elastic") > before + 10)


def test_a_job_that_gets_no_node_is_withdrawn(slurm: SlurmSite, service: SlurmService) -> None:
    service.configure(OAKUM_SLURM_PENDING_LIMIT_S="5")
    client = service.start()
    slurm.run("scontrol", "update", "PartitionName=fill", "State=DOWN")
    try:
        client.submit(endless("elastic"))
        waiting = wait_until(
            "jobs of ours wait", lambda: [j.id for j in slurm.jobs() if j.name.startswith("oakum-")]
        )
        for job in waiting:
            assert slurm.wait_for_end(job) == "CANCELLED"
    finally:
        slurm.run("scontrol", "update", "PartitionName=fill", "State=UP")
    wait_for_size(client, "elastic", 1)


def test_a_job_in_our_name_that_nobody_knows_of_is_cancelled(slurm: SlurmSite, service: SlurmService) -> None:
    """Such a job is left behind by a submission whose answer was lost."""
    client = service.start()
    client.submit(endless("elastic"))
    wait_for_size(client, "elastic", 1)
    [known] = [job for job in slurm.jobs() if job.name.startswith("oakum-")]
    instance = known.name.split("-")[1]
    orphan = slurm.submit("fill", "sleep 600", name=f"oakum-{instance}-lost")
    stranger = slurm.submit("fill", "sleep 600", name="oakum-00000000-lost")
    assert slurm.wait_for_end(orphan) == "CANCELLED"
    for job in (known.id, stranger):
        slurm.wait_for_state(job, "RUNNING")


def test_a_hold_gives_every_node_back_until_it_ends(slurm: SlurmSite, service: SlurmService) -> None:
    client = service.start()
    client.submit(endless("elastic"))
    wait_for_size(client, "elastic", 1)
    client.hold("maintenance")
    wait_until("no job is left", lambda: not service.running())
    held: Any = wait_until(
        "its last words are heard",
        lambda: (view := client.trainer("elastic")).checkpoint_step == view.step and view,
    )
    assert held.state is TrainerState.WAITING
    client.resume()
    wait_for_size(client, "elastic", 1)
    assert step_of(client, "elastic") >= held.step


def test_a_dry_run_plans_and_submits_nothing(slurm: SlurmSite, service: SlurmService) -> None:
    service.configure(OAKUM_DRY_RUN="true")
    client = service.start()
    client.submit(endless("elastic", max_nodes=2))
    made = "elastic 2"
    wait_until("it is planned", lambda: any(e.message == made for e in client.recent_events(50).events))
    assert len(client.plan().allocations[0].nodes) == 2
    assert client.cluster().dry_run
    service.assert_one_at_a_time(time.time())
    assert not [job for job in slurm.jobs() if job.name.startswith("oakum-")]


@pytest.fixture
def by_qos(tmp_path: Path) -> Iterator[SlurmService]:
    """A service on a small cluster of its own where a QOS, not a partition, is what may be preempted."""
    site = SlurmSite.make(nodes=1, preemption="qos", grace_s=_GRACE_S, kill_wait_s=60)
    running = SlurmService(tmp_path, site, OAKUM_SLURM_PREEMPTION="qos", OAKUM_SLURM_QOS="fill")
    yield running
    site.cancel_all()
    running.end()
    site.down()


def test_nodes_are_given_back_where_a_qos_may_be_preempted(by_qos: SlurmService) -> None:
    client, site = by_qos.start(), by_qos.site
    client.submit(endless("elastic"))
    wait_for_size(client, "elastic", 1)
    rows = wait_until("sacct knows", lambda: rows if (rows := by_qos.jobs()) else None)
    assert {row.qos for row in rows} == {"fill"}
    job = site.submit_foreground(nodes=1, run_s=1.0)
    assert site.wait_for_end(job, timeout_s=_SOON_S) == "COMPLETED"
    before = step_of(client, "elastic")
    wait_for_size(client, "elastic", 1)
    wait_until("it trains on", lambda: step_of(client, "elastic") > before)
    assert before > 0
