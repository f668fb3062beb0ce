"""How often a trainer may crash, what it takes to get over a crash, and what people are told meanwhile."""

from __future__ import annotations

import itertools

import pytest

from answering_service import Service
from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_service.api.schemas.trainers import AttemptView
from oakum_service.db.engine import Sessions
from oakum_service.states import TrainerState
from oakum_worker.protocol import Phase
from scripted_trainer import ScriptedTrainer

load_commands()

GONE = "the fragment on {} ended without a last report, around step {}: its last lines are in `oakum logs digits`"


@pytest.fixture
def trainer(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> ScriptedTrainer:
    return ScriptedTrainer(sessions, monkeypatch)


class Attempts:
    """A trainer with attempts on one node each, one after the other; each attempt begins from step 400's state."""

    def __init__(self, trainer: ScriptedTrainer) -> None:
        self.trainer = trainer
        self._names = (f"n{number}" for number in itertools.count(1))
        self.node = ""

    def begin(self, source: str = "checkpoint") -> None:
        self.node = next(self._names)
        self.trainer.launch(self.node)
        self.trainer.turn(after_s=1.0)
        self.trainer.say(self.node, Phase.READY)
        self.trainer.turn(after_s=9.0)
        self.trainer.switch(self.node, self.trainer.row.generation, 400, source=source)

    def train_to(self, step: int, after_s: float = 0.5) -> None:
        self.trainer.progress(self.node, self.trainer.row.generation, step)
        self.trainer.turn(after_s=after_s)

    def die(self) -> None:
        self.trainer.lose(self.node)
        self.trainer.turn(after_s=1.0)

    def fail(self, step: int, message: str) -> None:
        failure = {"stage": "train", "step": step, "message": message, "traceback": f"Traceback: {message}"}
        self.trainer.say(self.node, Phase.FAILED, failure=failure)
        self.trainer.turn(after_s=1.0)
        self.die()


@pytest.fixture
def attempts(trainer: ScriptedTrainer) -> Attempts:
    return Attempts(trainer)


class TestDeathsWithoutAWord:
    def test_around_one_step_end_the_trainer_though_steps_succeed_in_between(self, attempts: Attempts) -> None:
        for furthest in (410, 412, 409, 413):
            attempts.begin()
            attempts.train_to(405)
            attempts.train_to(furthest)
            attempts.die()
            assert attempts.trainer.view.state is TrainerState.WAITING
        attempts.begin()
        attempts.train_to(414)
        attempts.die()
        view = attempts.trainer.view
        assert (view.state, view.attempt) == (TrainerState.FAILED, None)
        assert view.message == (
            f"5 attempts ended without getting beyond step 414 for long, at last: {GONE.format('n5', 414)}"
        )

    def test_now_and_then_are_forgiven_where_training_gets_further(self, attempts: Attempts) -> None:
        furthest = 400
        for _ in range(6):  # more often than a trainer may crash
            attempts.begin()
            attempts.train_to(furthest - 10)
            for _ in range(5):  # longer than it takes to get there again
                furthest += 5
                attempts.train_to(furthest, after_s=5.0)
            assert attempts.trainer.row.crashes == 0
            attempts.die()
        assert attempts.trainer.view.state is TrainerState.WAITING

    def test_are_told_of_until_training_has_got_over_them(self, attempts: Attempts) -> None:
        attempts.begin()
        attempts.train_to(412)
        attempts.die()
        told = AttemptView(number=2, most=5, after=GONE.format("n1", 412))
        assert (attempts.trainer.view.attempt, attempts.trainer.view.message) == (told, told.after)
        attempts.begin()
        attempts.train_to(413)
        assert attempts.trainer.view.attempt == told
        attempts.train_to(420, after_s=20.0)
        attempts.train_to(421)
        view = attempts.trainer.view
        assert (view.attempt, view.message, view.condition) == (None, "", "")

    def test_leave_a_later_warning_of_something_else(self, attempts: Attempts) -> None:
        attempts.begin()
        attempts.train_to(412)
        attempts.die()
        attempts.begin()
        attempts.trainer.say(attempts.node, Phase.TRAINING, warnings=["the disk is full"])
        attempts.train_to(413)
        attempts.train_to(420, after_s=20.0)
        attempts.train_to(421)
        assert (attempts.trainer.view.attempt, attempts.trainer.view.message) == (None, "the disk is full")

    def test_in_a_generation_published_in_the_turn_of_the_last_death_end_another_attempt(
        self, trainer: ScriptedTrainer
    ) -> None:
        trainer.launch("a", "b")
        for name in "ab":
            trainer.say(name, Phase.READY)
        trainer.turn(after_s=1.0)
        trainer.switch("a", 1, 0, source="scratch")
        trainer.progress("a", 1, 10, 2)
        trainer.turn(after_s=1.0)
        trainer.lose("a")
        trainer.turn()
        trainer.say("b", Phase.TRAINING, generation=2)
        trainer.turn(after_s=1.0)
        trainer.lose("b")
        assert trainer.row.crashes == 2

    def test_of_all_nodes_at_once_end_one_attempt(self, trainer: ScriptedTrainer) -> None:
        trainer.launch(*"abcdef")
        for name in "abcdef":
            trainer.say(name, Phase.READY)
        trainer.turn(after_s=1.0)
        trainer.switch("a", 1, 0, source="scratch")
        trainer.progress("a", 1, 10, 6)
        trainer.turn(after_s=0.1)
        for name in "abcdef":
            trainer.lose(name)
            trainer.turn(after_s=0.1)
        assert (trainer.row.crashes, trainer.view.state) == (1, TrainerState.WAITING)

    def test_that_others_have_gone_on_from_are_forgiven_with_the_next_step(self, trainer: ScriptedTrainer) -> None:
        """The word of the one that died may have been some steps old."""
        trainer.launch("a", "b")
        for name in "ab":
            trainer.say(name, Phase.READY)
        trainer.turn(after_s=1.0)
        trainer.switch("a", 1, 0, source="scratch")
        trainer.progress("a", 1, 10, 2)
        trainer.turn(after_s=1.0)
        trainer.lose("a")
        trainer.turn()
        trainer.switch("b", 2, 14)
        trainer.progress("b", 2, 14)
        trainer.turn()
        assert trainer.row.crashes == 1
        trainer.progress("b", 2, 15)
        trainer.turn()
        assert trainer.row.crashes == 0


KILLED = (
    "rank 0 was killed (SIGKILL) after step 412: the kernel's out-of-memory killer ended 1 process of its cgroup. "
    "To need less memory: lower micro_batch"
)


class TestDeathsThatTheAgentExplains:
    @pytest.fixture
    def killed(self, attempts: Attempts) -> ScriptedTrainer:
        """The trainer after the kernel has killed its rank for lack of memory; its agent lives on."""
        attempts.begin()
        attempts.train_to(412)
        generation = attempts.trainer.row.generation
        crash = {"number": 1, "generation": generation, "step": 412, "message": KILLED, "is_explained": True}
        attempts.trainer.say(attempts.node, crashes=[crash])
        attempts.trainer.turn(after_s=1.0)
        return attempts.trainer

    def test_leave_fewer_attempts_and_are_told_with_what_to_change(self, killed: ScriptedTrainer) -> None:
        after = f"{KILLED} (n1; its last lines are in `oakum logs digits`)"
        view = killed.view
        assert view.attempt == AttemptView(number=2, most=3, after=after)
        assert view.condition == f"This is attempt 2 of 3. The one before ended with: {after}."

    @pytest.mark.parametrize("command", [["ps"], ["show", "digits"]])
    def test_are_told_of_by_the_commands(
        self,
        killed: ScriptedTrainer,
        service: Service,
        capsys: pytest.CaptureFixture[str],
        command: list[str],
    ) -> None:
        document = killed.view.model_dump(mode="json")
        service.documents["GET", "/v1/trainers"] = {"trainers": [document]}
        service.documents["GET", "/v1/trainers/digits"] = document
        assert run(command) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"This is attempt 2 of 3. The one before ended with: {KILLED} (n1; its last lines are in" in shown


class TestRaisedErrors:
    def test_alike_twice_at_the_same_step_end_the_trainer_with_their_traceback(self, attempts: Attempts) -> None:
        attempts.begin()
        attempts.fail(412, "ValueError: no sample 17")
        assert attempts.trainer.view.attempt == AttemptView(number=2, most=3, after="ValueError: no sample 17")
        attempts.begin()
        attempts.fail(412, "ValueError: no sample 17")
        view = attempts.trainer.view
        assert view.state is TrainerState.FAILED
        assert view.message == "ValueError: no sample 17 (the same error twice at step 412)"
        assert view.step == 412
        assert view.traceback == "Traceback: ValueError: no sample 17"

    @pytest.mark.parametrize(("step", "message"), [(413, "no sample 17"), (412, "connection reset")])
    def test_that_differ_keep_their_budget(self, attempts: Attempts, step: int, message: str) -> None:
        attempts.begin()
        attempts.fail(412, "no sample 17")
        attempts.begin()
        attempts.fail(step, message)
        assert attempts.trainer.view.state is TrainerState.WAITING
        attempts.begin()
        attempts.fail(412, "no sample 17")
        assert attempts.trainer.view.state is TrainerState.FAILED

    def test_on_all_nodes_at_once_are_one(self, trainer: ScriptedTrainer) -> None:
        trainer.launch("a", "b")
        for name in "ab":
            trainer.say(name, Phase.READY)
        trainer.turn(after_s=1.0)
        trainer.switch("a", 1, 0, source="scratch")
        for name in "ab":
            trainer.say(name, Phase.FAILED, failure={"stage": "train", "step": 10, "message": "no memory"})
            trainer.turn(after_s=0.1)
        assert (trainer.row.crashes, trainer.view.state) == (1, TrainerState.WAITING)


def test_a_trainer_that_has_diverged_has_ended_and_not_with_success(attempts: Attempts) -> None:
    attempts.begin()
    attempts.trainer.say(
        attempts.node, Phase.FAILED, failure={"stage": "diverged", "step": 430, "message": "the loss is nan"}
    )
    attempts.trainer.turn()
    view = attempts.trainer.view
    text = (
        "the loss is nan. Its newest checkpoint was written before that and is kept: `oakum submit SPEC --from "
        "digits` "
        "begins there"
    )
    assert (view.state, view.message, view.traceback) == (TrainerState.DIVERGED, text, "")
    assert view.state.ended
    assert [state.exit_status for state in TrainerState if state.ended] == [0, 1, 3, 4]
