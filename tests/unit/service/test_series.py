"""Charts' points: lines end where nothing is known, and fall to 0 where a trainer has no nodes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from oakum_service.api.series import points_of
from oakum_service.control.chart_points import record_gap
from oakum_service.control.thinning import POINTS, Point
from oakum_service.db.engine import Sessions
from oakum_service.db.models.progress import ProgressSample
from oakum_worker.protocol import Pace, Phase
from scripted_trainer import ScriptedTrainer
from virtual_site import VirtualSite


@pytest.fixture
def trainer(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> ScriptedTrainer:
    made = ScriptedTrainer(sessions, monkeypatch)
    made.launch("a")
    made.say("a", Phase.READY, startup_s=1.0)
    made.turn()
    made.switch("a", 1, 0)
    return made


def progress_at(trainer: ScriptedTrainer, at: float, step: int, **fields: Any) -> None:
    """Let fragment a report this step at the second `at`, and the controller read it."""
    trainer.now = at
    trainer.progress("a", 1, step, **fields)
    trainer.turn()


def drawn(sessions: Sessions, idle_until: float | None = None) -> list[tuple[Any, ...]]:
    """(second, nodes, loss, samples/s), moments of less than a hundredth of a second apart put together."""
    with sessions.begin() as session:
        rows = session.execute(POINTS.order_by(ProgressSample.id)).all()
        points = points_of([Point(*row) for row in rows], idle_until)
    assert [point.at for point in points] == sorted(point.at for point in points)
    return [(round(point.at, 1), point.nodes, point.loss, point.samples_per_s) for point in points]


def test_without_nodes_the_rate_falls_to_0_and_no_loss_is_drawn(
    trainer: ScriptedTrainer, sessions: Sessions
) -> None:
    progress_at(trainer, 1010.0, 10, loss=0.5)
    trainer.now = 1012.0
    trainer.say("a", Phase.LEFT)
    trainer.end_job("a")
    trainer.turn()
    trainer.now = 1100.0
    assert drawn(sessions, idle_until=1100.0) == [
        (1000.0, 0, None, 0.0),
        (1010.0, 1, 0.5, 200.0),
        (1012.0, 1, 0.5, 200.0),
        (1012.0, 0, None, 0.0),
        (1100.0, 0, None, 0.0),
    ]


def test_a_late_report_of_a_rank_that_has_left_draws_no_training(
    trainer: ScriptedTrainer, sessions: Sessions
) -> None:
    progress_at(trainer, 1010.0, 10, loss=0.5)
    trainer.now = 1012.0
    trainer.say("a", Phase.LEFT)
    trainer.turn()
    progress_at(trainer, 1013.0, 12, loss=0.25)
    assert trainer.view.step == 12
    assert trainer.view.loss == 0.25
    assert drawn(sessions, idle_until=1100.0)[-2:] == [(1012.0, 0, None, 0.0), (1100.0, 0, None, 0.0)]


def test_a_line_ends_where_nobody_listened(trainer: ScriptedTrainer, sessions: Sessions) -> None:
    progress_at(trainer, 1010.0, 10, loss=0.5)
    trainer.now = 1400.0
    with sessions.begin() as session:
        record_gap(session, trainer.now)
    progress_at(trainer, 1402.0, 90, loss=0.25)
    assert drawn(sessions) == [
        (1000.0, 0, None, 0.0),
        (1010.0, 1, 0.5, 200.0),
        (1010.0, None, None, None),
        (1402.0, 1, 0.25, 200.0),
    ]


def test_a_line_ends_where_the_controller_was_stopped_for_a_while(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = VirtualSite(sessions, tmp_path, num_nodes=1, busy=0, start_up_s=2.0)
    monkeypatch.setattr(time, "time", site.time)
    site.begin()
    site.submit("digits", curve=[[1, 90]])
    site.run(8)
    assert {nodes for _, nodes, *_ in drawn(sessions)} == {0, 1}
    site.now += 600.0
    site.run(2)
    assert [rest for _, *rest in drawn(sessions) if rest[0] is None] == [[None, None, None]]


def test_an_outage_of_a_trainer_without_nodes_is_a_gap_too(trainer: ScriptedTrainer, sessions: Sessions) -> None:
    trainer.now = 1010.0
    trainer.say("a", Phase.LEFT)
    trainer.end_job("a")
    trainer.turn()
    trainer.now = 1400.0
    with sessions.begin() as session:
        record_gap(session, trainer.now)
    assert drawn(sessions, idle_until=1401.0) == [
        (1000.0, 0, None, 0.0),
        (1010.0, 0, None, 0.0),
        (1010.0, None, None, None),
        (1400.0, 0, None, 0.0),
        (1401.0, 0, None, 0.0),
    ]


def test_the_last_known_loss_stays_with_its_time(trainer: ScriptedTrainer) -> None:
    progress_at(trainer, 1010.0, 10, loss=0.5)
    progress_at(trainer, 1020.0, 10, loss=None, samples_per_s=None, checkpoint_step=10)
    assert trainer.view.loss == 0.5
    trainer.now = 1030.0
    trainer.say("a", Phase.LEFT)
    trainer.end_job("a")
    trainer.turn()
    view = trainer.view
    assert (view.loss, view.samples_per_s) == (0.5, None)
    assert view.stepped_at is not None
    assert view.stepped_at <= 1020.0


def paced(trainer: ScriptedTrainer, steps: int, seconds: float, reading_s: float) -> None:
    pace = Pace(steps=steps, seconds=seconds, reading_s=reading_s, waiting_s=0.0)
    trainer.say("a", pace=pace.model_dump())
    trainer.turn()


def test_what_a_step_cost_on_other_nodes_is_not_told_of_these(trainer: ScriptedTrainer) -> None:
    paced(trainer, 5, 10.0, 1.0)
    assert trainer.view.pace is not None
    trainer.launch("b")
    trainer.say("b", Phase.READY, startup_s=1.0)
    trainer.turn()
    assert (len(trainer.view.nodes), trainer.view.pace) == (2, None)
    paced(trainer, 6, 12.0, 1.0)
    assert trainer.view.pace is None, "it is of the generation before"
    trainer.switch("a", 2, 5)
    paced(trainer, 3, 12.0, 6.0)
    assert trainer.view.pace.step_s == 4.0


def test_a_first_step_that_reads_for_minutes_is_told_as_such_and_not_as_0(trainer: ScriptedTrainer) -> None:
    paced(trainer, 0, 500.0, 485.0)
    view = trainer.view
    assert (view.samples_per_s, view.samples_per_s_below) == (None, 0.2)
    assert view.pace is not None
    assert (view.pace.step_s, view.pace.reading_share, view.pace.waiting_share) == (500.0, 0.97, 0.0)
    assert view.condition.startswith("Ranks wait for samples for 97% of each step")


def test_that_a_step_begins_with_reading_is_nothing_to_speak_of(trainer: ScriptedTrainer) -> None:
    paced(trainer, 0, 4.0, 4.0)
    assert trainer.view.condition == ""
    paced(trainer, 0, 6.0, 6.0)
    assert trainer.view.condition.startswith("Ranks wait for samples for 100% of each step")


def test_who_is_a_member_already_does_not_warm_up(trainer: ScriptedTrainer) -> None:
    trainer.launch("b")
    assert [each.node for each in trainer.view.warming] == ["b"]
    trainer.say("b", Phase.READY, startup_s=1.0)
    trainer.turn()
    assert (trainer.view.nodes, trainer.view.warming) == (["a", "b"], [])


def test_a_rate_holds_until_a_step_takes_twice_as_long(trainer: ScriptedTrainer) -> None:
    trainer.progress("a", 1, 10)
    paced(trainer, 0, 0.9, 0.0)
    assert (trainer.view.samples_per_s, trainer.view.samples_per_s_below) == (200.0, None)
    paced(trainer, 0, 50.0, 0.0)
    assert (trainer.view.samples_per_s, trainer.view.samples_per_s_below) == (None, 2.0)
    paced(trainer, 1, 50.0, 0.0)
    assert (trainer.view.samples_per_s, trainer.view.condition) == (200.0, "")


def test_the_rate_of_before_a_time_without_nodes_is_not_told_after_it(trainer: ScriptedTrainer) -> None:
    trainer.progress("a", 1, 10)
    trainer.say("a", Phase.LEFT)
    trainer.end_job("a")
    trainer.turn()
    trainer.launch("b")
    trainer.say("b", Phase.READY, startup_s=1.0)
    trainer.turn()
    assert (trainer.view.nodes, trainer.view.samples_per_s) == (["b"], None)
    trainer.progress("b", trainer.view.generation, 11)
    trainer.turn()
    assert trainer.view.samples_per_s == 200.0


def test_what_steps_cost_is_forgotten_with_the_nodes(trainer: ScriptedTrainer) -> None:
    paced(trainer, 0, 500.0, 485.0)
    trainer.say("a", Phase.LEFT)
    trainer.end_job("a")
    trainer.turn()
    assert (trainer.view.pace, trainer.view.condition) == (None, "")


def test_another_rank_than_the_first_has_no_say(trainer: ScriptedTrainer) -> None:
    trainer.launch("b")
    trainer.say("b", Phase.READY, startup_s=1.0, pace=Pace(steps=1, seconds=1.0, reading_s=1.0).model_dump())
    trainer.turn()
    assert trainer.view.pace is None
