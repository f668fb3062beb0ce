"""Which rows and files the service deletes, and which it keeps."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select

from api_under_test import SPEC, report
from oakum_service.control import retention
from oakum_service.control.fragment_ends import end_fragment
from oakum_service.control.retention import ENDED_TRAINERS_S, HISTORY_S, forget, remove_folders
from oakum_service.control.thinning import POINTS, Point
from oakum_service.db.engine import Sessions
from oakum_service.db.models.cluster import ForegroundStart, NodeInterval
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.progress import EvaluationRecord, ProgressSample
from oakum_service.db.models.trainers import GenerationRecord, Trainer, TrainerTag
from oakum_service.db.models.usage import Harvest
from plan_records import plan_record


def test_what_nodes_did_is_known_for_as_long_as_the_history_reaches(sessions: Sessions) -> None:
    begin = time.time() - HISTORY_S
    with sessions.begin() as session:
        for node, end_at in (("gone", begin - 60.0), ("kept", begin + 60.0), ("still", None)):
            session.add(NodeInterval(node=node, state="hole", start_at=begin - 120.0, end_at=end_at))
        for job, started_at in (("gone", begin - 60.0), ("kept", begin + 60.0)):
            session.add(ForegroundStart(job=job, started_at=started_at, num_nodes=1, delay_s=0.1))
        session.flush()
        forget(session, time.time())
        assert list(session.execute(select(NodeInterval.node).order_by(NodeInterval.id)).scalars()) == [
            "kept",
            "still",
        ]
        assert list(session.execute(select(ForegroundStart.job)).scalars()) == ["kept"]


def test_ended_fragments_lose_their_folders_after_a_day_whether_they_reported_or_not(sessions: Sessions) -> None:
    ended_hours_ago = {
        "reported": 25,
        "silent": 25,
        "recent": 23,
        "reported long ago": 100,
    }
    with sessions.begin() as session:
        session.add(Trainer(id="t", name="digits", spec=SPEC, state="running", submitted_at=0.0))
        session.flush()
        for name, hours in ended_hours_ago.items():
            ended_at = time.time() - hours * 3600.0
            session.add(
                Fragment(
                    id=name,
                    trainer_id="t",
                    node="n1",
                    state=FragmentState.ENDED,
                    launched_at=0.0,
                    ended_at=ended_at,
                )
            )
            session.flush()
            if name.startswith("reported"):
                session.add(Report(fragment_id=name, sequence=1, received_at=0.0, body=report()))
        session.flush()
        forgotten = forget(session, time.time())
        assert set(forgotten.fragments) == {"reported", "silent", "reported long ago"}
        assert forgotten.is_all
        assert [*forget(session, time.time(), forgotten.folders_to).fragments] == []


def test_an_arrays_folder_goes_with_the_last_of_its_fragments(tmp_path: Path) -> None:
    for name in ("f1", "f2", "array", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "array" / "array.json").write_text(
        '{"fragments": ["f1", "f2"], "addresses": {}}', encoding="utf-8"
    )
    (tmp_path / "other" / "array.json").write_text("damaged", encoding="utf-8")
    remove_folders(tmp_path, ["f1"])
    assert {path.name for path in tmp_path.iterdir()} == {"f2", "array", "other"}
    remove_folders(tmp_path, ["f2"])
    assert {path.name for path in tmp_path.iterdir()} == {"other"}


def test_what_has_ended_is_deleted_step_by_step_and_its_sums_stay(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_BATCH", 40)
    now, count = 2_000_000_000.0, 60
    with sessions.begin() as session:
        session.add(Trainer(id="t", name="digits", spec=SPEC, state="running", submitted_at=0.0, generation=100))
        session.flush()
        for number in range(count):
            at = now - HISTORY_S - 5000.0 + number
            fragment = Fragment(
                id=f"f{number}", trainer_id="t", node="n1", state=FragmentState.LIVE, launched_at=at - 30.0,
                training_at=at - 10.0,
            )  # fmt: skip
            session.add(fragment)
            session.flush()
            end_fragment(session, fragment, at)
        for number, age_s in ((1, HISTORY_S + 60.0), (60, HISTORY_S + 60.0), (90, 60.0)):
            session.add(
                GenerationRecord(trainer_id="t", number=number, nodes=(), cause="", published_at=now - age_s)
            )
    steps, folders_to = 0, 0.0
    while True:
        with sessions.begin() as session:
            forgotten = forget(session, now, folders_to)
        steps, folders_to = steps + 1, forgotten.folders_to
        assert len(forgotten.fragments) <= 40
        if forgotten.is_all:
            break
    assert steps == 2
    with sessions.begin() as session:
        assert session.query(Fragment).count() == 0
        trainer = session.get_one(Trainer, "t")
        assert (trainer.past_node_s, trainer.past_warm_up_node_s) == (30.0 * count, 20.0 * count)
        assert sum(session.execute(select(Harvest.node_s)).scalars()) == 10.0 * count
        assert list(session.execute(select(GenerationRecord.number)).scalars()) == [60, 90]


def test_a_trainer_that_ended_long_ago_is_deleted_with_all_that_is_left_of_it(sessions: Sessions) -> None:
    now = 2_000_000_000.0
    with sessions.begin() as session:
        for name, ended_at in (("old", now - ENDED_TRAINERS_S - 1.0), ("new", now - 60.0), ("live", None)):
            row = Trainer(id=name, name=name, spec=SPEC, state="finished", submitted_at=0.0, ended_at=ended_at)
            session.add(row)
            session.flush()
            session.add(GenerationRecord(trainer_id=name, number=1, nodes=(), cause="", published_at=now))
            session.add(ProgressSample(trainer_id=name, at=now, step=1, nodes=1))
            session.add(EvaluationRecord(trainer_id=name, step=1, at=now, metrics={}))
            session.add(TrainerTag(trainer_id=name, tag="baseline", submitted_at=0.0))
    with sessions.begin() as session:
        while not forget(session, now).is_all:
            pass
        assert set(session.execute(select(Trainer.id)).scalars()) == {"new", "live"}
        assert session.query(GenerationRecord).count() == session.query(ProgressSample).count() == 2
        assert session.query(EvaluationRecord).count() == session.query(TrainerTag).count() == 2


def sample(begin: float, step: int, nodes: int) -> dict[str, Any]:
    """Columns of the point of a step a second."""
    return {"trainer_id": "t", "at": begin + step, "step": step, "nodes": nodes, "loss": 1.0 / (step + 1)}


def test_chart_points_are_thinned_out_over_the_whole_run(sessions: Sessions) -> None:
    """A report a second, of a loss that falls, with a pause and a change of size early on."""
    reports, now = 20_000, 2_000_000_000.0
    with sessions.begin() as session:
        session.add(Trainer(id="t", name="t", spec=SPEC, state="running", submitted_at=0.0))
    most = 0
    for begin in range(0, reports, 1000):
        with sessions.begin() as session:
            steps = range(begin, begin + 1000)
            rows = [sample(now, step, 0 if step == 300 else 1 + (step > 500)) for step in steps]
            session.execute(insert(ProgressSample), rows)
            forget(session, now + begin + 1000)
            most = max(most, session.query(ProgressSample).count())
    with sessions.begin() as session:
        kept = [Point(*row) for row in session.execute(POINTS.order_by(ProgressSample.id))]
    assert most <= 5_000
    assert sum(point.reports for point in kept) == reports
    assert [point.at for point in kept] == sorted(point.at for point in kept)
    assert [point.step for point in kept if not point.nodes] == [300]
    assert {299, 300, 500, reports - 1} <= {point.step for point in kept}
    assert all(point.reports == 1 for point in kept[-1000:])
    first, *_ = kept
    assert (first.loss_max or first.loss) == 1.0
    longest_s = max(later.at - before.at for before, later in pairwise(kept))
    assert longest_s <= reports / 250


def test_sizes_that_change_with_each_report_are_put_together_beyond_a_bound(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = {"_KEPT_SAMPLES": 50, "_RECENT_SAMPLES": 10, "_OLD_SAMPLES": 20, "_MOST_SAMPLES": 60}
    for name, number in bounds.items():
        monkeypatch.setattr(retention, name, number)
    now = 2_000_000_000.0
    with sessions.begin() as session:
        session.add(Trainer(id="t", name="t", spec=SPEC, state="running", submitted_at=0.0))
        session.flush()
        session.execute(insert(ProgressSample), [sample(now, step, 1 + step % 2) for step in range(100)])
        forget(session, now + 100)
        assert session.query(ProgressSample).count() <= 30


def test_evaluations_are_thinned_out_over_the_whole_training(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_KEPT_EVALUATIONS", 6)
    now = time.time()
    with sessions.begin() as session:
        for name, count in (("many", 8), ("few", 6)):
            session.add(Trainer(id=name, name=name, spec=SPEC, state="running", submitted_at=0.0))
            session.flush()
            for step in range(10, 10 * count + 1, 10):
                session.add(EvaluationRecord(trainer_id=name, step=step, at=now, metrics={"accuracy": 0.5}))
    for _ in range(2):
        with sessions.begin() as session:
            forget(session, now)
    with sessions.begin() as session:
        left = select(EvaluationRecord.step).order_by(EvaluationRecord.step)
        assert session.scalars(left.where(EvaluationRecord.trainer_id == "many")).all() == [10, 30, 50, 70, 80]
        assert len(session.scalars(left.where(EvaluationRecord.trainer_id == "few")).all()) == 6


def test_plans_are_forgotten_by_age_but_for_the_one_in_force(sessions: Sessions) -> None:
    now = 2_000_000_000.0
    with sessions.begin() as session:
        session.add_all([plan_record(made_at=now - HISTORY_S - 5.0) for _ in range(3)])
        session.flush()
        forget(session, now)
        assert list(session.execute(select(PlanRecord.id)).scalars()) == [3]
