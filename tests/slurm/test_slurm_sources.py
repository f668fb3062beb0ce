"""Slurm's state as the installed Slurm tells it, by each way that there is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from oakum_service.config import SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.reading.jobs import has_ended
from oakum_service.schedulers.slurm.reading.pushed_source import RequestTime, decode_state, encode_state
from oakum_service.schedulers.slurm.reading.sources import open_source
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmState, StateSource
from slurm_cluster import processes
from slurm_site import SlurmSite

Open = Callable[[], StateSource]
WAYS = ("json", "text", "rest", "socket")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(slurm: SlurmSite, way: str, monkeypatch: pytest.MonkeyPatch) -> StateSource:
    return make_source(slurm, way, monkeypatch)


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


def node(state: SlurmState, name: str) -> SlurmNode:
    return next(found for found in state.nodes if found.name == name)


def job(state: SlurmState, id: str) -> SlurmJob:
    return next(found for found in state.jobs if found.id == int(id))


def live(state: SlurmState) -> list[SlurmJob]:
    """The jobs that have not ended: Slurm tells of those that were preempted in the tests before, too."""
    return [found for found in state.jobs if not has_ended(found.states)]


def test_idle_nodes_and_a_version_are_told(slurm: SlurmSite, source: StateSource) -> None:
    state = source.read()
    assert [found.name for found in state.nodes] == [f"n{number:03}" for number in range(1, 9)]
    assert {found.states for found in state.nodes} == {("IDLE",)}
    assert set(node(state, "n001").partitions) >= {"main", "fill"}
    assert state.version.startswith(slurm.run("scontrol", "--version").split()[1])
    assert (live(state), state.reservations) == ([], ())
    assert abs(state.taken_at - time.time()) < 60
    cycle_s = source.cycle_s()
    assert cycle_s is not None
    assert 0 <= cycle_s < 60


def test_a_running_job_has_its_nodes_and_they_are_taken(slurm: SlurmSite, source: StateSource) -> None:
    name = "a name | and more"
    id = slurm.submit_foreground(nodes=2, run_s=600, name=name, limit_minutes=5)
    slurm.wait_for_state(id, "RUNNING")
    state = source.read()
    found = job(state, id)
    assert (found.name, found.user, found.partition, found.states) == (name, "root", "main", ("RUNNING",))
    assert (found.nodes, found.num_nodes) == ("n[001-002]", 2)
    assert found.start_at is not None
    assert found.end_at == found.start_at + 300
    assert [node(state, f"n00{number}").states[0] for number in (1, 2, 3)] == ["ALLOCATED", "ALLOCATED", "IDLE"]


def test_a_job_without_a_limit_never_ends(slurm: SlurmSite, source: StateSource) -> None:
    id = slurm.submit_foreground(nodes=1, run_s=600, options=("--time=UNLIMITED",))
    slurm.wait_for_state(id, "RUNNING")
    assert job(source.read(), id).end_at == math.inf


def test_a_job_whose_steps_do_not_leave_completes_on_its_nodes(slurm: SlurmSite, source: StateSource) -> None:
    id = slurm.submit("main", "trap '' TERM; sleep 600")
    slurm.wait_for_steps("sleep", 1)
    slurm.run("scancel", id)
    slurm.wait_for_state(id, "COMPLETING", "CANCELLED")
    state = source.read()
    # Slurm would wait for KillWait.
    processes.kill(pid for pid, program in slurm.processes().items() if program == "sleep")
    found = job(state, id)
    assert ("COMPLETING" in found.states, found.nodes) == (True, "n001")
    assert "COMPLETING" in node(state, "n001").states


def test_a_suspended_job_keeps_its_node(slurm: SlurmSite, source: StateSource) -> None:
    id = slurm.submit_foreground(nodes=1, run_s=600)
    slurm.wait_for_state(id, "RUNNING")
    slurm.run("scontrol", "suspend", id)
    slurm.wait_for_state(id, "SUSPENDED")
    found = job(source.read(), id)
    assert (found.states[0], found.nodes) == ("SUSPENDED", "n001")
    slurm.run("scontrol", "resume", id)


def test_held_jobs_and_arrays_are_pending_without_nodes(slurm: SlurmSite, source: StateSource) -> None:
    held = slurm.submit_foreground(nodes=3, run_s=1, options=("--hold", "--array=0-4%2"))
    try:
        found = job(source.read(), held)
    finally:
        slurm.run("scancel", held)
    assert (found.states, found.nodes, found.num_nodes) == (("PENDING",), "", 3)
    assert (found.start_at, found.array_job_id, found.array_task_id) == (None, int(held), None)


def test_tasks_of_an_array_are_jobs_of_their_own(slurm: SlurmSite, source: StateSource) -> None:
    id = slurm.submit_foreground(nodes=1, run_s=600, options=("--array=4-5",))

    def running() -> SlurmState | None:
        state = source.read()
        return state if [found.states for found in live(state)] == [("RUNNING",)] * 2 else None

    jobs = live(slurm.wait_until("both tasks run", running))
    assert {(found.array_job_id, found.array_task_id) for found in jobs} == {(int(id), 4), (int(id), 5)}
    assert {found.nodes for found in jobs} == {"n001", "n002"}


def test_drained_and_down_nodes_say_so(slurm: SlurmSite, source: StateSource) -> None:
    slurm.set_node("n001", "DRAIN")

    def down() -> SlurmState | None:
        slurm.set_node("n002", "DOWN", reason="State=IDLE")
        state = source.read()  # a node that registers in between is up again: `ReturnToService=2`
        return state if node(state, "n002").states[0] == "DOWN" else None

    assert node(slurm.wait_until("n002 is down", down), "n001").states == ("IDLE", "DRAIN")


def test_reservations_are_told_with_their_nodes(slurm: SlurmSite, source: StateSource) -> None:
    options = ("Nodes=n[003-004]", "Users=root", "Flags=MAINT,IGNORE_JOBS", "StartTime=now+2hours", "Duration=60")
    slurm.run("scontrol", "create", "reservation", "ReservationName=upkeep", *options)
    (found,) = source.read().reservations
    assert (found.name, found.nodes) == ("upkeep", "n[003-004]")
    assert found.end_at - found.start_at == 3600
    assert abs(found.start_at - time.time() - 7200) < 120
    assert set(found.flags) >= {"MAINT", "IGNORE_JOBS"}


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


def test_jobs_of_hidden_partitions_and_of_others_are_told(slurm: SlurmSite, source: StateSource) -> None:
    slurm.run("scontrol", "update", "PartitionName=main", "Hidden=YES")
    try:
        id = slurm.submit_foreground(nodes=1, run_s=600, user="nobody")
        slurm.wait_for_state(id, "RUNNING")
        state = source.read()
    finally:
        slurm.run("scontrol", "update", "PartitionName=main", "Hidden=NO")
    assert (job(state, id).user, job(state, id).nodes) == ("nobody", "n001")
    assert len(state.nodes) == 8


def test_all_ways_tell_the_same(slurm: SlurmSite, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = slurm.submit_foreground(nodes=2, run_s=600)
    slurm.submit_foreground(nodes=1, run_s=600, options=("--hold",))
    slurm.set_node("n007", "DRAIN")
    slurm.wait_for_state(runner, "RUNNING")
    states = []
    for way in WAYS:
        with monkeypatch.context() as patch:
            states.append(make_source(slurm, way, patch).read())
    first, *others = [(s.version, s.nodes, sorted(live(s), key=lambda j: j.id), s.reservations) for s in states]
    assert others == [first] * len(others)


def test_what_a_collector_posts_is_what_was_read(slurm: SlurmSite, source: StateSource) -> None:
    id = slurm.submit_foreground(nodes=1, run_s=600, options=("--time=UNLIMITED",))
    slurm.wait_for_state(id, "RUNNING")
    state = source.read()
    assert decode_state(encode_state(state), RequestTime(state.taken_at + 5.0, 5.0)) == state


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


def test_a_wrong_token_is_refused(slurm: SlurmSite, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jwt").write_text("eyJhbGciOiJIUzI1NiJ9.e30.wrong")
    settings = SlurmSettings(state="rest", rest_url=slurm.rest_url, rest_user="root", jwt_file=tmp_path / "jwt")
    with pytest.raises(SchedulerError, match="if the JWT may have run out"):
        open_source(settings).read()
