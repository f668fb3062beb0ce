"""`make slurm` makes a real cluster, which can be removed without a trace."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from slurm_cluster import processes
from slurm_cluster.errors import ClusterError
from slurm_cluster.options import ClusterOptions
from slurm_site import SlurmSite


def test_jobs_run_on_the_nodes_they_ask_for_as_whoever_has_submitted_them(slurm: SlurmSite) -> None:
    job = slurm.submit_foreground(nodes=6, run_s=0.1)
    unprivileged = slurm.submit("fill", "test $(id -un) = nobody", user="nobody")
    row = slurm.wait_for_sacct(job)
    assert (row.state, row.partition, row.nodes, row.user) == ("COMPLETED", "main", "n[001-006]", "root")
    assert row.submit is not None
    assert row.start is not None
    assert row.submit <= row.start <= time.time() + 1
    row = slurm.wait_for_sacct(unprivileged)
    assert (row.state, row.user) == ("COMPLETED", "nobody")
    printed = slurm.run("srun", "--partition=main", "--nodes=8", "--exclusive", "hostname").split()
    assert sorted(printed) == [f"n{number:03}" for number in range(1, 9)], "each node knows its own name"
    assert slurm.run("srun", "--partition=main", "getent", "hosts", "n008").split()[0] == "127.0.0.1"


def test_a_step_that_leaves_on_sigterm_lets_a_foreground_job_start_at_once(slurm: SlurmSite) -> None:
    slurm.occupy(4)
    slurm.set_grace(60)
    fills = [slurm.submit("fill", "exec sleep 300") for _ in range(3)]
    slurm.wait_for_steps("sleep", len(fills) + 1)
    job = slurm.submit_foreground(nodes=3, run_s=0.1)
    assert slurm.wait_for_sacct(job).state == "COMPLETED"
    assert sum(slurm.state_of(fill) == "RUNNING" for fill in fills) == 1, "the job needed two nodes of three"


def test_the_next_test_finds_nothing_of_a_job_that_a_killed_controller_forgot(slurm: SlurmSite) -> None:
    slurm.submit("main", "exec sleep 300", nodes=2)
    slurm.wait_until("its steps run", lambda: "sleep" in slurm.processes().values())
    slurm.kill("slurmctld")
    slurm.clean()
    assert "slurmstepd" not in slurm.processes().values()
    assert "sleep" not in slurm.processes().values()


def test_a_cluster_comes_up_whatever_is_left_of_one_and_goes_without_a_trace() -> None:
    """The same folder all the time; without preemption at first, and then a foreground job waits."""
    site = SlurmSite.make(nodes=1, preemption="none")
    try:
        _a_foreground_job_waits(site)
        _a_second_up_changes_nothing(site)
        _a_half_started_cluster_is_replaced(site)
        _what_a_killed_cluster_left_is_no_hindrance(site)
        _a_step_without_grace_is_killed_and_accounted_as_preempted(site)
        _down_leaves_no_process_no_mount_and_no_file(site)
    finally:
        site.down()


def _a_foreground_job_waits(site: SlurmSite) -> None:
    """Without preemption, until the job that has the node is gone."""
    fill = site.submit("fill", "exec sleep 300")
    site.wait_for_state(fill, "RUNNING")
    job = site.submit_foreground(nodes=1, run_s=0.1)
    site.wait_until("the job waits for nodes", lambda: "Resources" in site.run("squeue", "--format=%r"))
    site.run("scancel", fill)
    assert site.wait_for_sacct(job).state == "COMPLETED"


def _a_second_up_changes_nothing(site: SlurmSite) -> None:
    before = site.cluster.record()
    assert site.cluster.up(ClusterOptions(nodes=5)) is False
    assert site.cluster.record() == before


def _a_half_started_cluster_is_replaced(site: SlurmSite) -> None:
    site.kill("slurmctld")
    before = site.processes()
    site.up(nodes=1)
    assert not before.keys() & site.processes().keys()
    assert site.cluster.is_up()


def _what_a_killed_cluster_left_is_no_hindrance(site: SlurmSite) -> None:
    killed = site.cluster.record().mark
    processes.kill_mark(killed)
    assert not site.cluster.is_up()
    site.up(nodes=2)
    assert site.node_states() == {"n001": "idle", "n002": "idle"}
    assert site.cluster.record().mark != killed


def _a_step_without_grace_is_killed_and_accounted_as_preempted(site: SlurmSite) -> None:
    site.set_grace(0)
    fill = site.submit("fill", "trap '' TERM; while :; do sleep 1; done", nodes=2)
    site.wait_for_state(fill, "RUNNING")
    job = site.submit_foreground(nodes=1, run_s=0.1)
    assert site.wait_for_sacct(fill).state == "PREEMPTED"
    assert site.wait_for_sacct(job).state == "COMPLETED"


def _down_leaves_no_process_no_mount_and_no_file(site: SlurmSite) -> None:
    mark = site.cluster.record().mark
    site.submit("main", "trap '' TERM; sleep 600 & sleep 600", nodes=2)
    site.wait_for_steps("sleep", 4)
    site.down()
    assert not site.folder.exists()
    assert processes.of_mark(mark) == {}
    assert _naming(str(site.folder)) == []
    assert str(site.folder) not in Path("/proc/self/mounts").read_text(encoding="utf-8")


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
