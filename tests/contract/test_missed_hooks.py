"""Hooks that are installed and that Slurm does not run: who says so, and from which jobs on."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from sqlalchemy import delete, update

from api_under_test import ApiUnderTest, FakeScheduler
from cells import each
from oakum_service.db.models.callers import ApiToken
from oakum_service.db.models.cluster import ForegroundStart, HookEventRecord, NodeInterval
from oakum_service.schedulers.port import HookKind
from oakum_service.schedulers.slurm.hooks import trial_job
from oakum_service.schedulers.slurm.hooks.missed import GRACE_S, missed_jobs
from oakum_service.schedulers.slurm.hooks.watch import HookWatch
from oakum_service.schedulers.slurm.preflight import hooks_run
from oakum_service.states import NodeState
from waiting import wait_until

DAY_S = 24 * 3600.0


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler(name="slurm")


@pytest.fixture
def installed(api: ApiUnderTest) -> ApiUnderTest:
    """Hooks were installed two days ago, and their token made."""
    with api.sessions.begin() as session:
        for table in (ForegroundStart, HookEventRecord, NodeInterval):
            session.execute(delete(table))
        session.execute(update(ApiToken).values(created_at=time.time() - 2 * DAY_S))
    return api


def see(api: ApiUnderTest, job: int, ago_s: float, *heard: HookKind, after: str = NodeState.HOLE) -> None:
    """The service has seen a job that started and ended so long ago on a node, which then was in the state
    `after`; hooks have told of what is in `heard`."""
    at = time.time() - ago_s
    node = f"n{job}"
    with api.sessions.begin() as session:
        session.add(ForegroundStart(job=str(job), started_at=at - 5.0, num_nodes=1, delay_s=0.0))
        session.add(NodeInterval(node=node, state="foreground", job=str(job), start_at=at - 5.0, end_at=at))
        session.add(NodeInterval(node=node, state=after, start_at=at))
        for kind in heard:
            times = dict.fromkeys(("first_at", "newest_at", "received_at"), at)
            known = {
                "cluster": "c",
                "job_id": job,
                "restart": 0,
                "uid": 0,
                "partition": "",
                "nodes": node,
                "count": 1,
            }
            session.add(HookEventRecord(kind=kind, heard={"prolog_slurmctld": ""}, **known, **times))


def told(api: ApiUnderTest) -> str | None:
    """What /readyz says of the hooks."""
    api.app.state.hook_intakes["slurm"].watch = HookWatch(api.context.readers)
    (check,) = [check for check in api.anonymous.get("/readyz").json()["checks"] if check["name"] == "hooks"]
    return check["detail"]


def test_jobs_in_a_row_of_which_no_hook_has_told_are_named_and_the_service_stays_ready(
    installed: ApiUnderTest,
) -> None:
    api = installed
    api.context.turns.note_turn()
    see(api, 1, 9000.0, *HookKind)
    for job in (2, 3):
        see(api, job, 9000.0 - 100 * job)
    see(api, 9, GRACE_S - 60.0)  # its hooks may still come from a spool
    assert told(api) is None
    see(api, 4, 8000.0)
    detail = told(api)
    assert detail is not None
    assert detail.startswith(
        "no hook has told of the start of the last 3 jobs (4, 3, 2), so Slurm does not run them"
    )
    assert "restart slurmctld" in detail
    assert api.anonymous.get("/readyz").status_code == 200
    shown = 'oakum_hooks_missed{of="start"} 3.0'
    wait_until("the metric says so", lambda: shown in api.anonymous.get("/metrics").text)
    see(api, 5, 7000.0, HookKind.ALLOCATED)
    detail = told(api)
    assert detail is not None
    assert detail.startswith("no hook has told of the end of the last 4 jobs (5, 4, 3, ...)")
    see(api, 6, 6000.0, *HookKind)
    assert told(api) is None


def _not_installed(api: ApiUnderTest) -> None:
    with api.sessions.begin() as session:
        session.execute(delete(ApiToken).where(ApiToken.name == "slurm-hooks"))


def _installed_since(api: ApiUnderTest) -> None:
    with api.sessions.begin() as session:
        session.execute(update(ApiToken).values(created_at=time.time() - 60.0))


@each("circumstance", [_not_installed, _installed_since])
def test_hooks_that_are_not_expected_are_not_missed(
    installed: ApiUnderTest, circumstance: Callable[[ApiUnderTest], None]
) -> None:
    base = int(time.time() * 1000) % 10**9
    for number in range(5):
        see(installed, base + number, 9000.0 - number)
    circumstance(installed)
    assert told(installed) is None
    assert hooks_run.check(installed.settings, None) == []


def test_a_node_that_is_drained_under_its_job_is_no_end_of_the_job(installed: ApiUnderTest) -> None:
    for number in range(5):
        see(installed, number, 9000.0 - number, HookKind.ALLOCATED, after=NodeState.UNAVAILABLE)
    with installed.sessions.begin() as session:
        assert missed_jobs(session, time.time()).ended == ()


@each(
    ("heard", "level", "words"),
    [
        ((), "error", "Slurm does not run them: none told of job 71"),
        ((HookKind.ALLOCATED,), "error", "none that it was ended"),
        (tuple(HookKind), "ok", "Slurm runs them: prolog_slurmctld, prolog_slurmctld told of job 71"),
    ],
)
def test_the_job_of_oakum_check_shows_whether_slurm_runs_the_hooks(
    installed: ApiUnderTest, monkeypatch: pytest.MonkeyPatch, heard: tuple[HookKind, ...], level: str, words: str
) -> None:
    monkeypatch.setattr(trial_job, "HEARD_WITHIN_S", 0.1)
    with installed.sessions.begin() as session:
        session.execute(delete(HookEventRecord))
        session.execute(delete(NodeInterval))
        session.execute(delete(ForegroundStart))
    see(installed, 71, 5.0, *heard)
    (finding,) = hooks_run.check(installed.settings, 71)
    assert (finding.level, words in finding.found) == (level, True)
    assert bool(finding.change) == (level == "error")
    document = installed.hook.get("/v1/hooks/slurm/71").json()
    assert document == {"job_id": 71, "heard": {kind: ["prolog_slurmctld"] for kind in heard}}


def test_a_job_that_could_not_run_leaves_it_unknown(installed: ApiUnderTest) -> None:
    (finding,) = hooks_run.check(installed.settings, None, "no job could be run")
    assert (finding.level, finding.found) == ("note", "whether Slurm runs them is not known: no job could be run")
