"""How long rescales and start-ups took: from the agents' words to the planner."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oakum_service.config import Settings
from oakum_service.control.observe import Observation
from oakum_service.control.plan import pose
from oakum_service.db.engine import Sessions
from oakum_service.documents.durations import duration, expected_s, with_another
from oakum_service.schedulers.port import Snapshot
from oakum_worker.protocol import Phase
from scripted_trainer import ScriptedTrainer


@pytest.fixture
def trainer(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> ScriptedTrainer:
    """It trains on `a`."""
    trainer = ScriptedTrainer(sessions, monkeypatch)
    trainer.launch("a")
    trainer.say("a", Phase.READY, startup_s=3.0)
    trainer.turn(after_s=3.0)
    trainer.switch("a", 1, 0, source="scratch")
    trainer.turn()
    trainer.turn(after_s=100.0)
    return trainer


def grow(trainer: ScriptedTrainer, fragment: str, stall_s: float, startup_s: float = 3.0) -> None:
    trainer.launch(fragment)
    trainer.say(fragment, Phase.READY, startup_s=startup_s)
    trainer.turn(after_s=startup_s)
    trainer.switch("a", trainer.row.generation, 0, stall_s=stall_s)
    trainer.turn()
    trainer.turn(after_s=100.0)


def shrink(trainer: ScriptedTrainer, fragment: str, stall_s: float) -> None:
    trainer.say(fragment, Phase.LEAVING, signalled=True)
    trainer.turn()
    trainer.switch("a", trainer.row.generation, 0, stall_s=stall_s)
    trainer.say(fragment, Phase.LEFT)
    trainer.end_job(fragment)
    trainer.turn(after_s=100.0)


def lose(trainer: ScriptedTrainer, fragment: str, stall_s: float) -> None:
    trainer.end_job(fragment)
    trainer.turn()
    trainer.switch("a", trainer.row.generation, 0, stall_s=stall_s)
    trainer.turn(after_s=100.0)


def planned(sessions: Sessions, trainer: ScriptedTrainer) -> tuple[float, float, float]:
    """Grow stall, shrink stall and start-up that the planner counts with; 0.5, 0.5 and 6 before they are known."""
    with sessions.begin() as session:
        problem = pose(
            session, Observation(1, Snapshot(trainer.now, (), ())), Settings(look_ahead_s=60.0), trainer.now
        )
    (posed,) = problem.trainers
    return posed.grow_stall_s, posed.shrink_stall_s, posed.startup_s


def test_the_planner_counts_with_the_settings_until_something_is_measured(
    sessions: Sessions, trainer: ScriptedTrainer
) -> None:
    trainer.change(durations={})
    assert planned(sessions, trainer) == (0.5, 0.5, 6.0)


def test_each_kind_of_stall_is_kept_apart(sessions: Sessions, trainer: ScriptedTrainer) -> None:
    grow(trainer, "b", 2.0)
    assert planned(sessions, trainer) == (2.0, 0.5, 3.0)
    shrink(trainer, "b", 0.25)
    grow(trainer, "c", 2.0)
    lose(trainer, "c", 9.0)
    assert planned(sessions, trainer) == (2.0, 0.25, 3.0)
    shown = {kind: (stall.median_s, stall.last_s, stall.count) for kind, stall in trainer.view.stalls.items()}
    assert shown == {"grow": (2.0, 2.0, 2), "shrink": (0.25, 0.25, 1), "loss": (9.0, 9.0, 1)}
    assert (trainer.view.stall_s, trainer.view.last_stall_s) == (13.25, 9.0)


def test_one_slow_rescale_does_not_change_what_is_expected(sessions: Sessions, trainer: ScriptedTrainer) -> None:
    for name, stall_s, startup_s in (("b", 1.0, 3.0), ("c", 1.1, 3.2), ("d", 80.0, 50.0)):
        grow(trainer, name, stall_s, startup_s)
    assert planned(sessions, trainer) == pytest.approx((1.1, 0.5, 3.1))
    grown = trainer.view.stalls["grow"]
    assert (grown.median_s, grown.last_s, grown.count) == (1.1, 80.0, 3)
    assert trainer.view.start_up.last_s == pytest.approx(50.0)


@pytest.mark.parametrize(("joins_after_s", "expected_s"), [(2.0, 10.0), (500.0, 3.0)], ids=["next", "spare"])
def test_a_start_up_lasts_from_the_launch_until_the_node_trains(
    trainer: ScriptedTrainer, joins_after_s: float, expected_s: float
) -> None:
    """The node stands idle while the job is pending, and until the other nodes are at a step boundary. A spare
    fragment, which waits until it is needed, tells nothing of that and is not counted."""
    trainer.launch("b")
    trainer.say("b", Phase.READY, startup_s=3.0)
    trainer.turn(after_s=8.0)
    trainer.switch("a", trainer.row.generation, 0)
    trainer.turn(after_s=joins_after_s)
    assert trainer.view.start_up.last_s == pytest.approx(expected_s)


def test_what_was_measured_outlives_a_restart(sessions: Sessions, trainer: ScriptedTrainer) -> None:
    grow(trainer, "b", 2.0)
    trainer.restart()
    trainer.turn()
    assert planned(sessions, trainer) == (2.0, 0.5, 3.0)
    assert trainer.view.stalls["grow"].count == 1


def test_a_switch_that_replaces_a_node_by_another_is_a_growth(trainer: ScriptedTrainer) -> None:
    """The newcomer has to be given the state."""
    grow(trainer, "b", 2.0)
    trainer.launch("c")
    trainer.say("b", Phase.LEAVING, signalled=True)
    trainer.say("c", Phase.READY)
    trainer.turn()
    trainer.switch("a", trainer.row.generation, 0, stall_s=1.0)
    trainer.turn()
    assert trainer.view.stalls["grow"].last_s == 1.0


def test_a_broken_connection_counts_as_a_loss(trainer: ScriptedTrainer) -> None:
    grow(trainer, "b", 2.0)
    for name in "ab":
        trainer.say(name, Phase.BROKEN, generation=2, broken=2)
    trainer.turn()
    trainer.turn()
    trainer.switch("a", 3, 0, stall_s=1.5)
    trainer.turn()
    assert trainer.events("generation.formed")[-1] == (
        "generation 3 (regrouped): goes on at step 0 on 2 nodes, stall 1.50 s"
    )
    assert trainer.view.stalls["loss"].last_s == 1.5


def test_a_rank_that_begins_anew_on_its_node_was_lost(trainer: ScriptedTrainer) -> None:
    grow(trainer, "b", 2.0)
    trainer.say("b", Phase.WARMING, broken=2)
    trainer.turn()
    trainer.say("a", Phase.BROKEN, broken=2)
    trainer.turn()
    trainer.switch("a", 3, 0, stall_s=0.4)
    trainer.turn()
    assert {kind: stall.last_s for kind, stall in trainer.view.stalls.items()} == {"grow": 2.0, "loss": 0.4}


def test_a_cold_start_is_no_stall(trainer: ScriptedTrainer) -> None:
    assert trainer.view.stalls == {}
    assert trainer.view.last_stall_s is None


@given(seconds=st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_only_the_newest_few_count(seconds: list[float]) -> None:
    measured: dict[str, list[float]] = {"other": [5.0]}
    for each in seconds:
        measured = with_another(measured, "grow", each)
    newest = seconds[-7:]
    known = duration(measured, "grow")
    assert known is not None
    assert (known.last_s, known.count) == (seconds[-1], len(newest))
    below, above = (sum(s <= known.median_s for s in newest), sum(s >= known.median_s for s in newest))
    assert min(below, above) >= len(newest) / 2
    assert (expected_s(measured, "other", 1.0), expected_s(measured, "none", 1.0)) == (5.0, 1.0)
