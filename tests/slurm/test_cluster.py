"""`make slurm` makes a real cluster, which can be removed without a trace."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_cluster import processes
from slurm_cluster.errors import ClusterError
from slurm_cluster.options import ClusterOptions
from slurm_site import SlurmSite


@pytest.fixture
def small() -> Iterator[SlurmSite]:
    """A cluster of two nodes of the test's own."""
    site = SlurmSite.make(nodes=2)
    yield site
    site.down()


def test_a_foreground_job_runs_on_the_nodes_it_asks_for(slurm: SlurmSite) -> None:
    job = slurm.submit_foreground(nodes=6, run_s=0.1)
    row = slurm.wait_for_sacct(job)
    assert (row.state, row.partition, row.nodes, row.user) == ("COMPLETED", "main", "n[001-006]", "root")
    assert row.submit is not None
    assert row.start is not None
    assert row.submit <= row.start <= time.time() + 1


def test_an_unprivileged_account_may_submit(slurm: SlurmSite) -> None:
    job = slurm.submit("fill", "test $(id -un) = nobody", user="nobody")
    row = slurm.wait_for_sacct(job)
    assert (row.state, row.user) == ("COMPLETED", "nobody")


def test_each_node_knows_its_own_name_and_address(slurm: SlurmSite) -> None:
    printed = slurm.run("srun", "--partition=main", "--nodes=8", "--exclusive", "hostname").split()
    assert sorted(printed) == [f"n{number:03}" for number in range(1, 9)]
    assert slurm.run("srun", "--partition=main", "getent", "hosts", "n008").split()[0] == "127.0.0.1"


def test_a_step_that_leaves_on_sigterm_lets_a_foreground_job_start_at_once(slurm: SlurmSite) -> None:
    slurm.set_grace(60)
    fills = [slurm.submit("fill", "exec sleep 300") for _ in range(8)]
    slurm.wait_for_steps("sleep", len(fills))
    job = slurm.submit_foreground(nodes=6, run_s=0.1)
    row = slurm.wait_for_sacct(job)
    assert row.state == "COMPLETED"
    assert sum(slurm.state_of(fill) == "RUNNING" for fill in fills) == 2


def test_a_step_without_grace_is_killed_and_accounted_as_preempted(small: SlurmSite) -> None:
    small.set_grace(0)
    fill = small.submit("fill", "trap '' TERM; while :; do sleep 1; done", nodes=2)
    small.wait_for_state(fill, "RUNNING")
    job = small.submit_foreground(nodes=1, run_s=0.1)
    assert small.wait_for_sacct(fill).state == "PREEMPTED"
    assert small.wait_for_sacct(job).state == "COMPLETED"


def test_jobs_survive_a_restart_of_the_controller(slurm: SlurmSite) -> None:
    job = slurm.submit_foreground(nodes=2, run_s=300)
    slurm.wait_for_state(job, "RUNNING")
    slurm.restart_slurmctld()
    assert [(found.id, found.state) for found in slurm.jobs()] == [(job, "RUNNING")]


def test_the_next_test_finds_nothing_of_a_job_that_a_killed_controller_forgot(slurm: SlurmSite) -> None:
    slurm.submit("main", "exec sleep 300", nodes=2)
    slurm.wait_until("its steps run", lambda: "sleep" in slurm.processes().values())
    slurm.kill("slurmctld")
    slurm.clean()
    assert "slurmstepd" not in slurm.processes().values()
    assert "sleep" not in slurm.processes().values()


def test_a_second_up_changes_nothing(small: SlurmSite) -> None:
    before = small.cluster.record()
    assert small.cluster.up(ClusterOptions(nodes=5)) is False
    assert small.cluster.record() == before


def test_down_leaves_no_process_no_mount_and_no_file(small: SlurmSite) -> None:
    mark = small.cluster.record().mark
    small.submit("main", "trap '' TERM; sleep 600 & sleep 600", nodes=2)
    small.wait_for_steps("sleep", 4)
    small.down()
    assert not small.folder.exists()
    assert processes.of_mark(mark) == {}
    assert _naming(str(small.folder)) == []
    assert str(small.folder) not in Path("/proc/self/mounts").read_text(encoding="utf-8")


def test_what_a_killed_cluster_left_is_no_hindrance(small: SlurmSite) -> None:
    killed = small.cluster.record().mark
    processes.kill_mark(killed)
    assert not small.cluster.is_up()
    small.up(nodes=1)
    assert small.node_states() == {"n001": "idle"}
    assert small.cluster.record().mark != killed


def test_a_half_started_cluster_is_replaced() -> None:
    site = SlurmSite.make(nodes=1)
    try:
        site.kill("slurmctld")
        before = site.processes()
        site.up(nodes=1)
        assert not before.keys() & site.processes().keys()
        assert site.cluster.is_up()
    finally:
        site.down()


def test_without_preemption_a_foreground_job_waits() -> None:
    site = SlurmSite.make(nodes=1, preemption="none")
    try:
        fill = site.submit("fill", "exec sleep 300")
        site.wait_for_state(fill, "RUNNING")
        job = site.submit_foreground(nodes=1, run_s=0.1)
        site.wait_until("the job waits for nodes", lambda: "Resources" in site.run("squeue", "--format=%r"))
        site.run("scancel", fill)
        assert site.wait_for_sacct(job).state == "COMPLETED"
    finally:
        site.down()


def test_a_folder_of_other_things_is_left_alone(slurm: SlurmSite, tmp_path: Path) -> None:
    folder = slurm.folder.parent / f"{slurm.folder.name}-other"
    folder.mkdir()
    try:
        (folder / "thesis.tex").write_text("precious")
        site = SlurmSite(folder)
        with pytest.raises(ClusterError, match="holds other things than a cluster"):
            site.up(nodes=1)
        with pytest.raises(ClusterError, match="holds other things than a cluster"):
            site.down()
        assert (folder / "thesis.tex").read_text() == "precious"
    finally:
        (folder / "thesis.tex").unlink()
        folder.rmdir()


def _naming(text: str) -> list[int]:
    """Processes with the text in their command line or environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            content = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in content:
            found.append(int(folder.name))
    return found
