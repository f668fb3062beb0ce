"""A scheduler that the service does not know: a folder of its own, `openpbs`, and a line in the table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import pytest

import openpbs
from api_under_test import SPEC, ApiUnderTest, problem_of
from controlled import controlled
from oakum_client.cli.error_lines import error_lines
from oakum_client.cli.serve import serve
from oakum_service.config import Settings
from oakum_service.control.setbacks import last_words
from oakum_service.errors import ConfigurationError
from oakum_service.scheduler_table import SCHEDULERS, SchedulerKind, scheduler_names
from oakum_service.schedulers.opening import entry_of, open_scheduler
from oakum_service.schedulers.port import Scheduler
from oakum_service.states import NodeState
from openpbs.scheduler import PbsScheduler
from waiting import wait_until

ANSWER = Path(openpbs.__file__).with_name("pbsnodes.json")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Settings, Scheduler]:
    """What a service with that line has, in whose configuration file the scheduler has a table."""
    kind = SchedulerKind("openpbs.entry:PbsEntry", launcher_lines=("pbs_mom: ",), ending_lines=("pbs_mom: ended",))
    monkeypatch.setitem(SCHEDULERS, "pbs", kind)
    file = tmp_path / "oakum.toml"
    file.write_text(f'scheduler = "pbs"\n[pbs]\npbsnodes = "cat {ANSWER}"\n', encoding="utf-8")
    with monkeypatch.context() as starting:
        starting.setenv("OAKUM_CONFIG", str(file))
        settings = Settings()
        return settings, open_scheduler(settings, b"secret")


@pytest.fixture
def settings(opened: tuple[Settings, Scheduler]) -> Settings:
    return opened[0]


@pytest.fixture
def scheduler(opened: tuple[Settings, Scheduler]) -> Scheduler:
    return opened[1]


@pytest.fixture
def on_pbs(api: ApiUnderTest, settings: Settings) -> ApiUnderTest:
    api.settings.scheduler = settings.scheduler
    return api


def test_its_idle_nodes_become_holes_and_a_trainer_gets_one(on_pbs: ApiUnderTest, scheduler: PbsScheduler) -> None:
    api = on_pbs
    with controlled(api):
        api.submit()
        wait_until("a fragment is submitted", lambda: scheduler.jobs)
    assert [job.node for job in scheduler.jobs.values()] == ["n1"]
    shown = {node["name"]: node["state"] for node in api.viewer.get("/v1/nodes").json()["nodes"]}
    assert shown == {
        "n1": NodeState.HOLE,
        "n2": NodeState.FOREGROUND,
        "n3": NodeState.FOREGROUND,
        "n4": NodeState.UNAVAILABLE,
    }
    cluster = api.viewer.get("/v1/cluster").json()
    assert (cluster["scheduler"], cluster["num_holes"]) == ("pbs", 1)


def test_what_it_cannot_do_is_refused_or_left_out(on_pbs: ApiUnderTest, settings: Settings) -> None:
    api = on_pbs
    assert entry_of(settings.scheduler).describe(settings) == "the nodes of OpenPBS"
    assert (settings.learns_curves, settings.runs_as_submitters) == (True, False)
    asks_slurm = api.user.post("/v1/trainers", json=SPEC | {"slurm": {"qos": "low"}})
    assert "does not submit to Slurm" in problem_of(asks_slurm, 403)["detail"]
    problem_of(api.hook.post("/v1/cluster/snapshots", content=b"{}"), 409)
    problem_of(api.admin.post("/v1/cluster/foreground-jobs", json={"nodes": 1, "run_s": 5.0}), 409)
    assert "hooks" not in {check["name"] for check in api.anonymous.get("/readyz").json()["checks"]}


def test_a_name_that_is_not_in_the_table_is_told_with_those_that_are(settings: Settings) -> None:
    assert scheduler_names().endswith(" or 'pbs'")
    with pytest.raises(ConfigurationError, match=re.escape(f"SCHEDULER is 'oar': expected {scheduler_names()}")):
        Settings(scheduler="oar")


@pytest.mark.usefixtures("opened")
def test_what_it_writes_into_a_fragments_log_is_not_taken_for_what_users_code_wrote() -> None:
    log = ["ValueError: no data", "pbs_mom: error: sister node gone", "pbs_mom: ended with an error"]
    assert last_words(log).text == "pbs_mom: error: sister node gone"
    assert last_words(log[::2]).text == "ValueError: no data"
    assert error_lines([f"n1 | {line}" for line in log]) == ["n1 | ValueError: no data"]


def test_the_help_of_serve_names_what_is_in_the_table() -> None:
    told = get_type_hints(serve, include_extras=True)["scheduler"].__metadata__[0].help
    assert [name for name in SCHEDULERS if repr(name) not in told] == []
