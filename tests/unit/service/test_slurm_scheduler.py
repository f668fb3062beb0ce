"""The Slurm adapter: what it shows, submits and cancels."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cells import each
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.port import HookEvent, HookKind, JobStart
from oakum_service.schedulers.slurm import completing
from oakum_service.schedulers.slurm.reading.state import SlurmJob
from oakum_service.states import NodeState
from slurm_adapter import FAKE, Site, adapter, announced, blocked_readings, make_site, node, own, readable
from waiting import wait_until


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Two idle nodes, and an adapter that has not begun to read."""
    site = make_site(tmp_path)
    yield site
    site.scheduler.stop()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SchedulerError("squeue: no route to slurmctld"), "no route"),
        (KeyError("gres"), "could not be understood .KeyError: 'gres'"),
    ],
)
def test_the_first_picture_is_waited_for_and_no_picture_is_an_error(
    site: Site, error: Exception, said: str
) -> None:
    site.source.error = error
    site.scheduler.start(lambda: None)
    with pytest.raises(SchedulerError, match=said):
        site.scheduler.snapshot()
    site.source.error = None
    assert len(wait_until("it answers", lambda: readable(site.scheduler)).nodes) == 2


def answering(site: Site, **answers: str) -> None:
    """Have Slurm's commands print this."""
    for command, answer in answers.items():
        path = site.folder / command
        path.write_text(FAKE.format(folder=site.folder, answer=answer), encoding="utf-8")
        path.chmod(0o755)


def test_a_job_whose_number_sbatch_does_not_tell_is_found_by_its_name(site: Site) -> None:
    answering(site, sbatch="echo Welcome to the queue", squeue="echo 71; echo 71")
    site.scheduler.start(lambda: None)
    site.picture(lambda s: len(s.nodes) == 2)
    assert site.scheduler.submit(site.config()) == "71"
    assert site.calls("sbatch")[0].startswith("--parsable ")
    assert site.calls("squeue") == ["--noheader --all --name=oakum-ab12-f1 --format=%F"]
    assert (site.folder / "fragments" / "f1" / "71_submitted.pkl").exists()


def test_a_submission_without_a_job_is_refused_with_what_was_printed(site: Site) -> None:
    answering(site, sbatch="echo Welcome to the queue", squeue="exit 0")
    site.scheduler.start(lambda: None)
    site.picture(lambda s: len(s.nodes) == 2)
    with pytest.raises(SchedulerError, match=r"sbatch.* answered 'Welcome to the queue'.*no job of that name"):
        site.scheduler.submit(site.config())


def test_a_slurm_that_stops_answering_leaves_the_last_picture_and_takes_no_jobs(site: Site) -> None:
    site.scheduler.start(lambda: None)
    before = site.picture(lambda s: len(s.nodes) == 2)
    site.source.error = SchedulerError("squeue: no route to slurmctld")
    reads = site.source.reads
    wait_until("it has failed", lambda: site.source.reads >= reads + 2)
    assert site.scheduler.snapshot().nodes == before.nodes
    with pytest.raises(SchedulerError, match="does not answer"):
        site.scheduler.submit(site.config())
    assert site.calls("sbatch") == []


def test_a_fragment_is_a_job_of_one_whole_node_that_slurm_may_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OAKUM_DATABASE_URL", "postgresql://oakum:secret@database/oakum")
    monkeypatch.setenv("SLURM_JWT", "secret")
    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    assert site.scheduler.submit(site.config()) == "71"
    options = site.script_options()
    wanted = {
        "job-name": "oakum-ab12-f1",
        "nodelist": "n1",
        "nodes": "1",
        "ntasks-per-node": "1",
        "partition": "fill",
        "time": "225",
        "time-min": None,
        "signal": "USR2@12",
        "exclusive": "",
        "no-requeue": "",
    }
    assert {name: options.get(name) for name in wanted} == wanted
    exported = options["export"].split(",")
    assert "PATH" in exported
    assert not {"OAKUM_DATABASE_URL", "SLURM_JWT", "ALL"}.intersection(exported)
    assert "secret" not in (site.folder / "script").read_text(encoding="utf-8")
    stored = json.loads((site.folder / "fragments" / "f1" / "fragment.json").read_text(encoding="utf-8"))
    assert stored["fragment"] == "f1"


def test_what_sbatch_refuses_is_an_error_in_its_own_words(site: Site) -> None:
    refusing = "echo 'sbatch: error: Batch job submission failed: Invalid qos specification' >&2; exit 1"
    (site.folder / "sbatch").write_text(FAKE.format(folder=site.folder, answer=refusing), encoding="utf-8")
    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    with pytest.raises(SchedulerError, match="Invalid qos specification"):
        site.scheduler.submit(site.config())


def test_the_time_limit_ends_before_the_announced_job_begins(site: Site) -> None:
    site.source.jobs = (announced("n1", in_s=655.0), announced("n2", in_s=100.0))
    site.scheduler.start(lambda: None)
    site.picture(lambda s: s.nodes[0].announced_at is not None)
    site.scheduler.submit(site.config("n1"))
    options = site.script_options()
    assert (options["time"], options["time-min"]) == ("10", "2"), "the job may begin sooner than announced"
    with pytest.raises(SchedulerError, match="n2 is wanted in"):
        site.scheduler.submit(site.config("n2", "f2"))


@each("state", ["DOWN", "DRAIN", "INACTIVE", "UP"])
def test_a_partition_that_is_not_up_is_told(site: Site, state: str) -> None:
    told = site.folder / "scontrol"
    told.write_text(f"#!/bin/sh\necho PartitionName=fill AllowGroups=ALL State={state} TotalNodes=2\n")
    told.chmod(0o755)
    site.restarted()
    expected = "" if state == "UP" else f"Slurm's partition fill is {state}"
    assert site.picture(lambda s: bool(s.nodes)).closed == expected


def test_a_fragment_that_slurm_cannot_preempt_is_short(site: Site) -> None:
    site.scheduler = adapter(site.folder, site.source, preemption="none")
    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    site.scheduler.submit(site.config("n1"))
    assert site.script_options()["time"] == "9"


def test_a_submission_that_no_reading_shows_yet_is_among_our_jobs(site: Site) -> None:
    """Otherwise its fragment would count as ended, and the job would later count as an orphan."""
    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    readings: list[list[str]] = []

    def submit_meanwhile() -> None:
        # The reading in progress began before the submission and ends after it; the next ones fail.
        blocking = blocked_readings(site)
        site.scheduler.submit(site.config())
        readings.append(blocking)

    site.source.on_read = submit_meanwhile
    wait_until("it is submitted and the next reading fails", lambda: readings and site.source.reads > 3)
    assert [job.fragment for job in site.scheduler.snapshot().own_jobs] == ["f1"]
    readings[0].clear()
    site.picture(lambda s: not s.own_jobs)


def test_a_cancelled_fragment_is_cancelled_by_its_jobs_number_and_once(site: Site) -> None:
    site.source.jobs = (own(71, "f1", nodes="n1"), own(72, "f2", nodes="n2"))
    site.scheduler.start(lambda: None)
    site.picture(lambda s: len(s.own_jobs) == 2)
    for _ in range(3):
        site.scheduler.cancel("f2")
        site.scheduler.cancel("f1")
    wait_until("it is cancelled", lambda: site.calls("scancel"))
    reads = site.source.reads
    wait_until("it goes on", lambda: site.source.reads >= reads + 2)
    words = " ".join(site.calls("scancel")).split()
    assert sorted(word for word in words if word.isdigit()) == ["71", "72"]


def test_a_fragment_that_was_never_seen_is_asked_about_nowhere(site: Site) -> None:
    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    site.scheduler.cancel("f9")
    reads = site.source.reads
    wait_until("it goes on", lambda: site.source.reads >= reads + 2)
    assert site.calls("scancel") == []


def test_a_fragment_that_waits_for_a_node_is_withdrawn_after_a_while(site: Site) -> None:
    now = time.time()
    waiting = own(71, "f1", "PENDING", submitted_at=now - 60.0)
    site.source.jobs = (
        msgspec.structs.replace(waiting, reason="QOSMaxJobsPerUserLimit"),
        own(72, "f2", "PENDING", submitted_at=now + 3600.0),
        own(73, "f3", "RUNNING", nodes="n1", submitted_at=now - 60.0),
    )
    site.scheduler.start(lambda: None)
    assert wait_until("it is withdrawn", lambda: site.calls("scancel")) == ["--quiet 71"]
    assert site.scheduler.snapshot().withdrawn == {"f1"}
    assert site.scheduler.snapshot().kept_waiting == {"f1": "QOSMaxJobsPerUserLimit"}


def test_a_hook_takes_its_nodes_at_once_and_a_later_reading_knows_better(site: Site) -> None:
    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    readings = blocked_readings(site)
    site.scheduler.on_hook(HookEvent(HookKind.ALLOCATED, "500", "n2", "main", 1000, None, time.time()))
    nodes = {found.name: (found.state, found.job) for found in site.scheduler.snapshot().nodes}
    assert nodes == {"n1": (NodeState.HOLE, None), "n2": (NodeState.FOREGROUND, "500")}
    readings.clear()
    site.picture(lambda s: all(found.state is NodeState.HOLE for found in s.nodes))


def test_after_an_end_that_a_hook_told_of_readings_follow_until_the_nodes_are_clear(site: Site) -> None:
    site.scheduler = adapter(site.folder, site.source, poll_floor_s=600.0)
    site.source.nodes = (node("n1", "ALLOCATED", "COMPLETING"), node("n2"))
    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    site.scheduler.on_hook(HookEvent(HookKind.ENDED, "500", "n1", "main", 1000, None, time.time()))
    wait_until("readings follow", lambda: site.source.reads > 3)
    site.source.nodes = (node("n1"), node("n2"))
    site.picture(lambda s: s.nodes[0].state is NodeState.HOLE)


@each(("since_s", "is_news"), [(-1.0, True), (301.0, False)])
def test_an_end_of_long_ago_is_news_to_whoever_has_not_looked_since(
    site: Site, since_s: float, is_news: bool
) -> None:
    """It comes from a spool, minutes late, and the state is read once in ten minutes. `since_s`: from it to the
    newest reading."""
    site.scheduler.stop()
    site.scheduler = adapter(site.folder, site.source, poll_floor_s=600.0)
    site.scheduler.start(lambda: None)
    taken_at = site.picture(lambda s: bool(s.nodes)).taken_at
    reads = site.source.reads
    at = taken_at - since_s
    site.scheduler.on_hook(HookEvent(HookKind.ENDED, "500", "", "main", 1000, None, at))
    if not is_news:  # the next one is
        assert not site.scheduler._hinted
        site.scheduler.on_hook(HookEvent(HookKind.ENDED, "501", "", "main", 1000, None, time.time()))
    wait_until("the state is read", lambda: site.source.reads > reads)


def test_a_reading_from_before_an_end_does_not_show_its_nodes_clear(site: Site) -> None:
    """The nodes of the second reading complete, and their epilogs tell nobody of their end."""
    site.scheduler = adapter(site.folder, site.source, poll_floor_s=600.0)

    def end_meanwhile() -> None:
        site.source.on_read = complete
        site.scheduler.on_hook(HookEvent(HookKind.ENDED, "500", "n1", "main", 1000, None, time.time()))

    def complete() -> None:
        site.source.on_read = clear
        site.source.nodes = (node("n1", "ALLOCATED", "COMPLETING"), node("n2"))

    def clear() -> None:
        site.source.nodes = (node("n1"), node("n2"))

    site.source.nodes = (node("n1", "ALLOCATED"), node("n2"))
    site.source.on_read = end_meanwhile
    site.scheduler.start(lambda: None)
    site.picture(lambda s: s.nodes[0].state is NodeState.HOLE)


def test_readings_follow_for_the_nodes_of_the_job_alone_and_not_for_ever(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that does not answer stays completing for as long as it is down."""
    site.scheduler = adapter(site.folder, site.source, poll_floor_s=600.0)
    site.source.nodes = (node("n1", "ALLOCATED", "COMPLETING"), node("n2", "DOWN", "COMPLETING", "NOT_RESPONDING"))
    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    site.scheduler.on_hook(HookEvent(HookKind.ENDED, "500", "n1", "main", 1000, None, time.time()))
    wait_until("readings follow", lambda: site.source.reads > 3)
    site.source.nodes = (node("n1"), site.source.nodes[1])
    site.picture(lambda s: s.nodes[0].state is NodeState.HOLE)
    wait_until("it rests", lambda: site.scheduler._wait_s() > 300.0)
    site.scheduler.on_hook(HookEvent(HookKind.ENDED, "501", "n2", "main", 1000, None, time.time()))
    reads = site.source.reads
    wait_until("readings follow", lambda: site.source.reads > reads + 3)
    monkeypatch.setattr(completing, "_CLEAR_WITHIN_S", 0.0)
    wait_until("it rests", lambda: site.scheduler._wait_s() > 300.0)


@pytest.mark.parametrize("error", [SchedulerError("squeue: no route to slurmctld"), KeyError("gres")])
def test_a_reading_that_fails_is_repeated_as_soon_as_a_hook_wanted_it(site: Site, error: Exception) -> None:
    site.scheduler = adapter(site.folder, site.source, poll_floor_s=600.0)
    site.source.nodes = (node("n1", "ALLOCATED"), node("n2"))
    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    site.source.error = error
    reads = site.source.reads
    site.scheduler.on_hook(HookEvent(HookKind.ENDED, "500", "n1", "main", 1000, None, time.time()))
    wait_until("it has failed", lambda: site.source.reads > reads)
    site.source.nodes, site.source.error = (node("n1"), node("n2")), None
    site.picture(lambda s: s.nodes[0].state is NodeState.HOLE)


def test_a_first_reading_that_fails_is_repeated_soon_at_any_pace(site: Site) -> None:
    site.scheduler = adapter(site.folder, site.source, poll_floor_s=600.0)
    site.source.error = SchedulerError("squeue: no route to slurmctld")
    site.scheduler.start(lambda: None)
    wait_until("it has failed", lambda: site.source.reads > 0)
    site.source.error = None
    assert len(wait_until("it answers", lambda: readable(site.scheduler), timeout_s=30.0).nodes) == 2


def test_a_job_that_a_hook_told_of_is_gone_with_its_end_however_short_it_was(site: Site) -> None:
    site.scheduler = adapter(site.folder, site.source, poll_floor_s=600.0)
    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    for kind in (HookKind.ALLOCATED, HookKind.ENDED):
        site.scheduler.on_hook(HookEvent(kind, "500", "n1", "main", 1000, None, time.time() + 5.0))
    site.picture(lambda s: s.nodes[0].state is NodeState.HOLE)


def test_a_job_whose_start_is_told_after_its_end_is_gone_with_the_readings_that_follow(site: Site) -> None:
    """Each of its nodes adds to the list of those that it got, and the last one may be late."""
    site.scheduler = adapter(site.folder, site.source, poll_floor_s=600.0)
    site.scheduler.start(lambda: None)
    site.picture(lambda s: bool(s.nodes))
    began_at = time.time()
    for kind in (HookKind.ENDED, HookKind.ALLOCATED):
        site.scheduler.on_hook(HookEvent(kind, "500", "n1", "main", 1000, None, began_at))
    site.picture(lambda s: s.nodes[0].state is NodeState.HOLE)


def test_a_turn_that_breaks_the_adapter_is_followed_by_another(site: Site) -> None:
    def break_first() -> None:
        if site.source.reads == 1:
            raise KeyError("a bug")

    site.scheduler.start(break_first)
    wait_until("it reads again", lambda: site.source.reads > 1)
    site.picture(lambda s: len(s.nodes) == 2)


def test_a_hook_of_our_own_job_takes_no_node(site: Site) -> None:
    site.source.jobs = (own(71, "f1", nodes="n1"),)
    site.scheduler.start(lambda: None)
    site.picture(lambda s: len(s.own_jobs) == 1)
    blocked_readings(site)
    site.scheduler.on_hook(HookEvent(HookKind.ALLOCATED, "71", "n1", "fill", 1000, None, time.time()))
    assert [found.state for found in site.scheduler.snapshot().nodes] == [NodeState.HOLE] * 2


def test_a_hook_that_is_older_than_the_picture_changes_nothing(site: Site) -> None:
    site.scheduler.start(lambda: None)
    taken_at = site.picture(lambda s: bool(s.nodes)).taken_at
    site.scheduler.on_hook(HookEvent(HookKind.ALLOCATED, "500", "n2", "main", 1000, None, taken_at - 60.0))
    assert {found.state for found in site.scheduler.snapshot().nodes} == {NodeState.HOLE}


def test_jobs_that_run_are_told_of_once_with_their_nodes_in_the_order_of_their_starts(site: Site) -> None:
    """Also those that run in the first reading: only the controller knows whether they are new."""
    running = SlurmJob(
        id=9, name="cfd", user="a", partition="main", states=("RUNNING",), nodes="n[1-2]", start_at=123.0
    )
    later, before = (msgspec.structs.replace(running, id=id, start_at=at) for id, at in ((7, 122.0), (8, 121.0)))
    site.source.jobs = (later, before)
    site.scheduler.start(lambda: None)
    site.picture(lambda s: s.nodes[0].state is NodeState.FOREGROUND)
    site.source.jobs = (later, before, running)
    expected = (("8", 121.0), ("7", 122.0), ("9", 123.0))
    assert site.picture(lambda s: len(s.starts) > 2).starts == tuple(
        JobStart(job, at, 2, None, ("n1", "n2")) for job, at in expected
    )


def test_one_that_is_stopped_cancels_nothing_and_begins_again_without_what_it_knew(site: Site) -> None:
    """As the adapter of a process that another has replaced as the controller, and that comes back."""
    site.source.jobs = (own(71, "f1", nodes="n1"),)
    site.scheduler.start(lambda: None)
    site.picture(lambda s: len(s.own_jobs) == 1)
    site.scheduler.stop(leave_fragments=True)
    reads = site.source.reads
    site.scheduler.cancel("f1")
    site.source.jobs = (own(72, "f2", nodes="n2"),)
    site.source.error = SchedulerError("squeue: no route to slurmctld")
    site.scheduler.start(lambda: None)
    with pytest.raises(SchedulerError, match="no route"):
        site.scheduler.snapshot()
    site.source.error = None
    assert [job.fragment for job in wait_until("it answers", lambda: readable(site.scheduler)).own_jobs] == ["f2"]
    assert site.source.reads > reads
    assert site.calls("scancel") == []
