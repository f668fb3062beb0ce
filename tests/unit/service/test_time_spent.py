"""Where a trainer's time goes, from its agents' words to the document that users see."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine

from oakum_service.db.engine import Sessions
from oakum_service.db.json_columns import JsonOf
from oakum_service.documents.time_account import TimeAccount
from oakum_service.orders import hold
from oakum_service.states import STALLS, TimeUse, TrainerState
from oakum_worker.protocol import Phase
from scripted_trainer import BATCH, ScriptedTrainer

SPENT = ("training_s", "grow_s", "shrink_s", "loss_s", "cold_start_s", "waiting_s")


@pytest.fixture
def trainer(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> ScriptedTrainer:
    """On its first node `a`: launched at 1000, a member at 1004, through its first step at 1006."""
    trainer = ScriptedTrainer(sessions, monkeypatch)
    trainer.launch("a")
    trainer.now += 4.0
    trainer.say("a", Phase.READY, startup_s=3.0)
    trainer.turn()
    trainer.switch("a", 1, 0, source="scratch")
    trainer.turn(after_s=2.0)
    return trainer


def spent(trainer: ScriptedTrainer) -> dict[str, Any]:
    """Seconds by use, those of zero left out; they add up to the time since the first start."""
    time_spent = trainer.view.time_spent
    assert time_spent is not None
    seconds = {name: getattr(time_spent, name) for name in SPENT}
    until = trainer.view.ended_at or trainer.now
    assert sum(seconds.values()) == pytest.approx(until - time_spent.since_at)
    return {name: pytest.approx(value) for name, value in seconds.items() if value}


def train(trainer: ScriptedTrainer, fragment: str, generation: int, seconds: int, nodes: int = 1) -> None:
    """Train for some time at two steps a second, reported every second."""
    first = trainer.row.reported_step
    for second in range(1, seconds + 1):
        trainer.progress(fragment, generation, first + 2 * second, nodes)
        trainer.turn(after_s=1.0)


def join(trainer: ScriptedTrainer, fragment: str) -> None:
    """Let the fragment join the others within five seconds."""
    trainer.launch(fragment)
    trainer.now += 5.0
    trainer.say(fragment, Phase.READY, startup_s=4.5)
    trainer.turn()


def test_before_its_first_start_no_time_counts(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = ScriptedTrainer(sessions, monkeypatch)
    trainer.launch("a")
    trainer.turn(after_s=10.0)
    assert trainer.view.time_spent is None


def test_a_trainer_that_starts_trains_from_its_first_step_on(trainer: ScriptedTrainer) -> None:
    assert spent(trainer) == {"cold_start_s": 2.0}
    train(trainer, "a", 1, seconds=10)
    assert spent(trainer) == {"cold_start_s": 2.0, "training_s": 10.0}
    assert trainer.view.time_spent.since_at == trainer.view.started_at == 1004.0


def test_a_stall_counts_by_its_cause_and_without_the_step_that_it_ended_with(trainer: ScriptedTrainer) -> None:
    train(trainer, "a", 1, seconds=10)
    join(trainer, "b")
    trainer.switch("a", 2, 30, stall_s=1.0, step_s=0.5)
    trainer.turn(after_s=3.0)
    # Half a second is a step on one node, a quarter one on two.
    assert spent(trainer) == {"cold_start_s": 2.0, "grow_s": 0.75, "training_s": 17.25}
    trainer.say("b", Phase.LEAVING, signalled=True)
    trainer.turn(after_s=1.0)
    trainer.switch("a", 3, 34, stall_s=0.7)
    trainer.turn(after_s=1.0)
    assert spent(trainer) == {"cold_start_s": 2.0, "grow_s": 0.75, "shrink_s": 0.7, "training_s": 18.55}


def test_a_lost_node_counts_as_such_though_another_joins_at_once(trainer: ScriptedTrainer) -> None:
    train(trainer, "a", 1, seconds=2)
    join(trainer, "b")
    trainer.switch("a", 2, 14, stall_s=0.5)
    trainer.turn(after_s=1.0)
    trainer.end_job("b")
    trainer.turn()  # generation 3 without it
    join(trainer, "c")
    trainer.say("a", Phase.TRAINING, generation=3)  # formed, and no step in it yet
    trainer.turn()
    trainer.say("c", Phase.LEAVING, signalled=True)
    trainer.turn()
    trainer.switch("a", 5, 16, stall_s=6.0)
    trainer.turn(after_s=2.0)
    assert spent(trainer) == {"cold_start_s": 2.0, "grow_s": 0.5, "loss_s": 6.0, "training_s": 8.5}


def test_without_nodes_it_waits_and_with_some_again_it_starts_cold(trainer: ScriptedTrainer) -> None:
    train(trainer, "a", 1, seconds=4)
    trainer.say("a", Phase.LEAVING, signalled=True)
    trainer.turn()
    trainer.turn(after_s=1.0)
    trainer.say("a", Phase.LEFT)
    trainer.end_job("a")
    trainer.turn(after_s=20.0)
    trainer.launch("b")
    trainer.turn()
    trainer.say("b", Phase.READY, startup_s=5.0)
    trainer.turn(after_s=6.0)
    trainer.switch("b", trainer.row.generation, 8, source="checkpoint")
    trainer.turn(after_s=1.5)
    assert spent(trainer) == {"training_s": 4.0, "waiting_s": 21.0, "cold_start_s": 2.0 + 7.5}


def test_since_when_a_trainer_has_its_status_is_told(trainer: ScriptedTrainer) -> None:
    train(trainer, "a", 1, seconds=4)
    assert trainer.view.status_since == 1006.0  # its first step's end
    trainer.say("a", Phase.LEAVING, signalled=True)
    trainer.turn(after_s=1.0)
    trainer.end_job("a")
    trainer.turn(after_s=20.0)
    trainer.launch("b")
    trainer.turn(after_s=2.0)
    assert (trainer.view.status, trainer.view.status_since) == ("starting", trainer.now - 2.0)
    trainer.say("b", Phase.READY, startup_s=5.0)
    trainer.turn()
    trainer.switch("b", trainer.row.generation, 8, source="checkpoint")
    trainer.turn(after_s=1.5)
    train(trainer, "b", trainer.row.generation, seconds=6)
    assert (trainer.view.status, trainer.view.status_since) == ("running", trainer.now - 6.0)
    with trainer._sessions.begin() as session:
        hold.begin(session, "", "anna")
    trainer.turn(after_s=3.0)
    assert (trainer.view.status, trainer.view.status_since) == ("held", trainer.now - 3.0)
    trainer.change(state=TrainerState.FAILED, ended_at=trainer.now)
    trainer.now += 9.0
    assert trainer.view.status_since == trainer.now - 9.0


def test_the_time_before_the_loss_of_the_last_replica_was_noticed_is_lost(trainer: ScriptedTrainer) -> None:
    train(trainer, "a", 1, seconds=4)
    trainer.now += 9.0  # until its agent is missed
    trainer.end_job("a")
    trainer.turn()
    trainer.turn(after_s=5.0)
    assert spent(trainer) == {"cold_start_s": 2.0, "training_s": 4.0, "loss_s": 9.0, "waiting_s": 5.0}


def test_a_lone_rank_that_died_starts_cold_on_its_node_from_its_copy_in_memory(trainer: ScriptedTrainer) -> None:
    train(trainer, "a", 1, seconds=4)
    trainer.say("a", Phase.WARMING, broken=1, progress=None)
    for after_s in (1.0, 0.0, 5.0):
        trainer.turn(after_s)
    trainer.say("a", Phase.READY)
    trainer.turn()
    trainer.switch("a", trainer.row.generation, 6, source="memory")
    trainer.turn(after_s=2.0)
    train(trainer, "a", trainer.row.generation, seconds=3)
    assert spent(trainer) == {"loss_s": 1.0, "cold_start_s": 2.0 + 7.0, "training_s": 7.0}
    assert trainer.view.time_spent.redone_steps == 2


def test_a_newcomer_that_takes_over_from_the_disk_has_started_cold(trainer: ScriptedTrainer) -> None:
    """The trainer always had a member, but no member had a finished step any more."""
    train(trainer, "a", 1, seconds=4)
    trainer.launch("b")
    trainer.say("b", Phase.READY)
    trainer.end_job("a")
    trainer.turn()
    trainer.switch("b", trainer.row.generation, 0, source="scratch")
    trainer.turn(after_s=3.0)
    assert spent(trainer) == {"training_s": 4.0, "cold_start_s": 2.0 + 3.0}


def test_what_a_controller_did_not_see_counts_as_what_it_was_before(trainer: ScriptedTrainer) -> None:
    train(trainer, "a", 1, seconds=4)
    trainer.restart()
    trainer.turn(after_s=100.0)
    assert spent(trainer) == {"cold_start_s": 2.0, "training_s": 104.0}


def test_the_time_stands_still_when_the_trainer_has_ended(trainer: ScriptedTrainer) -> None:
    train(trainer, "a", 1, seconds=4)
    trainer.progress("a", 1, 8, final=True)
    trainer.say("a", Phase.FINISHED)
    trainer.turn(after_s=1.0)
    trainer.now += 500.0
    assert trainer.view.state is TrainerState.FINISHED
    assert spent(trainer) == {"cold_start_s": 2.0, "training_s": 5.0}


def test_a_trainer_of_before_accounts_were_kept_counts_from_now_on(trainer: ScriptedTrainer) -> None:
    trainer.change(account=None)
    trainer.turn(after_s=50.0)
    assert trainer.view.time_spent.since_at == trainer.now
    trainer.progress("a", 1, 40)
    trainer.turn(after_s=1.0)
    trainer.turn(after_s=9.0)
    assert spent(trainer) == {"cold_start_s": 1.0, "training_s": 9.0}


def test_steps_that_have_to_be_taken_again_are_counted_once_each_time(trainer: ScriptedTrainer) -> None:
    train(trainer, "a", 1, seconds=10)
    trainer.end_job("a")
    trainer.launch("b")
    trainer.say("b", Phase.READY)
    trainer.turn()
    trainer.switch("b", trainer.row.generation, 12, source="checkpoint")
    trainer.turn(after_s=1.0)
    assert (trainer.view.time_spent.redone_steps, trainer.view.time_spent.redone_s) == (8, 4.0)
    trainer.progress("b", trainer.row.generation, 16)
    trainer.turn(after_s=2.0)
    trainer.end_job("b")
    trainer.launch("c")
    trainer.say("c", Phase.READY)
    trainer.turn()
    # What it did last is heard of before how it began.
    trainer.progress("c", trainer.row.generation, 14)
    trainer.turn()
    trainer.switch("c", trainer.row.generation, 12, source="checkpoint")
    trainer.turn(after_s=1.0)
    assert (trainer.view.time_spent.redone_steps, trainer.view.time_spent.redone_s) == (12, 6.0)
    assert trainer.view.step == 14


def test_after_a_time_without_nodes_no_rate_is_known_before_the_next_report(trainer: ScriptedTrainer) -> None:
    train(trainer, "a", 1, seconds=10)
    before = trainer.view.samples_per_s
    trainer.end_job("a")
    trainer.turn(after_s=5.0)
    trainer.launch("b")
    trainer.say("b", Phase.READY)
    trainer.turn()
    trainer.switch("b", trainer.row.generation, 20, source="checkpoint")
    trainer.turn(after_s=1.0)
    assert before is not None
    assert trainer.view.samples_per_s is None
    trainer.progress("b", trainer.row.generation, 22)
    trainer.turn(after_s=1.0)
    assert trainer.view.samples_per_s == before


def test_steps_are_counted_at_the_sizes_they_were_taken_at(trainer: ScriptedTrainer) -> None:
    train(trainer, "a", 1, seconds=10)
    join(trainer, "b")
    trainer.switch("a", 2, 28, stall_s=0.5)
    trainer.turn()
    trainer.progress("a", 2, 40, nodes=2)
    trainer.turn()
    trainer.end_job("a", "b")
    trainer.launch("c")
    trainer.say("c", Phase.READY)
    trainer.turn()
    trainer.switch("c", 3, 30, source="checkpoint")
    trainer.turn()
    trainer.progress("c", 3, 35)
    trainer.turn()
    assert trainer.view.steps_at_size == {1: 28 + 5, 2: 12}


def test_steps_that_another_trainer_has_taken_are_not_counted(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = ScriptedTrainer(sessions, monkeypatch)
    trainer.launch("a")
    trainer.say("a", Phase.READY, startup_s=3.0)
    trainer.turn()
    trainer.switch("a", 1, 40, source="checkpoint")
    trainer.turn()
    trainer.progress("a", 1, 45)
    trainer.turn()
    assert trainer.view.steps_at_size == {1: 5}


def test_steps_before_the_first_progress_is_heard_are_counted(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second generation may form before the first one has said how far it is."""
    trainer = ScriptedTrainer(sessions, monkeypatch)
    trainer.launch("a")
    trainer.say("a", Phase.READY, startup_s=3.0)
    trainer.turn()
    trainer.switch("a", 1, 0, source="scratch")
    trainer.turn()
    trainer.launch("b")
    trainer.say("b", Phase.READY, startup_s=3.0)
    trainer.turn()
    trainer.switch("a", 2, 7, stall_s=0.1)
    trainer.turn()
    trainer.progress("a", 2, 12, nodes=2)
    trainer.turn()
    assert trainer.view.steps_at_size == {2: 12}


def test_warm_up_is_counted_in_node_seconds(trainer: ScriptedTrainer) -> None:
    assert trainer.view.time_spent.warm_up_node_s == 6.0
    trainer.launch("b", "c")
    trainer.now += 10.0
    assert trainer.view.time_spent.warm_up_node_s == 6.0 + 20.0
    assert [(each.node, each.launched_at) for each in trainer.view.warming] == [("b", 1006.0), ("c", 1006.0)]
    trainer.end_job("b")
    trainer.release("c")
    trainer.now += 5.0
    assert trainer.view.time_spent.warm_up_node_s == 6.0 + 25.0
    assert trainer.view.warming == []


@pytest.mark.parametrize("stall_s", [0.0, 1e9, 1e308])
def test_what_an_agent_says_of_its_stall_does_not_break_the_sum(trainer: ScriptedTrainer, stall_s: float) -> None:
    train(trainer, "a", 1, seconds=4)
    join(trainer, "b")
    trainer.switch("a", 2, 10, stall_s=stall_s, step_s=1e308)
    trainer.turn(after_s=1.0)
    assert sum(value.expected for value in spent(trainer).values()) == 12.0


MOMENTS = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.sampled_from([*TimeUse, None])),
        st.tuples(st.just("stall"), st.sampled_from([*STALLS, TimeUse.COLD_START])),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=20,
)


@given(moments=MOMENTS, gaps_s=st.lists(st.floats(0, 1e4), min_size=20, max_size=20))
def test_whatever_happens_all_seconds_are_counted_once(
    moments: list[tuple[str, TimeUse | None]], gaps_s: list[float]
) -> None:
    column, sqlite = JsonOf(TimeAccount), create_engine("sqlite://").dialect
    read = column.result_processor(sqlite, None)
    account, now, ended_at = TimeAccount(began_at=50.0, since=50.0), 50.0, None
    for (event, use), gap_s in zip(moments, gaps_s, strict=False):
        now += gap_s
        if event == "turn":
            account = account.turn_to(use, now)
            ended_at = now if use is None and ended_at is None else ended_at
        elif event == "stall" and use is not None:
            account = account.stalled(use, 10 * gap_s, now)
        else:
            kept = read(json.dumps(column.process_bind_param(account, sqlite)))
            assert kept == account
            account = kept
    seconds = account.spent_s(now)
    assert sum(seconds.values()) == pytest.approx((ended_at or now) - 50.0)
    assert min(seconds.values()) >= -1e-6


def test_a_clock_that_is_set_back_takes_no_time_away() -> None:
    account = TimeAccount(began_at=50.0, since=50.0, use=TimeUse.TRAINING)
    later = account.turn_to(TimeUse.WAITING, 80.0).turn_to(TimeUse.TRAINING, 60.0)
    assert later == dataclasses.replace(account, since=80.0, seconds=later.seconds)
    assert later.spent_s(60.0)[TimeUse.TRAINING] == 30.0


def test_progress_that_does_not_say_its_batch_is_of_the_specs(trainer: ScriptedTrainer) -> None:
    trainer.progress("a", 1, 10, global_batch=None, samples_per_s=4.0 * BATCH)
    trainer.turn(after_s=3.0)
    assert trainer.view.global_batch == BATCH
    join(trainer, "b")
    trainer.switch("a", 2, 20, stall_s=1.0, step_s=0.5)
    trainer.turn(after_s=1.0)
    assert trainer.view.last_stall_s == 1.0 - 0.125
