"""What of the agents' reports counts: progress, checkpoints and conditions, through other ranks 0 and restarts."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from sqlalchemy import select

from oakum_service.db.engine import Sessions
from oakum_service.db.models.progress import EvaluationRecord
from oakum_service.states import TrainerState
from oakum_worker.protocol import BestEvaluation, Phase
from scripted_trainer import ScriptedTrainer

FULL = "the checkpoint of step 20 cannot be written to /data: No space left on device"
READ_ONLY = "the checkpoint of step 30 cannot be written to /data: Read-only file system"


@pytest.fixture
def trainer(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> ScriptedTrainer:
    """`a` and `b` train together in generation 1."""
    trainer = ScriptedTrainer(sessions, monkeypatch)
    trainer.launch("a", "b")
    for name in ("a", "b"):
        trainer.say(name, Phase.READY)
    trainer.turn()
    trainer.switch("a", 1, 0, source="scratch")
    trainer.progress("a", 1, 10, 2, checkpoint_step=10, metrics={"accuracy": 0.5})
    trainer.turn(after_s=5.0)
    return trainer


def hand_over(trainer: ScriptedTrainer, step: int) -> None:
    """Let `a` be lost, and `b` go on as rank 0 from this many finished steps."""
    trainer.end_job("a")
    trainer.turn()
    trainer.switch("b", 2, step, stall_s=0.5)
    trainer.turn(after_s=1.0)


def evaluations(sessions: Sessions) -> list[tuple[int, float, dict[str, float]]]:
    with sessions.begin() as session:
        rows = session.scalars(select(EvaluationRecord).order_by(EvaluationRecord.step))
        return [(row.step, row.at, row.metrics) for row in rows]


def told(*steps_and_values: tuple[int, float]) -> list[dict[str, object]]:
    return [{"step": step, "metrics": {"accuracy": value}} for step, value in steps_and_values]


class TestEvaluations:
    def test_each_is_recorded_once_however_often_it_is_reported(
        self, trainer: ScriptedTrainer, sessions: Sessions
    ) -> None:
        began = trainer.now
        trainer.progress("a", 1, 30, 2, evaluations=told((10, 0.1), (20, 0.2)))
        trainer.turn()
        trainer.progress("a", 1, 40, 2, evaluations=told((10, 0.1), (20, 0.2), (40, 0.4)))
        trainer.turn(after_s=5.0)
        assert evaluations(sessions) == [
            (10, began, {"accuracy": 0.1}),
            (20, began, {"accuracy": 0.2}),
            (40, began + 5.0, {"accuracy": 0.4}),
        ]

    def test_those_of_one_report_stand_between_the_steps_that_it_tells_of(
        self, trainer: ScriptedTrainer, sessions: Sessions
    ) -> None:
        """As after a while without a service, in which training went on."""
        trainer.progress("a", 1, 20, 2)
        trainer.turn()
        began = trainer.now
        trainer.progress("a", 1, 60, 2, evaluations=told((30, 0.3), (50, 0.5), (60, 0.6)))
        trainer.turn(after_s=40.0)
        assert [(step, at - began) for step, at, _ in evaluations(sessions)] == [
            (30, 10.0),
            (50, 30.0),
            (60, 40.0),
        ]

    def test_one_that_another_rank_0_tells_of_again_keeps_its_time(
        self, trainer: ScriptedTrainer, sessions: Sessions
    ) -> None:
        trainer.progress("a", 1, 30, 2, evaluations=told((20, 0.2), (30, 0.3)))
        trainer.turn()
        recorded = evaluations(sessions)
        hand_over(trainer, 30)
        trainer.progress("b", 2, 40, evaluations=told((40, 0.4)))
        trainer.turn()
        trainer.progress("b", 2, 45, evaluations=told((20, 0.2), (30, 0.3), (40, 0.4)))
        trainer.turn(after_s=60.0)
        assert evaluations(sessions)[:2] == recorded

    def test_one_that_is_repeated_after_a_loss_replaces_the_first(
        self, trainer: ScriptedTrainer, sessions: Sessions
    ) -> None:
        trainer.progress("a", 1, 30, 2, evaluations=told((20, 0.2), (30, 0.3)))
        trainer.turn()
        hand_over(trainer, 25)
        trainer.progress("b", 2, 30, evaluations=told((30, 0.31)))
        trainer.turn()
        values = {step: metrics["accuracy"] for step, _, metrics in evaluations(sessions)}
        assert values == {20: 0.2, 30: 0.31}

    def test_the_best_one_stays_known_where_a_new_rank_0_tells_of_none(self, trainer: ScriptedTrainer) -> None:
        best = BestEvaluation(metric="accuracy", value=0.4, step=20)
        trainer.progress("a", 1, 30, 2, best=best)
        trainer.turn()
        hand_over(trainer, 30)
        trainer.progress("b", 2, 40)
        trainer.turn()
        assert trainer.view.best == best

    def test_values_that_are_not_finite_are_left_out(self, trainer: ScriptedTrainer, sessions: Sessions) -> None:
        values = {"accuracy": 0.5, "loss": math.inf}
        both = [{"step": 20, "metrics": values}, {"step": 30, "metrics": {"loss": math.nan}}]
        trainer.progress("a", 1, 30, 2, evaluations=both)
        trainer.turn()
        assert [(step, metrics) for step, _, metrics in evaluations(sessions)] == [(20, {"accuracy": 0.5})]


class TestTheEnd:
    def test_it_says_why_training_ended_early(self, trainer: ScriptedTrainer) -> None:
        trainer.progress("a", 1, 100, 2, loss=0.25, ended_early="no better", final=True)
        trainer.say("a", Phase.FINISHED)
        trainer.turn()
        assert (
            trainer.view.message == "finished after 100 steps, loss 0.25, accuracy 0.5; it ended early: no better"
        )

    def test_a_mean_over_earlier_steps_is_not_told_as_the_last_loss(self, trainer: ScriptedTrainer) -> None:
        trainer.progress("a", 1, 99, 2, loss=0.5)
        trainer.turn()
        trainer.progress("a", 1, 100, 2, loss=None, final=True)
        trainer.say("a", Phase.FINISHED)
        trainer.turn()
        assert trainer.view.message == "finished after 100 steps, accuracy 0.5"

    def test_it_is_there_when_rank_0_has_told_with_what(self, trainer: ScriptedTrainer) -> None:
        """Other ranks may be heard first, and a checkpoint may be heard of last."""
        trainer.progress("a", 1, 99, 2, loss=0.5)
        trainer.say("b", Phase.FINISHED)
        trainer.turn()
        assert trainer.view.state is TrainerState.RUNNING
        trainer.progress("a", 1, 100, 2, loss=0.25, final=True)
        trainer.say("a", Phase.FINISHED)
        trainer.turn()
        assert trainer.view.state is TrainerState.FINISHED
        assert trainer.view.message == "finished after 100 steps, loss 0.25, accuracy 0.5"
        trainer.progress("a", 1, 100, 2, loss=0.25, final=True, checkpoint_step=100)
        trainer.turn()
        assert trainer.view.message == "finished after 100 steps, loss 0.25, accuracy 0.5"


class TestLastWords:
    """Said after one turn of the controller, of a job that is over by the next."""

    def test_the_last_step_and_its_checkpoint_are_known(self, trainer: ScriptedTrainer) -> None:
        trainer.progress("a", 1, 14, 2, checkpoint_step=14)
        trainer.end_job("a", "b")
        for _ in range(2):
            trainer.turn(after_s=1.0)
        assert (trainer.view.state, trainer.view.step, trainer.view.checkpoint_step) == (
            TrainerState.WAITING,
            14,
            14,
        )
        assert trainer.events("checkpoint.written")[1:] == ["durable checkpoint of step 14"]

    @pytest.mark.parametrize(
        "comes_between",
        [ScriptedTrainer.restart, ScriptedTrainer.fail_to_hear],
        ids=["another controller", "what could not be written down"],
    )
    def test_they_are_heard_whatever_comes_between(
        self, trainer: ScriptedTrainer, comes_between: Callable[[ScriptedTrainer], None]
    ) -> None:
        trainer.progress("a", 1, 14, 2, checkpoint_step=14)
        comes_between(trainer)
        trainer.end_job("a", "b")
        trainer.turn()
        assert (trainer.view.step, trainer.view.checkpoint_step) == (14, 14)

    def test_that_it_has_finished_is_heard(self, trainer: ScriptedTrainer) -> None:
        trainer.progress("a", 1, 100, 2, final=True)
        trainer.say("a", Phase.FINISHED)
        trainer.end_job("a", "b")
        trainer.turn()
        assert trainer.view.state is TrainerState.FINISHED

    @pytest.mark.parametrize("known", [None, 10])
    def test_a_checkpoint_that_rank_0_finishes_after_another_rank_has_told_of_the_divergence_is_known(
        self, trainer: ScriptedTrainer, known: int | None
    ) -> None:
        trainer.change(checkpoint_step=known)
        trainer.progress("a", 1, 20, 2, checkpoint_step=known)
        trainer.turn()
        trainer.say("b", Phase.FAILED, failure={"stage": "diverged", "step": 30, "message": "the loss was nan"})
        trainer.turn()
        trainer.progress("a", 1, 35, 2, checkpoint_step=14)
        trainer.end_job("a", "b")
        trainer.turn()
        assert (trainer.view.state, trainer.view.checkpoint_step) == (TrainerState.DIVERGED, 14)
        assert trainer.view.message == (
            "the loss was nan. Its newest checkpoint was written before that and is kept: "
            f"`oakum submit SPEC --from {trainer.row.name}` begins there"
        )

    @pytest.mark.parametrize("restarted", [False, True])
    def test_why_it_failed_is_counted_once(self, trainer: ScriptedTrainer, restarted: bool) -> None:
        trainer.say("b", Phase.FAILED, failure={"stage": "train", "step": 10, "message": "no memory"})
        if restarted:
            trainer.turn()
            trainer.restart()
            trainer.turn()
        trainer.end_job("b")
        for _ in range(2):
            trainer.turn(after_s=1.0)
        assert (trainer.row.crashes, trainer.row.message) == (1, "no memory")

    def test_a_restarted_controller_counts_no_switch_of_those_that_ended_before_again(
        self, trainer: ScriptedTrainer
    ) -> None:
        trainer.progress("a", 1, 14, 2, checkpoint_step=14)
        trainer.end_job("a", "b")
        trainer.turn()
        before = trainer.row.account, trainer.events("checkpoint.written")
        trainer.restart()
        trainer.turn()
        assert (trainer.row.account, trainer.events("checkpoint.written")) == before


@pytest.mark.parametrize(
    ("goes", "lost", "cause"),
    [(ScriptedTrainer.preempt, 1, "preempted"), (ScriptedTrainer.release, 0, "released")],
    ids=["taken by the scheduler", "given up by the plan"],
)
def test_a_node_that_was_taken_is_lost_though_its_fragment_has_not_said_so_and_one_given_up_is_not(
    trainer: ScriptedTrainer, goes: Callable[[ScriptedTrainer, str], None], lost: int, cause: str
) -> None:
    goes(trainer, "b")
    trainer.turn()
    assert (trainer.row.members, trainer.view.nodes_lost) == (("a",), lost)
    trainer.say("b", Phase.LEFT)
    trainer.end_job("b")
    assert trainer.events("fragment.left") == [f"b: {cause}"]


class TestProgress:
    def test_what_a_former_rank_0_still_says_does_not_replace_the_newer(self, trainer: ScriptedTrainer) -> None:
        trainer.say("a", Phase.LEAVING, signalled=True)
        trainer.turn()
        trainer.switch("b", 2, 14, stall_s=0.5)
        trainer.progress("b", 2, 20)
        trainer.turn()
        trainer.progress("a", 1, 14, 2)
        trainer.turn()
        assert (trainer.view.step, trainer.row.progress and trainer.row.progress.generation) == (20, 2)

    def test_nor_does_an_older_word_of_the_same_rank_0(self, trainer: ScriptedTrainer) -> None:
        trainer.progress("a", 1, 9, 2)
        trainer.turn()
        assert trainer.view.step == 10

    def test_a_generation_that_had_to_go_back_may_say_less(self, trainer: ScriptedTrainer) -> None:
        hand_over(trainer, step=4)
        trainer.progress("b", 2, 6)
        trainer.turn()
        assert trainer.view.step == 6

    def test_a_restarted_controller_is_not_misled_by_the_order_in_which_it_reads(
        self, trainer: ScriptedTrainer
    ) -> None:
        trainer.say("a", Phase.LEAVING, signalled=True)
        trainer.turn()
        trainer.switch("b", 2, 10, stall_s=0.5)
        trainer.progress("b", 2, 20)
        trainer.turn()
        for _ in range(2):
            trainer.restart()
            trainer.turn()
        assert trainer.view.step == 20

    def test_a_generation_that_was_never_published_is_not_believed(self, trainer: ScriptedTrainer) -> None:
        trainer.progress("a", 2**31 - 1, 2**31 - 1)
        trainer.turn()
        trainer.progress("a", 1, 11, 2)
        trainer.turn()
        assert trainer.view.step == 11

    def test_metrics_stay_until_the_new_rank_0_has_evaluated(self, trainer: ScriptedTrainer) -> None:
        hand_over(trainer, step=10)
        trainer.progress("b", 2, 12)
        trainer.turn()
        assert trainer.view.metrics == {"accuracy": 0.5}
        trainer.progress("b", 2, 14, metrics={"accuracy": 0.75})
        trainer.turn()
        assert trainer.view.metrics == {"accuracy": 0.75}

    def test_what_schedules_change_is_shown(self, trainer: ScriptedTrainer) -> None:
        trainer.progress("a", 1, 11, 2, total_samples=5000, global_batch=400, learning_rate=0.05)
        trainer.turn()
        view = trainer.view
        assert (view.total_samples, view.global_batch, view.learning_rate) == (5000, 400, 0.05)


class TestCheckpoints:
    def test_the_newest_is_known_with_its_time(self, trainer: ScriptedTrainer) -> None:
        assert (trainer.view.checkpoint_step, trainer.view.checkpoint_at) == (10, 1005.0)
        assert trainer.events("checkpoint.written") == ["durable checkpoint of step 10"]

    @pytest.mark.parametrize("known", [None, 5, 10])
    def test_a_rank_0_that_knows_of_fewer_changes_nothing(
        self, trainer: ScriptedTrainer, known: int | None
    ) -> None:
        hand_over(trainer, step=10)
        trainer.progress("b", 2, 12, checkpoint_step=known)
        trainer.turn(after_s=5.0)
        assert (trainer.view.checkpoint_step, trainer.view.checkpoint_at) == (10, 1005.0)
        assert len(trainer.events("checkpoint.written")) == 1

    def test_one_that_a_former_rank_0_has_written_counts(self, trainer: ScriptedTrainer) -> None:
        trainer.say("a", Phase.LEAVING, signalled=True)
        trainer.turn()
        trainer.switch("b", 2, 14, stall_s=0.5)
        trainer.progress("b", 2, 20)
        trainer.turn()
        trainer.progress("a", 1, 14, 2, checkpoint_step=14)
        trainer.turn()
        assert (trainer.view.step, trainer.view.checkpoint_step) == (20, 14)

    @pytest.mark.parametrize(("source", "step", "newest"), [("checkpoint", 8, 8), ("scratch", 0, None)])
    def test_a_start_from_an_older_one_says_that_the_newer_are_no_good(
        self, trainer: ScriptedTrainer, source: str, step: int, newest: int | None
    ) -> None:
        trainer.end_job("a", "b")
        trainer.launch("c")
        trainer.say("c", Phase.READY)
        trainer.turn()
        trainer.switch("c", 2, step, source=source)
        trainer.progress("c", 2, step + 1, checkpoint_step=newest)
        trainer.turn()
        assert (trainer.view.checkpoint_step, trainer.view.checkpoint_at) == (newest, None)
        trainer.progress("c", 2, 9, checkpoint_step=9)
        trainer.turn(after_s=1.0)
        assert (trainer.view.checkpoint_step, trainer.view.checkpoint_at) == (9, trainer.now)


class TestConditions:
    def test_a_warning_is_the_condition_until_a_checkpoint_succeeds(self, trainer: ScriptedTrainer) -> None:
        trainer.say("a", warnings=[FULL])
        trainer.turn()
        assert trainer.view.message == FULL
        trainer.progress("a", 1, 40, 2, checkpoint_step=10)
        trainer.turn()
        assert trainer.view.message == FULL
        trainer.progress("a", 1, 41, 2, checkpoint_step=40)
        trainer.turn()
        assert trainer.view.message == ""
        assert trainer.events("trainer.warning") == [f"a: {FULL}"]

    def test_it_outlives_a_restart_of_the_service(self, trainer: ScriptedTrainer) -> None:
        trainer.say("a", warnings=[FULL])
        trainer.turn()
        trainer.restart()
        trainer.turn()
        assert trainer.view.message == FULL
        assert trainer.events("trainer.warning") == [f"a: {FULL}"]

    def test_a_restart_does_not_bring_back_one_that_is_over(self, trainer: ScriptedTrainer) -> None:
        trainer.say("a", warnings=[FULL])
        trainer.turn()
        trainer.progress("a", 1, 40, 2, checkpoint_step=40)
        trainer.turn()
        trainer.restart()
        trainer.turn()
        assert trainer.view.message == ""
        assert trainer.events("trainer.warning") == [f"a: {FULL}"]

    @pytest.mark.parametrize("known", [None, 5, 10])
    def test_a_new_rank_0_does_not_wipe_it_with_what_was_durable_before(
        self, trainer: ScriptedTrainer, known: int | None
    ) -> None:
        trainer.say("a", warnings=[FULL])
        trainer.turn()
        hand_over(trainer, step=10)
        trainer.progress("b", 2, 12, checkpoint_step=known)
        trainer.turn()
        assert trainer.view.message == FULL

    def test_a_failure_is_not_hidden_by_an_older_success_of_the_same_report(
        self, trainer: ScriptedTrainer
    ) -> None:
        trainer.progress("a", 1, 25, 2, checkpoint_step=20)
        trainer.say("a", warnings=[READ_ONLY])
        trainer.turn()
        assert (trainer.view.checkpoint_step, trainer.view.message) == (20, READ_ONLY)

    def test_the_same_words_again_are_a_new_warning(self, trainer: ScriptedTrainer) -> None:
        """A report has the newest ten; what is told no more was heard."""
        told = [FULL]
        for count in range(2, 13):
            trainer.say("a", warnings=told[-10:])
            trainer.turn()
            told.append(READ_ONLY if count % 3 else FULL)
        assert trainer.events("trainer.warning") == [f"a: {text}" for text in told[:-1]]
