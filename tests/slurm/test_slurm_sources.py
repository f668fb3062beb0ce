"""Slurm's state as the installed Slurm tells it, by each way that there is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import pytest

from oakum_service.config import SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.port import RequestTime
from oakum_service.schedulers.slurm.announcements import announcements
from oakum_service.schedulers.slurm.reading.jobs import has_ended
from oakum_service.schedulers.slurm.reading.pushed_source import decode_state, encode_state
from oakum_service.schedulers.slurm.reading.sources import open_source
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmState, StateSource
from slurm_cluster import processes
from slurm_site import SlurmSite

WAYS = ("json", "text", "rest", "socket")


def make_source(slurm: SlurmSite, way: str, monkeypatch: pytest.MonkeyPatch) -> StateSource:
    """The source for that way; commands find the cluster by the environment."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JWT", raising=False)
    if way == "rest":
        monkeypatch.setenv("SLURM_JWT", slurm.jwt("root"))
        return open_source(SlurmSettings(state="rest", rest_url=slurm.rest_url, rest_user="root"))
    if way == "socket":
        return open_source(SlurmSettings(state="rest", rest_url=f"unix:{slurm.rest_socket}"))
    return open_source(SlurmSettings.model_validate({"state": "cli", "format": way}))


def each_way(slurm: SlurmSite, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, StateSource]]:
    """Each way, with its source, for which the environment is made as long as it is asked."""
    for way in WAYS:
        with monkeypatch.context() as patch:
            yield way, make_source(slurm, way, patch)


def node(state: SlurmState, name: str) -> SlurmNode:
    return next(found for found in state.nodes if found.name == name)


def job(state: SlurmState, id: str) -> SlurmJob:
    return next(found for found in state.jobs if found.id == int(id))


def live(state: SlurmState) -> list[SlurmJob]:
    """The jobs that have not ended: Slurm tells of those that were preempted in the tests before, too."""
    return [found for found in state.jobs if not has_ended(found.states)]


def test_every_way_tells_of_idle_nodes_and_of_the_version(
    slurm: SlurmSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = slurm.run("scontrol", "--version").split()[1]
    for way, source in each_way(slurm, monkeypatch):
        state = source.read()
        assert [found.name for found in state.nodes] == [f"n{number:03}" for number in range(1, 9)], way
        assert {found.states for found in state.nodes} == {("IDLE",)}, way
        assert set(node(state, "n001").partitions) >= {"main", "fill"}, way
        assert state.version.startswith(version), way
        assert (live(state), state.reservations) == ([], ()), way
        assert abs(state.taken_at - time.time()) < 60, way
        cycle_s = source.cycle_s()
        assert cycle_s is not None, way
        assert 0 <= cycle_s < 60, way


def test_every_way_tells_the_same_of_each_kind_of_job_and_of_what_is_reserved(
    slurm: SlurmSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, in a partition that is hidden: each way is read once. What a collector posts is what was
    read."""
    checks = [
        kind(slurm) for kind in (_running, _without_a_limit, _tasks_of_an_array, _of_another_user, _held_array)
    ]
    checks.append(_reservation(slurm))
    suspended = slurm.submit_foreground(nodes=1, run_s=600)
    slurm.wait_for_state(suspended, "RUNNING")
    # Last: Slurm gives its node to others.
    slurm.run("scontrol", "suspend", suspended)
    slurm.wait_for_state(suspended, "SUSPENDED")
    slurm.run("scontrol", "update", "PartitionName=main", "Hidden=YES")
    states = []
    try:
        for way, source in each_way(slurm, monkeypatch):
            state = source.read()
            for check in checks:
                check(state, way)
            found = job(state, suspended)
            assert (found.states[0], found.nodes) == ("SUSPENDED", "n007"), way
            assert [found.states[0] for found in state.nodes[:6]] == ["ALLOCATED"] * 6, way
            assert state.nodes[7].states[0] == "IDLE", way
            assert decode_state(encode_state(state), RequestTime(state.taken_at + 5.0, 5.0)) == state, way
            states.append((state.version, state.nodes, sorted(live(state), key=_id), state.reservations))
    finally:
        slurm.run("scontrol", "update", "PartitionName=main", "Hidden=NO")
        slurm.run("scontrol", "resume", suspended)
    for way, told in zip(WAYS, states, strict=True):
        assert told == states[0], way


Check = Callable[[SlurmState, str], None]
"""Asserts that a state, read in a way, tells of one kind of job."""


def _id(found: SlurmJob) -> int:
    return found.id


def _running(slurm: SlurmSite) -> Check:
    """A running job has its nodes."""
    name = "a name | and more"
    id = slurm.submit_foreground(nodes=2, run_s=600, name=name, limit_minutes=5)
    slurm.wait_for_state(id, "RUNNING")

    def check(state: SlurmState, way: str) -> None:
        found = job(state, id)
        told = found.name, found.user, found.partition, found.states, found.nodes, found.num_nodes
        assert told == (name, "root", "main", ("RUNNING",), "n[001-002]", 2), way
        assert found.start_at is not None, way
        assert found.end_at == found.start_at + 300, way

    return check


def _without_a_limit(slurm: SlurmSite) -> Check:
    """A job without a limit never ends."""
    id = slurm.submit_foreground(nodes=1, run_s=600, options=("--time=UNLIMITED",))
    slurm.wait_for_state(id, "RUNNING")

    def check(state: SlurmState, way: str) -> None:
        assert job(state, id).end_at == math.inf, way

    return check


def _tasks_of_an_array(slurm: SlurmSite) -> Check:
    """Tasks of an array that run are jobs of their own."""
    id = slurm.submit_foreground(nodes=1, run_s=600, options=("--array=4-5",))
    for task in (4, 5):
        slurm.wait_for_state(f"{id}_{task}", "RUNNING")

    def check(state: SlurmState, way: str) -> None:
        tasks = [found for found in live(state) if found.array_job_id == int(id)]
        assert sorted(found.array_task_id or 0 for found in tasks) == [4, 5], way
        assert {found.states for found in tasks} == {("RUNNING",)}, way
        assert {found.nodes for found in tasks} == {"n004", "n005"}, way

    return check


def _of_another_user(slurm: SlurmSite) -> Check:
    """Jobs of others are told."""
    id = slurm.submit_foreground(nodes=1, run_s=600, user="nobody")
    slurm.wait_for_state(id, "RUNNING")

    def check(state: SlurmState, way: str) -> None:
        assert (job(state, id).user, job(state, id).nodes) == ("nobody", "n006"), way

    return check


def _held_array(slurm: SlurmSite) -> Check:
    """A held array is pending without nodes."""
    id = slurm.submit_foreground(nodes=3, run_s=1, options=("--hold", "--array=0-4%2"))

    def check(state: SlurmState, way: str) -> None:
        found = job(state, id)
        assert (found.states, found.nodes, found.num_nodes) == (("PENDING",), "", 3), way
        assert (found.start_at, found.array_job_id, found.array_task_id) == (None, int(id), None), way

    return check


def _reservation(slurm: SlurmSite) -> Check:
    """A reservation is told with its nodes; it begins long after the other jobs have ended."""
    options = ("Nodes=n[003-004]", "Users=root", "Flags=MAINT,IGNORE_JOBS", "StartTime=now+2hours", "Duration=60")
    slurm.run("scontrol", "create", "reservation", "ReservationName=upkeep", *options)

    def check(state: SlurmState, way: str) -> None:
        (found,) = state.reservations
        assert (found.name, found.nodes) == ("upkeep", "n[003-004]"), way
        assert found.end_at - found.start_at == 3600, way
        assert abs(found.start_at - time.time() - 7200) < 120, way
        assert set(found.flags) >= {"MAINT", "IGNORE_JOBS"}, way

    return check


def test_every_way_tells_of_a_completing_job_and_of_nodes_that_are_drained_or_down(
    slurm: SlurmSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose steps do not leave completes on its node."""
    id = slurm.submit("main", "trap '' TERM; sleep 600")
    slurm.wait_for_steps("sleep", 1)
    slurm.set_node("n007", "DRAIN")
    slurm.run("scancel", id)
    slurm.wait_for_state(id, "COMPLETING", "CANCELLED")
    states = {}
    for way, source in each_way(slurm, monkeypatch):

        def down(source: StateSource = source) -> SlurmState | None:
            slurm.set_node("n008", "DOWN", reason="State=IDLE")
            state = source.read()  # a node that registers in between is up again: `ReturnToService=2`
            return state if node(state, "n008").states[0] == "DOWN" else None

        states[way] = slurm.wait_until(f"n008 is down by {way}", down)
    # Slurm would wait for KillWait.
    processes.kill(pid for pid, program in slurm.processes().items() if program == "sleep")
    for way, state in states.items():
        found = job(state, id)
        assert ("COMPLETING" in found.states, found.nodes) == (True, "n001"), way
        assert "COMPLETING" in node(state, "n001").states, way
        assert node(state, "n007").states == ("IDLE", "DRAIN"), way


def test_a_forecast_names_nodes_and_start(slurm: SlurmSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the commands of 22.05 tell as text alone, and later versions tell in JSON too."""
    source = make_source(slurm, "auto", monkeypatch)
    runner = slurm.submit_foreground(nodes=6, run_s=300)
    slurm.wait_for_state(runner, "RUNNING")
    waiting = slurm.submit_foreground(nodes=8, run_s=1)

    def planned() -> SlurmState | None:
        state = source.read()
        flagged = "PLANNED" in node(state, "n008").states  # not always from the same scheduler's cycle on
        return state if flagged and job(state, waiting).planned_nodes else None

    state = slurm.wait_until("Slurm plans the job", planned)
    found = job(state, waiting)
    assert found.planned_nodes == "n[001-008]"
    # Backfill reckons in steps of its own resolution.
    assert found.start_at == pytest.approx(job(state, runner).end_at, abs=120.0)
    (told,) = announcements(frozenset({"n001"}), state, state.jobs).soonest
    assert (told.name, told.nodes, told.start_at) == (waiting, "n[001-008]", found.start_at)
    assert told.end_at is not None


def test_a_controller_that_is_down_is_an_error_and_its_return_is_not(
    slurm: SlurmSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source(slurm, "json", monkeypatch)
    source.read()
    slurm.kill("slurmctld")
    with pytest.raises(SchedulerError, match=r"(scontrol|sinfo).* --all"):
        source.read()
    assert source.cycle_s() is None
    slurm.restart_slurmctld()
    assert len(source.read().nodes) == 8
