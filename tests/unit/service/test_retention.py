"""What is forgotten, and what is not."""

from __future__ import annotations

import time
from pathlib import Path

from sqlalchemy import select

from oakum_service.control.retention import HISTORY_S, forget, remove_folders
from oakum_service.db.engine import Sessions
from oakum_service.db.models import ForegroundStart, Fragment, FragmentState, NodeInterval, Report, Trainer


def test_what_nodes_did_is_known_for_as_long_as_the_history_reaches(sessions: Sessions) -> None:
    begin = time.time() - HISTORY_S
    with sessions.begin() as session:
        for node, end_at in (("gone", begin - 60.0), ("kept", begin + 60.0), ("still", None)):
            session.add(NodeInterval(node=node, state="hole", start_at=begin - 120.0, end_at=end_at))
        for job, started_at in (("gone", begin - 60.0), ("kept", begin + 60.0)):
            session.add(ForegroundStart(job=job, started_at=started_at, num_nodes=1, delay_s=0.1))
        session.flush()
        forget(session)
        assert list(session.execute(select(NodeInterval.node)).scalars()) == ["kept", "still"]
        assert list(session.execute(select(ForegroundStart.job)).scalars()) == ["kept"]


def test_ended_fragments_lose_their_folders_after_a_day_whether_they_reported_or_not(sessions: Sessions) -> None:
    ended_hours_ago = {
        "reported": 25,
        "silent": 25,
        "recent": 23,
        "reported long ago": 100,
        "silent long ago": 100,
    }
    with sessions.begin() as session:
        session.add(Trainer(id="t", name="digits", spec={}, state="running", submitted_at=0.0))
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
                session.add(Report(fragment_id=name, sequence=1, received_at=0.0, body={}))
        session.flush()
        assert set(forget(session)) == {"reported", "silent", "reported long ago"}


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
