"""What a turn of the controller costs does not depend on how much has happened before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session
from sqlalchemy.orm.util import identity_key

from oakum_service.db.engine import Sessions
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.schedulers.port import JobStart
from virtual_site import VirtualSite

GROWING = ("fragments", "reports", "generations", "trainers", "plans", "progress", "node_intervals",
           "foreground_starts", "snapshots", "events", "notices")  # fmt: skip
"""Tables whose rows outlive what they tell of."""


@contextmanager
def plans_of_queries(engine: Engine) -> Iterator[list[tuple[str, str]]]:
    """(statement, step of its query plan) for each query that the engine runs meanwhile."""
    asked: list[tuple[str, Any]] = []
    steps: list[tuple[str, str]] = []

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE")):
            asked.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield steps
    finally:
        event.remove(engine, "before_cursor_execute", note)
    with engine.connect() as connection:
        for statement, parameters in dict(asked).items():
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            steps.extend((statement, row[3]) for row in plan)


def reads_all(statement: str, step: str) -> bool:
    """Whether the step reads a whole table that grows with time, or all fragments that a trainer has had, rather
    than the newest rows."""
    words = step.split()
    if words[1] == "fragments" and step.endswith("(trainer_id=?)"):
        return True
    return words[0] == "SCAN" and words[1] in GROWING and not ("ORDER BY" in statement and "LIMIT" in statement)


def history(sessions: Sessions, trainer: str, now: float) -> None:
    with sessions.begin() as session:
        for number in range(300):
            at = now - 10_000.0 + number
            session.add(
                Fragment(id=f"old {number}", trainer_id=trainer, node="node001", state=FragmentState.ENDED,
                         launched_at=at, ended_at=at + 1.0, training_at=at)
            )  # fmt: skip


def test_no_turn_reads_what_has_ended(sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = VirtualSite(sessions, tmp_path, num_nodes=8, busy=2)
    monkeypatch.setattr("time.time", site.time)
    site.submit("digits", max_nodes=4)
    site.begin()
    site.run(15)
    with sessions.begin() as session:
        trainer = session.query(Trainer).one().id
    history(sessions, trainer, site.now)
    site.scheduler.starts = [JobStart("77", site.now, 1, delay_s=None, nodes=("node001",))]
    site.now += 1.0
    site._turn_jobs()
    site._show_nodes()
    site._turn_agents()
    with plans_of_queries(sessions.kw["bind"]) as steps:
        site.controller._observe_and_decide()
        site.controller._plan_and_execute()
    assert any("fragments" in step for _, step in steps)
    assert {f"{step}: {statement}" for statement, step in steps if reads_all(statement, step)} == set()


def test_a_turn_makes_each_row_that_it_asks_for_once(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn queries all fragments and their reports several times. With a thousand agents, making the rows'
    objects for each query took half of the turn."""
    site = VirtualSite(sessions, tmp_path, num_nodes=8, busy=0)
    monkeypatch.setattr("time.time", site.time)
    site.submit("digits", max_nodes=4)
    site.begin()
    site.run(15)
    made: list[tuple[Session, Any]] = []

    def note(session: Session, row: object) -> None:
        if isinstance(row, (Fragment, Report)):
            made.append((session, identity_key(instance=row)))

    event.listen(Session, "loaded_as_persistent", note)
    try:
        site.controller._observe_and_decide()
    finally:
        event.remove(Session, "loaded_as_persistent", note)
    assert len(made) == len(set(made)) == 8
