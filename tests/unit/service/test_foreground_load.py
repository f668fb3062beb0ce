"""The embedded cluster's foreground jobs: repeatable, within their bounds, and as many as was asked for."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from cells import each
from oakum_service.config import LocalClusterSettings
from oakum_service.schedulers.workload import ForegroundRequest, foreground_jobs, skip

NUM_JOBS = 3000


def jobs(count: int, **fields: object) -> list[ForegroundRequest]:
    return list(itertools.islice(foreground_jobs(LocalClusterSettings.model_validate(fields)), count))


def test_the_same_seed_gives_the_same_jobs() -> None:
    assert jobs(100, seed=3) == jobs(100, seed=3)


def test_another_seed_gives_others() -> None:
    assert jobs(50, seed=3) != jobs(50, seed=4)


def test_a_restart_goes_on_where_the_stream_was() -> None:
    settings = LocalClusterSettings(seed=3)
    assert list(itertools.islice(skip(foreground_jobs(settings), 40), 60)) == jobs(100, seed=3)[40:]


@each(("nodes", "seed", "load"), [(1, 1, 0.4), (4, 7, 0.8), (16, 2, 0.1), (64, 5, 0.8)])
def test_the_jobs_ask_for_the_share_of_node_time_that_was_set(nodes: int, seed: int, load: float) -> None:
    stream = jobs(NUM_JOBS, nodes=nodes, seed=seed, load=load)
    work_node_s = sum(job.nodes * job.run_s for job in stream)
    span_s = sum(job.gap_s for job in stream)
    assert work_node_s / (nodes * span_s) == pytest.approx(load, rel=0.1)


def test_every_job_fits_the_cluster_and_the_bounds() -> None:
    for job in jobs(500, nodes=5, shortest_job_s=2.0, longest_job_s=9.0):
        assert 1 <= job.nodes <= 5
        assert 2.0 <= job.run_s <= 9.0
        assert job.run_s <= job.requested_s
        assert 0.0 <= job.gap_s <= 25.0


def test_ids_are_not_given_twice() -> None:
    assert len({job.id for job in jobs(300)}) == 300


def test_no_load_means_no_jobs() -> None:
    assert jobs(10, load=0) == []


def test_jobs_of_a_log_keep_their_order_and_are_scaled_to_the_cluster(tmp_path: Path) -> None:
    """Two minutes are a second here; the log's 8 processors are 4 nodes."""
    log = tmp_path / "site.swf"
    rows = [(1, 0, 1200, 8, 2400), (2, 600, 3600, 2, 3600), (3, 1200, 1, 1, 60), (4, 1260, -1, 4, 60)]
    lines = [
        f"{number} {submit} 0 {run} {procs} -1 -1 {procs} {asked} -1 1 1 1 1 1 1 -1 -1"
        for number, submit, run, procs, asked in rows
    ]
    log.write_text("; MaxProcs: 8\n" + "\n".join(lines) + "\n")
    found = jobs(10, swf=log, nodes=4, time_compression=120.0, shortest_job_s=1.0, longest_job_s=20.0)
    assert found == [
        ForegroundRequest("swf-1", gap_s=0.0, nodes=4, run_s=10.0, requested_s=20.0),
        ForegroundRequest("swf-2", gap_s=5.0, nodes=1, run_s=20.0, requested_s=30.0),
        ForegroundRequest("swf-3", gap_s=5.0, nodes=1, run_s=1.0, requested_s=1.0),
    ]
