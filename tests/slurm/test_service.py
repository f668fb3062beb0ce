"""The service on a real Slurm: holes filled, nodes given back, whatever happens to either of them."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from oakum_client.rest.client import OakumClient
from oakum_service.api.schemas.trainers import TrainerChange
from oakum_service.states import NodeState, TrainerState
from oakum_worker.spec import TrainerSpec
from running_service import events_of, small_spec
from slurm_service import SlurmService, foreground_jobs, step_of, wait_for_size, wait_for_starts
from slurm_site import SlurmSite, wait_until

_GRACE_S = 600
_SOON_S = 200.0
"""Less than the grace, after which Slurm would kill what stays."""
_NAME = "elastic"


def endless(max_nodes: int = 1) -> TrainerSpec:
    """The spec of an endless trainer whose steps take their time: each start of a fragment imports torch afresh,
    for some seconds of CPU time, and so does each minute of short steps."""
    return small_spec(_NAME, epochs=100_000, max_nodes=max_nodes, arguments={"step_s": 0.5})


@pytest.mark.timeout(1200)
def test_a_trainer_goes_on_and_no_job_waits_whatever_happens_to_service_slurm_and_nodes(
    slurm: SlurmSite, service: SlurmService
) -> None:
    """Four fragments, of which each act takes one. Foreground jobs have all other nodes, and keep what they get: a
    node that nobody takes would have another fragment start."""
    slurm.set_grace(_GRACE_S)
    began_at = time.time()
    client = service.start()
    slurm.occupy(4)
    client.submit(endless(max_nodes=4))
    wait_for_size(client, _NAME, 4)
    _slurmctld_restarts(slurm, service, client)
    _a_node_goes_down_and_comes_back(slurm, service, client)
    client = _the_service_is_killed(slurm, service, client)
    _the_database_is_locked(slurm, service, client)
    _the_service_hangs(slurm, service, client)
    _nodes_are_held(slurm, service, client)
    service.assert_one_at_a_time(began_at)


def _slurmctld_restarts(slurm: SlurmSite, service: SlurmService, client: OakumClient) -> None:
    """Slurmctld is restarted: training goes on; nothing is lost."""
    before = {job.id: job.nodes for job in service.own_jobs()}
    slurm.restart_slurmctld()
    # A node that registers with the new one is put back, whatever it was set to before.
    slurm.wait_until(
        "all nodes have registered: {}",
        lambda: set(slurm.node_states().values()) <= {"idle", "allocated"},
        now=slurm.node_states,
    )
    _trains_on(client, 4, "after the restart of slurmctld")
    assert {job.id: job.nodes for job in service.own_jobs()} == before
    assert client.trainer(_NAME).nodes_lost == 0


def _a_node_goes_down_and_comes_back(slurm: SlurmSite, service: SlurmService, client: OakumClient) -> None:
    """A node is drained: its fragment leaves in order and the trainer goes on without it. It goes down, and is not
    used until Slurm shows it up again.

    On the node that has come back, a job in our name that nobody knows of is cancelled, as one is that was left
    behind by a submission whose answer was lost; another service's job is not.
    """

    def state_of_node() -> NodeState:
        return {node.name: node.state for node in client.nodes().nodes}[lost]

    known = _own_ids(service)
    lost = client.trainer(_NAME).nodes[0]
    nodes_lost = client.trainer(_NAME).nodes_lost
    slurm.set_node(lost, "DRAIN")
    wait_until("the drained node is not used", lambda: state_of_node() is NodeState.UNAVAILABLE)
    _trains_on(client, 3, "without the drained node")
    wait_until("its job has ended", lambda: not [job for job in slurm.jobs() if job.nodes == lost])
    assert client.trainer(_NAME).nodes_lost == nodes_lost, "it left in order"
    # Down alone would only last until it registers again: `ReturnToService=2`.
    slurm.set_node(lost, "DOWN")
    slurm.set_node(lost, "DRAIN")
    assert lost not in client.trainer(_NAME).nodes
    assert not [job for job in slurm.jobs() if job.nodes == lost]
    client.change(_NAME, TrainerChange(max_nodes=3))
    slurm.set_node(lost, "RESUME")
    wait_until("the node that came back is a hole", lambda: state_of_node() is NodeState.HOLE)

    def ids_of_three() -> set[str] | None:
        found = _own_ids(service)
        return found if len(found) == 3 else None

    # A plan that was made before the change may have started one more, which the next plan ends.
    left = wait_until("three fragments are left", ids_of_three)
    assert left < known
    [instance] = {job.name.split("-")[1] for job in service.own_jobs()}
    orphan = slurm.submit("fill", "sleep 600", name=f"oakum-{instance}-lost")
    stranger = slurm.submit("fill", "sleep 600", name="oakum-00000000-lost")
    assert slurm.wait_for_end(orphan) == "CANCELLED", "nobody knows of the job in our name"
    for job in (*left, stranger):
        slurm.wait_for_state(job, "RUNNING")
    occupant = slurm.occupy(1, f"--nodelist={lost}")
    wait_until("the job on the node that came back is seen", lambda: foreground_jobs(client)[lost] == occupant)


def _the_service_is_killed(slurm: SlurmSite, service: SlurmService, client: OakumClient) -> OakumClient:
    """The service is killed: a foreground job gets its node from Slurm, and a restarted service adopts the
    fragments that still run and counts the job."""
    starts, jobs = len(events_of(client, "service.started")), client.cluster().foreground_jobs_started
    service.kill()
    slurm.occupy(1)
    assert service.running() == 2, "of three fragments, the job has needed one node"
    survivors = {job.id for job in service.own_jobs() if job.state == "RUNNING"}
    service.configure(OAKUM_SLURM_PENDING_LIMIT_S="8")  # for `_nodes_are_held`
    client = service.start()
    assert "2 fragments adopted, 0 orphans" in wait_for_starts(client, starts + 1)[-1]
    wait_until("the job is counted", lambda: client.cluster().foreground_jobs_started == jobs + 1)
    _trains_on(client, 2, "under the restarted service")
    assert _own_ids(service) == survivors
    return client


def _the_database_is_locked(slurm: SlurmSite, service: SlurmService, client: OakumClient) -> None:
    """The database is locked: foreground jobs take nodes as always, long before the grace is over."""
    database = sqlite3.connect(service.data_dir / "oakum.db", isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    try:
        slurm.occupy(1, timeout_s=_SOON_S)
    finally:
        database.close()
    _trains_on(client, 1, "once the database is not locked any more")


def _the_service_hangs(slurm: SlurmSite, service: SlurmService, client: OakumClient) -> None:
    """The service hangs: a foreground job gets the last fragment's node long before the grace is over, and the
    trainer goes on from what that fragment has saved."""
    redone = _redone_steps(client)
    assert service.process is not None
    os.kill(service.process.pid, signal.SIGSTOP)
    job = slurm.occupy(1, timeout_s=_SOON_S)
    os.kill(service.process.pid, signal.SIGCONT)
    slurm.run("scancel", job)
    _trains_on(client, 1, "once the service hangs no more")
    assert _redone_steps(client) == redone


def _nodes_are_held(slurm: SlurmSite, service: SlurmService, client: OakumClient) -> None:
    """A hold gives every node back, with a checkpoint, until it ends. While the partition is then down, nothing is
    submitted, and that is told."""
    redone = _redone_steps(client)
    client.hold("maintenance")
    wait_until("no job is left while nodes are held", lambda: not service.running())
    held: Any = wait_until(
        "its last words are heard",
        lambda: (view := client.trainer(_NAME)).checkpoint_step == view.step and view,
    )
    assert held.state is TrainerState.WAITING
    slurm.run("scontrol", "update", "PartitionName=fill", "State=DOWN")
    try:
        # What the service has not seen yet keeps it from nothing: the job would wait in Slurm.
        wait_until(
            "it is seen", lambda: "scheduler.closed" in {each.kind for each in client.recent_events(200).events}
        )
        assert not _own_ids(service), "nothing is submitted while nodes are held"
        client.resume()
        wait_until("it is told", lambda: "partition fill is DOWN" in client.trainer(_NAME).reason)
        assert not _own_ids(service), "nothing is submitted into a partition that is down"
    finally:
        slurm.run("scontrol", "update", "PartitionName=fill", "State=UP")
    _trains_on(client, 1, "after the hold")
    assert step_of(client, _NAME) > held.step
    assert _redone_steps(client) == redone


def _own_ids(service: SlurmService) -> set[str]:
    return {job.id for job in service.own_jobs()}


def _redone_steps(client: OakumClient) -> int:
    spent = client.trainer(_NAME).time_spent
    assert spent is not None
    return spent.redone_steps


def _trains_on(client: OakumClient, nodes: int, when: str) -> None:
    """Wait until the trainer is on so many nodes, and has finished four steps more."""
    wait_until(
        f"it is on {nodes} nodes {when}: {{}}",
        lambda: len(client.trainer(_NAME).nodes) == nodes,
        now=lambda: client.trainer(_NAME),
    )
    before = step_of(client, _NAME)
    wait_until(f"it trains on {when}", lambda: step_of(client, _NAME) > before + 3)


def test_a_slurmctld_that_hangs_or_is_killed_is_told_of_soon_and_training_goes_on(
    slurm: SlurmSite, tmp_path: Path
) -> None:
    """Also where its state is read once in ten minutes."""
    service = SlurmService(tmp_path, slurm, OAKUM_SLURM_POLL_FLOOR_S="600")
    try:
        client = service.start()
        client.submit(endless())
        wait_for_size(client, _NAME, 1)
        (slurmctld,) = [pid for pid, name in slurm.processes().items() if name == "slurmctld"]
        acts: list[tuple[signal.Signals, Callable[[], object]]] = [
            (signal.SIGSTOP, lambda: os.kill(slurmctld, signal.SIGCONT)),
            (signal.SIGKILL, slurm.cluster.start_slurmctld),
        ]
        for act, go_on in acts:
            began_s = time.monotonic()
            os.kill(slurmctld, act)
            silence = wait_until("it is told", lambda: client.cluster().silence)
            took_s = time.monotonic() - began_s
            ready = httpx.get(f"{client.address.url}/readyz")
            go_on()
            assert took_s < 45.0, silence  # half a minute, and a machine that is busy with tests
            assert ready.status_code == 503
            assert "slurm has not answered since" in ready.text
            wait_until("it is over", lambda: client.cluster().silence is None)
            _trains_on(client, 1, f"after {act.name} of slurmctld")
        assert client.trainer(_NAME).nodes_lost == 0
        assert len(events_of(client, "scheduler.silent")) == 2
    finally:
        service.end()


def test_a_dry_run_plans_and_submits_nothing(slurm: SlurmSite, service: SlurmService) -> None:
    service.configure(OAKUM_DRY_RUN="true")
    client = service.start()
    client.submit(endless(max_nodes=2))
    made = f"gives 2 nodes to {_NAME}"
    wait_until("it is planned", lambda: any(e.message == made for e in client.recent_events(50).events))
    assert len(client.plan().allocations[0].nodes) == 2
    assert client.cluster().dry_run
    service.assert_one_at_a_time(time.time())
    assert not service.own_jobs()


@pytest.fixture
def by_qos(tmp_path: Path) -> Iterator[SlurmService]:
    """A service on a small cluster of its own where a QOS, not a partition, is what may be preempted."""
    site = SlurmSite.make(nodes=1, preemption="qos", grace_s=_GRACE_S, kill_wait_s=60)
    running = SlurmService(tmp_path, site, OAKUM_SLURM_PREEMPTION="qos", OAKUM_SLURM_QOS="fill")
    yield running
    running.end()
    site.down()


def test_nodes_are_given_back_where_a_qos_may_be_preempted(by_qos: SlurmService) -> None:
    client, site = by_qos.start(), by_qos.site
    client.submit(endless())
    wait_for_size(client, _NAME, 1)
    rows = wait_until("sacct knows", lambda: rows if (rows := by_qos.jobs()) else None)
    assert {row.qos for row in rows} == {"fill"}
    job = site.occupy(1, timeout_s=_SOON_S)
    held: Any = wait_until(
        "its last words are heard",
        lambda: (view := client.trainer(_NAME)).checkpoint_step == view.step and view,
    )
    assert held.step > 0
    wait_until("the job is seen", lambda: set(foreground_jobs(client).values()) == {job})
