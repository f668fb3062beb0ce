"""Columns of JSON: rows carry values, and what older versions wrote stays readable."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import JSON, text
from sqlalchemy.exc import StatementError

from api_under_test import SPEC, report
from oakum_service.db.engine import Sessions
from oakum_service.db.json_columns import JsonOf
from oakum_service.db.models.base import Base
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.progress import MeasuredRate
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.crash import NewestCrash
from oakum_service.documents.grant import Grant
from oakum_service.documents.time_account import TimeAccount
from oakum_service.states import TimeUse
from oakum_solver.learnt_curves import RateWindow
from oakum_worker.protocol import Phase
from oakum_worker.spec import TrainerSpec
from plan_records import plan_record

FREE = {("audit", "details"), ("events", "data"), ("idempotency", "body")}
"""What is passed on as it is: facts that differ from event to event or act to act, and answers of the API."""
PROGRESS = {"generation": 2, "nodes": 3, "step": 30, "total_steps": 40, "epoch": 0, "samples": 240}
ACCOUNT = {"began_at": 5.0, "since": 9.0, "use": "training", "seconds": {"cold_start": 4.0}, "stepped_at": 9.5,
           "generation": 2, "reached": 20, "redone_steps": 0, "redone_s": 0.0}  # fmt: skip
CRASH = {"at": 7.0, "step": 12, "what": "it broke", "error": "E", "most": 3, "traceback": "tb"}
WRITTEN: dict[str, Any] = {
    "progress": PROGRESS,
    "pace": {"steps": 2, "seconds": 1.5, "reading_s": 0.5},
    "steps_at_size": {"1": 10, "3": 20},
    "durations": {"grow": [0.25, 0.5], "start_up": [4.0]},
    "account": ACCOUNT,
    "crash": CRASH,
    "members": ["a", "b"],
}
"""JSON of a trainer's row as versions without typed columns wrote it."""


def add_trainer(sessions: Sessions) -> None:
    with sessions.begin() as session:
        session.add(Trainer(id="t", name="digits", spec=SPEC, state="running", submitted_at=0.0))


def test_each_column_of_json_has_a_type() -> None:
    columns = [column for table in Base.metadata.tables.values() for column in table.columns]
    untyped = {(c.table.name, c.name) for c in columns if isinstance(c.type, JSON)}
    typed = {(c.table.name, c.name) for c in columns if isinstance(c.type, JsonOf)}
    assert untyped == FREE
    assert {name for _, name in typed} >= {*WRITTEN, "spec", "body", "allocations", "recent", "document", "heard"}


def test_a_trainer_of_before_is_read(sessions: Sessions) -> None:
    add_trainer(sessions)
    with sessions.begin() as session:
        for column, document in WRITTEN.items():
            session.execute(text(f"UPDATE trainers SET {column} = :json"), {"json": json.dumps(document)})
    with sessions.begin() as session:
        row = session.get_one(Trainer, "t")
        assert row.spec == TrainerSpec.model_validate(SPEC)
        assert row.progress is not None
        assert (row.progress.step, row.progress.total_samples, row.reported_step) == (30, None, 30)
        assert row.pace is not None
        assert (row.pace.seconds, row.pace.waiting_s) == (1.5, None)
        assert row.steps_at_size == {1: 10, 3: 20}
        assert row.durations == {"grow": (0.25, 0.5), "start_up": (4.0,)}
        spent = {TimeUse.COLD_START: 4.0}
        assert row.account == TimeAccount(5.0, 9.0, TimeUse.TRAINING, spent, 9.5, generation=2, reached=20)
        assert row.crash == NewestCrash(7.0, 12, "it broke", "E", 3, "tb")
        assert row.members == ("a", "b")


def test_what_is_written_is_the_json_of_before(sessions: Sessions) -> None:
    test_a_trainer_of_before_is_read(sessions)
    with sessions.begin() as session:
        row = session.get_one(Trainer, "t")
        for column in WRITTEN:
            value = getattr(row, column)
            setattr(row, column, None if value is None or column in ("progress", "pace") else value)
        row.account = row.account and row.account.turn_to(TimeUse.WAITING, 11.0)
        row.crash = NewestCrash(traceback="of a task that cannot be built")
        row.members, row.steps_at_size, row.durations = ("b",), {2: 5}, {"loss": (1.0,)}
        session.add(Fragment(id="f", trainer_id="t", node="n", state=FragmentState.LIVE, launched_at=0.0))
        session.flush()
        session.add(Report(fragment_id="f", sequence=1, received_at=0.0, body=report(phase=Phase.READY)))
        windows = (RateWindow(5.0, 90.0),)
        rate = {"nodes": 1, "seconds": 5.0, "samples": 450.0, "explored_s": 0.0, "recent": windows}
        session.add(MeasuredRate(trainer_id="t", **rate))
        session.add(plan_record({"t": Grant(("n",), "all_idle", "no other node is idle")}))
        session.flush()

        def kept(column: str, table: str) -> Any:
            return json.loads(session.execute(text(f"SELECT {column} FROM {table}")).scalar_one())

        assert (kept("progress", "trainers"), kept("pace", "trainers")) == ({}, {})
        changed = {"use": "waiting", "since": 11.0}
        assert kept("account", "trainers") | {"seconds": {}} == ACCOUNT | changed | {"seconds": {}}
        assert kept("account", "trainers")["seconds"]["training"] == 2.0
        assert kept("crash", "trainers")["traceback"] == "of a task that cannot be built"
        assert "at" not in kept("crash", "trainers")
        assert kept("members", "trainers") == ["b"]
        assert kept("steps_at_size", "trainers") == {"2": 5}
        assert kept("durations", "trainers") == {"loss": [1.0]}
        assert kept("body", "reports") == report(phase=Phase.READY)
        assert kept("recent", "measured_rates") == [[5.0, 90.0]]
        grant = {"nodes": ["n"], "why": "all_idle", "reason": "no other node is idle", "renewal": ""}
        assert kept("allocations", "plans") == {"t": grant}


@pytest.mark.parametrize("column", ["progress", "pace", "account", "crash"])
def test_a_new_trainer_has_none_of_it_and_its_row_no_null(sessions: Sessions, column: str) -> None:
    add_trainer(sessions)
    with sessions.begin() as session:
        assert getattr(session.get_one(Trainer, "t"), column) is None
        assert session.execute(text(f"SELECT {column} FROM trainers")).scalar_one() == "{}"


def test_a_progress_that_is_not_valid_any_more_keeps_nobody_from_reading_the_trainer(sessions: Sessions) -> None:
    add_trainer(sessions)
    told = json.dumps(PROGRESS | {"checkpoint_step": 2**63})
    with sessions.begin() as session:
        session.execute(text("UPDATE trainers SET progress = :json"), {"json": told})
        assert (session.get_one(Trainer, "t").progress, session.get_one(Trainer, "t").reported_step) == (None, 0)


def test_a_value_that_could_not_be_read_again_is_not_written(sessions: Sessions) -> None:
    add_trainer(sessions)
    with pytest.raises(StatementError) as caught, sessions.begin() as session:
        session.get_one(Trainer, "t").progress = {"step": -1}  # type: ignore[assignment]
    assert isinstance(caught.value.orig, ValidationError)
