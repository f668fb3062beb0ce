"""While Slurm hands nodes to a foreground job, nothing of ours begins where that job may start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cells import each
from oakum_service.config import SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_service.schedulers.slurm.handover import HandOver, find_hand_over, in_the_way, window_s
from oakum_service.schedulers.slurm.hole_policy import HolePolicy
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmState
from oakum_service.schedulers.slurm.snapshot import own_tasks, to_snapshot
from oakum_service.states import NodeState
from slurm_adapter import HAND_OVER_S, INSTANCE, Site, make_site, own
from waiting import wait_until

NOW = 1000.0
BOTH = ("main", "fill")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Two idle nodes, and an adapter that has not begun to read."""
    site = make_site(tmp_path)
    site.source.nodes = (node("n1"), node("n2"))
    yield site
    site.scheduler.stop()


def node(name: str, *states: str, partitions: tuple[str, ...] = BOTH) -> SlurmNode:
    return SlurmNode(name, name, states or ("IDLE",), partitions)


def taken(fragment: str, nodes: str, at: float, *states: str) -> SlurmJob:
    """A job of ours that was preempted at that time and has left its node."""
    job = own(sum(map(ord, fragment)), fragment, *(states or ("COMPLETED",)), nodes=nodes)
    return msgspec.structs.replace(job, preempted_at=at)


def waiting(number: int = 9, submitted_at: float | None = NOW - 5.0, **fields: object) -> SlurmJob:
    values = {"name": "cfd", "user": "a", "partition": "main", "reason": "Resources"} | fields
    return SlurmJob(id=number, states=("PENDING",), submitted_at=submitted_at, **values)


def running(nodes: str, *states: str) -> SlurmJob:
    return SlurmJob(id=8, name="cfd", user="a", partition="main", states=states or ("RUNNING",), nodes=nodes)


def found(*jobs: SlurmJob, nodes: tuple[SlurmNode, ...] = (node("n1"), node("n2"))) -> HandOver:
    return find_hand_over(SlurmState(NOW, "22.05.8", nodes, jobs), INSTANCE, HAND_OVER_S)


def kept(*jobs: SlurmJob) -> set[str]:
    return set(found(*jobs).wanted)


def test_idle_nodes_are_kept_for_the_job_that_ours_were_preempted_for_as_are_those_taken() -> None:
    hand_over = found(taken("f1", "n1", NOW - 4.0), waiting())
    assert ({name: job.id for name, job in hand_over.wanted.items()}, hand_over.since) == (
        {"n1": 9, "n2": 9},
        NOW - 4.0,
    )


def test_nothing_is_kept_where_nothing_was_taken() -> None:
    assert found(own(1, "f1", nodes="n1"), waiting()) == HandOver()


def test_nodes_that_other_services_and_users_lost_are_no_concern_of_ours() -> None:
    theirs = msgspec.structs.replace(taken("f1", "n1", NOW - 4.0), name="oakum-cd34-f1")
    assert kept(theirs, waiting()) == set()


@each(
    ("job", "expected"),
    [
        (taken("f1", "n1", NOW - 4.0, "RUNNING"), {"n1", "n2"}),
        (taken("f1", "n1", NOW - 4.0, "FAILED", "COMPLETING"), {"n1", "n2"}),
        (msgspec.structs.replace(own(1, "f1", "PREEMPTED", nodes="n1"), end_at=NOW - 4.0), {"n1", "n2"}),
        (msgspec.structs.replace(own(1, "f1", "NODE_FAIL", nodes="n1"), end_at=NOW - 4.0), set()),
        (taken("f1", "n1", NOW - HAND_OVER_S - 1.0), set()),
    ],
    ids=["in its grace", "completing", "killed at once", "its node failed", "long ago"],
)
def test_a_node_counts_as_taken_from_the_preemption_on_for_as_long_as_slurm_preempts_no_more(
    job: SlurmJob, expected: set[str]
) -> None:
    assert kept(job, waiting(submitted_at=NOW - 60.0)) == expected


@each(
    ("job", "expected"),
    [
        (waiting(reason="None"), {"n1", "n2"}),
        (waiting(reason="Priority"), {"n1", "n2"}),
        (waiting(submitted_at=None), {"n1", "n2"}),
        (waiting(partition="debug,main"), {"n1", "n2"}),
        (waiting(reason="JobHeldUser"), set()),
        (waiting(reason="JobHeldAdmin"), set()),
        (waiting(reason="Dependency"), set()),
        (waiting(reason="BeginTime"), set()),
        (waiting(reason="QOSMaxJobsPerUserLimit"), set()),
        (waiting(submitted_at=NOW - 2.0), set()),
        (waiting(partition="debug"), set()),
        (own(9, "f9", "PENDING"), set()),
    ],
    ids=lambda given: given.reason + given.partition if isinstance(given, SlurmJob) else "",
)
def test_only_a_job_that_could_start_there_and_was_there_before_can_have_taken_it(
    job: SlurmJob, expected: set[str]
) -> None:
    assert kept(taken("f1", "n1", NOW - 4.0), job) == expected


@pytest.mark.parametrize("states", [("RUNNING",), ("COMPLETED", "COMPLETING")])
def test_it_is_over_once_each_taken_node_has_had_its_foreground_job(states: tuple[str, ...]) -> None:
    jobs = [taken("f1", "n1", NOW - 4.0), taken("f2", "n2", NOW - 3.0), waiting(7)]
    assert kept(*jobs, running("n1", *states)) == {"n1", "n2"}
    assert kept(*jobs, running("n[1-2]", *states)) == set()


@each(("began_at", "expected"), [(NOW - 100.0, {"n1", "n2"}), (NOW - 4.0, set()), (None, set())])
def test_a_job_that_shared_the_node_before_does_not_end_it(began_at: float | None, expected: set[str]) -> None:
    beside = msgspec.structs.replace(running("n1"), start_at=began_at)
    assert kept(taken("f1", "n1", NOW - 4.0), waiting(), beside) == expected


def test_nodes_that_the_job_cannot_use_are_not_kept_for_it() -> None:
    nodes = (node("n1"), node("n2", partitions=("gpu", "fill")), node("n3"))
    assert set(found(taken("f1", "n1", NOW), waiting(), nodes=nodes).wanted) == {"n1", "n3"}


def test_the_first_of_several_jobs_is_the_one_that_is_told() -> None:
    jobs = [taken("f1", "n1", NOW - 1.0), waiting(12, NOW - 3.0), waiting(11, NOW - 9.0)]
    assert found(*jobs).wanted["n2"].id == 11


def test_a_kept_node_is_not_available_and_one_with_a_fragment_of_ours_stays_a_hole() -> None:
    nodes = (node("n1"), node("n2", "ALLOCATED"), node("n3", "IDLE", "DRAIN"))
    jobs = (taken("f1", "n1", NOW), own(2, "f2", nodes="n2"), waiting())
    state = SlurmState(NOW, "22.05.8", nodes, jobs)
    wanted = find_hand_over(state, INSTANCE, HAND_OVER_S).wanted
    snapshot = to_snapshot(state, INSTANCE, HolePolicy("fill"), own_tasks(jobs, INSTANCE), wanted)
    assert [(one.state, one.job) for one in snapshot.nodes] == [
        (NodeState.UNAVAILABLE, "9"),
        (NodeState.HOLE, None),
        (NodeState.UNAVAILABLE, None),
    ]
    assert snapshot.handing_over == {"n1", "n2", "n3"}


def test_what_waits_for_a_node_or_has_begun_since_is_in_the_way() -> None:
    def began(number: int, at: float) -> SlurmJob:
        return msgspec.structs.replace(own(number, f"f{number}", nodes=f"n{number}"), start_at=at)

    jobs = [
        own(1, "f1", "PENDING"),
        began(2, NOW - 3.0),
        began(3, NOW - 60.0),
        taken("f4", "n4", NOW - 4.0, "RUNNING"),
    ]
    tasks = own_tasks(jobs, INSTANCE)
    nodes = tuple(node(f"n{number}") for number in range(1, 5))
    assert in_the_way(tasks, found(*jobs, waiting(), nodes=nodes)) == {"f1", "f2"}
    assert in_the_way(tasks, HandOver()) == set()


def test_nothing_is_submitted_and_what_waits_is_withdrawn_until_the_job_has_its_nodes(site: Site) -> None:
    now = time.time()
    gone, pending = taken("f1", "n1", now), own(72, "f2", "PENDING", submitted_at=now)
    site.source.jobs = (gone, waiting(9, now - 1.0), pending)
    site.scheduler.start(lambda: None)
    snapshot = site.picture(lambda s: bool(s.nodes))
    assert {one.state for one in snapshot.nodes} == {NodeState.UNAVAILABLE}
    assert (snapshot.preempted, snapshot.withdrawn) == ({"f1"}, {"f2"})
    assert wait_until("it is withdrawn", lambda: site.calls("scancel")) == ["--quiet 72"]
    for submit in (lambda: site.scheduler.submit(site.config("n2")), lambda: submit_two(site)):
        with pytest.raises(SchedulerError, match="n2 is not idle any more: Slurm has it, or keeps it, for job 9"):
            submit()
    assert site.calls("sbatch") == []
    site.source.jobs = (gone, running("n1"))
    site.picture(lambda s: [one.state for one in s.nodes] == [NodeState.FOREGROUND, NodeState.HOLE])
    assert site.scheduler.submit(site.config("n2", "f3")) == "71"


def submit_two(site: Site) -> None:
    configs = [site.config("n1", "f5"), site.config("n2", "f6")]
    if not site.scheduler.submit_any(configs):
        site.scheduler.submit(configs[1])


def test_a_service_that_was_started_meanwhile_keeps_them_as_well(site: Site) -> None:
    site.source.jobs = (taken("f1", "n1", time.time()), waiting(9, time.time() - 1.0))
    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    assert [one.job for one in site.restarted().snapshot().nodes] == ["9", "9"]


def test_slurm_says_for_how_long_it_preempts_no_more(tmp_path: Path) -> None:
    settings = SlurmSettings(partition="fill", bin_dir=tmp_path)
    assert window_s(SlurmCommands(settings)) == 40.0
    lines = "SLURM_VERSION = 22.05.8\\nKillWait = 5 sec\\nMessageTimeout = 20 sec\\n"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\nprintf '{lines}'\n", encoding="utf-8")
    (tmp_path / "scontrol").chmod(0o755)
    assert window_s(SlurmCommands(settings)) == 25.0
