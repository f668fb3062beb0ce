"""What became of idle node-time: what trained, and what was lost by cause, adds up to all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import delete, select

from api_under_test import SPEC
from oakum_service.control.fragment_ends import end_fragment
from oakum_service.control.idle_time import USES, IdleTime, idle_time, lose, note_launches
from oakum_service.control.usage import Usage, complete_hours, usage_since
from oakum_service.db.engine import Sessions
from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.trainers import Trainer
from oakum_service.db.models.usage import LostHour
from oakum_service.documents.slots import bundle_name, slot_name
from oakum_worker.protocol import Phase
from scripted_trainer import ScriptedTrainer
from virtual_site import VirtualSite

NOW = 1_800_000_000.0
"""Begins an hour."""
WEEK_S = 7 * 86400.0


@pytest.fixture(autouse=True)
def nothing_counted(sessions: Sessions) -> None:
    """The migration's first row is of the present hour."""
    with sessions.begin() as session:
        session.execute(delete(LostHour))


def losses(sessions: Sessions, at: float) -> tuple[float, float, float]:
    """(found late, start-up, stalled) of the hour, in node-seconds."""
    with sessions.begin() as session:
        row = session.get(LostHour, int(at // 3600))
        return (0.0, 0.0, 0.0) if row is None else (row.late_node_s, row.start_up_node_s, row.stalled_node_s)


def add_trainer(sessions: Sessions) -> None:
    with sessions.begin() as session:
        session.add(Trainer(id="t", name="digits", spec=SPEC, state="running", submitted_at=0.0))


def add_fragment(sessions: Sessions, node: str, launched_at: float, **fields: float | str | None) -> None:
    with sessions.begin() as session:
        given = {"state": FragmentState.LIVE, **fields}
        session.add(Fragment(id=f"on {node}", trainer_id="t", node=node, launched_at=launched_at, **given))


def went(sessions: Sessions, usage: Usage, now: float = NOW, begin: float = NOW - WEEK_S) -> IdleTime:
    with sessions.begin() as session:
        return idle_time(session, usage, begin, now)


def test_a_node_that_is_launched_on_soon_was_found_late_and_one_that_waited_was_not_wanted(
    sessions: Sessions,
) -> None:
    add_trainer(sessions)
    free_since = {"at once": NOW, "soon": NOW - 30.0, "handed on": NOW - 5000.0, "long": NOW - 121.0}
    with sessions.begin() as session:
        for node, start_at in free_since.items():
            session.add(NodeInterval(node=node, state="hole", start_at=start_at, end_at=None))
        session.add(NodeInterval(node="soon", state="hole", start_at=NOW - 99.0, end_at=NOW - 60.0))
        session.add(NodeInterval(node="taken", state="foreground", start_at=NOW - 5.0, end_at=None))
    add_fragment(sessions, "handed on", NOW - 400.0, state=FragmentState.ENDED, ended_at=NOW - 7.0)
    with sessions.begin() as session:
        note_launches(session, [*free_since, "taken"], NOW)
        note_launches(session, [], NOW)
    assert losses(sessions, NOW) == (30.0 + 7.0, 0.0, 0.0)


def test_a_slot_that_a_fragment_had_with_others_is_free_since_its_end(sessions: Sessions) -> None:
    add_trainer(sessions)
    with sessions.begin() as session:
        session.add(NodeInterval(node="n1", state="hole", start_at=NOW - 5000.0, end_at=None))
        session.add(NodeInterval(node=slot_name("n2", 1), state="hole", start_at=NOW - 5000.0, end_at=None))
    both = bundle_name([slot_name("n2", 0), slot_name("n2", 1)])
    add_fragment(sessions, both, NOW - 400.0, state=FragmentState.ENDED, ended_at=NOW - 7.0)
    with sessions.begin() as session:
        note_launches(session, ["n1", slot_name("n2", 1)], NOW)
    assert losses(sessions, NOW) == (7.0, 0.0, 0.0)


def test_a_start_up_is_lost_until_a_fragment_trains_and_all_of_one_that_never_does(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = ScriptedTrainer(sessions, monkeypatch)
    trainer.launch("a", "b")
    trainer.say("a", Phase.READY, startup_s=3.0)
    trainer.turn(after_s=4.0)
    trainer.switch("a", 1, 0, source="scratch")
    trainer.turn(after_s=2.0)
    assert losses(sessions, trainer.now) == (0.0, 6.0, 0.0)
    with sessions.begin() as session:
        fragment = session.get_one(Fragment, "b")
        fragment.cause = "preempted"
        end_fragment(session, fragment, trainer.now + 3.0)
        end_fragment(session, session.get_one(Fragment, "a"), trainer.now + 50.0)
    assert losses(sessions, trainer.now) == (0.0, 6.0 + 9.0, 0.0)


def test_one_that_never_started_had_no_node(sessions: Sessions) -> None:
    add_trainer(sessions)
    add_fragment(sessions, "n1", NOW)
    with sessions.begin() as session:
        fragment = session.get_one(Fragment, "on n1")
        fragment.cause = "never started"
        end_fragment(session, fragment, NOW + 30.0)
    assert losses(sessions, NOW) == (0.0, 0.0, 0.0)


def test_a_stall_is_lost_on_each_node(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = ScriptedTrainer(sessions, monkeypatch)
    trainer.launch("a")
    trainer.say("a", Phase.READY, startup_s=3.0)
    trainer.turn()
    trainer.switch("a", 1, 0, source="scratch")
    trainer.turn()
    trainer.progress("a", 1, 20)
    trainer.turn(after_s=10.0)
    trainer.launch("b")
    trainer.say("b", Phase.READY, startup_s=4.5)
    trainer.turn(after_s=5.0)
    trainer.switch("a", 2, 20, stall_s=1.0, step_s=0.25)
    trainer.turn(after_s=3.0)
    assert losses(sessions, trainer.now)[2] == pytest.approx(2 * 0.75)


def test_training_counts_for_as_long_as_its_node_is_idle(sessions: Sessions) -> None:
    add_trainer(sessions)
    add_fragment(sessions, "n1", NOW - 95.0, training_at=NOW - 90.0, ended_at=NOW - 5.0, state=FragmentState.ENDED)
    add_fragment(sessions, "n2", NOW - 45.0, training_at=NOW - 40.0)
    with sessions.begin() as session:
        for node, state, *times in [
            ("n1", "hole", NOW - 100.0, NOW - 10.0),
            ("n1", "foreground", NOW - 10.0, None),
            ("n2", "hole", NOW - 50.0, None),
        ]:
            session.add(NodeInterval(node=node, state=state, start_at=times[0], end_at=times[1]))
        session.flush()
        assert usage_since(session, NOW - 3600.0, NOW) == Usage(idle_node_s=140.0, used_node_s=120.0)
        (hour,) = complete_hours(session, NOW + 3600.0)
        assert (hour.idle_node_s, hour.used_node_s) == (140.0, 120.0)


def test_the_parts_add_up_to_the_idle_node_time(sessions: Sessions) -> None:
    add_trainer(sessions)
    add_fragment(sessions, "n1", NOW - 20.0)
    with sessions.begin() as session:
        lose(session, NOW - WEEK_S - 4000.0, late_node_s=1e6)
        lose(session, NOW - WEEK_S, start_up_node_s=100.0)
        lose(session, NOW - 1.0, late_node_s=50.0, stalled_node_s=30.0)
    assert went(sessions, Usage(1000.0, 600.0)) == IdleTime(NOW - WEEK_S, 1000.0, 570.0, 30.0, 120.0, 50.0, 230.0)


def test_of_the_first_hour_what_the_service_has_seen_of_it_counts(sessions: Sessions) -> None:
    """It began within the hour, which is not over."""
    with sessions.begin() as session:
        session.add(NodeInterval(node="n1", state="hole", start_at=NOW + 500.0, end_at=None))
        lose(session, NOW + 600.0, start_up_node_s=80.0)
    found = went(sessions, Usage(200.0, 100.0), now=NOW + 700.0, begin=NOW + 600.0)
    assert found.start_up_node_s == pytest.approx(40.0)


def test_no_part_is_larger_than_what_is_left(sessions: Sessions) -> None:
    """A fragment is on its node for a moment longer than the hole lasts."""
    with sessions.begin() as session:
        lose(session, NOW - WEEK_S, late_node_s=9.0, start_up_node_s=70.0, stalled_node_s=80.0)
    assert went(sessions, Usage(100.0, 60.0))[1:] == (100.0, 0.0, 60.0, 40.0, 0.0, 0.0)
    assert went(sessions, Usage(0.0, 3.0))[1:] == (0.0,) * 6


def test_before_losses_were_counted_nothing_is_said_of_causes(sessions: Sessions) -> None:
    begun = NOW - 10 * 3600.0
    with sessions.begin() as session:
        session.add(NodeInterval(node="n1", state="hole", start_at=NOW - 24 * 3600.0, end_at=None))
        session.flush()
        session.add_all(complete_hours(session, NOW))
        lose(session, begun)
    with sessions.begin() as session:
        usage = usage_since(session, NOW - WEEK_S, NOW)
    assert usage.idle_node_s == pytest.approx(24 * 3600.0)
    found = went(sessions, usage)
    assert (found.since, found.idle_node_s) == (begun, pytest.approx(10 * 3600.0))
    assert found.unwanted_node_s == pytest.approx(10 * 3600.0)


def test_a_busy_site_tells_where_its_idle_time_went(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = VirtualSite(sessions, tmp_path, num_nodes=8, busy=2, start_up_s=2.0)
    monkeypatch.setattr("time.time", site.time)
    site.submit("digits", max_nodes=4)
    site.begin()
    site.run(60)
    with sessions.begin() as session:
        usage = usage_since(session, site.now - WEEK_S, site.now)
        num_launched = len(session.scalars(select(Fragment.id)).all())
    found = went(sessions, usage, site.now, site.now - WEEK_S)
    assert sum(found[2:]) == pytest.approx(found.idle_node_s)
    assert found.trained_node_s > 0.4 * found.idle_node_s
    assert 0 < found.start_up_node_s <= 4.0 * num_launched
    assert found.unwanted_node_s > 0  # 6 nodes are idle and 4 wanted
    told = {use: REGISTRY.get_sample_value("oakum_idle_time_ratio", {"use": use}) for use in USES}
    assert sum(share or 0.0 for share in told.values()) == pytest.approx(1.0)
