"""The best evaluation and the early end of training, at any number of ranks and through losses of ranks."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pydantic import ValidationError

from cells import each
from evaluated_tasks import EVALUATE, evaluated_loop, evaluated_task, train_alone
from oakum_worker.checkpoint.adoption import adopt
from oakum_worker.checkpoint.best import read_best
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.errors import GroupError, TaskError
from oakum_worker.keeping.replicated import ReplicatedKeeper
from oakum_worker.protocol import BestEvaluation, Endpoint, Generation, Member
from oakum_worker.spec_options import CheckpointSpec, EvaluateSpec
from oakum_worker.step.metric_watch import MetricWatch
from oakum_worker.step.training_loop import TrainingLoop
from training_ranks import build_spec, build_task, in_ranks

ALONE = Generation(number=1, members=(Member(fragment="f", node="n", ranks=(Endpoint(host="h", port=1),)),))


def evaluate(loop: TrainingLoop) -> bool:
    return loop.evaluations.record(loop.evaluations.run() if loop.evaluations.include_this_rank else {})


def train(loop: TrainingLoop, num_steps: int = 10**6) -> list[float]:
    """What a rank does within a generation, for this number of steps or to the end."""
    loop.evaluations.agree()
    if loop.evaluations.is_owed:
        evaluate(loop)
    losses = []
    while not loop.finished and len(losses) < num_steps:
        losses.append(loop.step().loss)
        if loop.evaluations.is_due:
            evaluate(loop)
    return losses


def train_together(loops: list[TrainingLoop], num_steps: int = 10**6) -> list[float]:
    """Rank 0's losses; the state is that of rank 0."""

    def run(group: dist.ProcessGroup, rank: int) -> list[float]:
        loops[rank].join(group, rank, len(loops))
        loops[rank].state.share(0)
        return train(loops[rank], num_steps)

    return in_ranks(len(loops), run)[0]


def test_training_ends_when_as_many_evaluations_as_the_patience_were_not_better() -> None:
    loop = evaluated_loop()
    _, errors = train_alone(loop)
    best = min(errors, key=errors.__getitem__)
    assert loop.evaluations.best == BestEvaluation(metric="error", value=errors[best], step=best)
    assert loop.step_count == best + 3 * 2 == max(errors)
    assert loop.progress.epoch < 12
    assert (
        loop.evaluations.ended_early
        == f"error has not fallen in 3 evaluations, since {errors[best]:.6g} after step {best}"
    )


def test_the_same_step_is_the_last_one_through_growth_shrinking_and_a_lost_evaluation() -> None:
    alone = evaluated_loop()
    expected, _ = train_alone(alone)
    loops = [evaluated_loop() for _ in range(3)]
    losses = train_together(loops[:1], 3)
    losses += train_together(loops, 4)
    losses += train_together(loops[1:], 2)
    losses += train_together(loops[2:] + loops[:1])
    assert losses == pytest.approx(expected, rel=1e-9)
    for loop in (loops[0], loops[2]):
        assert (loop.step_count, loop.finished) == (alone.step_count, True)
        assert loop.evaluations.best is not None
        assert alone.evaluations.best is not None
        assert loop.evaluations.best.step == alone.evaluations.best.step
        assert loop.evaluations.best.value == pytest.approx(alone.evaluations.best.value, rel=1e-9)


@each("who_recorded", [(0,), (1,), ()])
def test_an_evaluation_that_some_ranks_have_not_recorded_counts_once(who_recorded: tuple[int, ...]) -> None:
    """The generation breaks in the middle of what ranks tell each other: some have all of it, some have not."""
    alone = evaluated_loop()
    expected, _ = train_alone(alone)
    loops = [evaluated_loop() for _ in range(2)]
    losses = train_together(loops, alone.step_count - 3)

    def until_it_breaks(group: dist.ProcessGroup, rank: int) -> float:
        loop = loops[rank]
        loop.join(group, rank, 2)
        result = loop.step()
        assert loop.evaluations.is_due
        if rank not in who_recorded:
            loop.evaluations._metric = copy.copy(loop.evaluations._metric)  # what it hears is lost on it
        loop.evaluations.record(loop.evaluations.run())
        return result.loss

    watches = [loop.evaluations._metric for loop in loops]
    losses.append(in_ranks(2, until_it_breaks)[0])
    for loop, watch in zip(loops, watches, strict=True):
        loop.evaluations._metric = watch

    def go_on(group: dist.ProcessGroup, rank: int) -> list[float]:
        loops[rank].join(group, rank, 2)
        return train(loops[rank])

    losses += in_ranks(2, go_on)[0]
    assert losses == pytest.approx(expected, rel=1e-9)
    assert [loop.step_count for loop in loops] == [alone.step_count] * 2
    assert [loop.evaluations.ended_early.split(",")[0] for loop in loops] == [
        alone.evaluations.ended_early.split(",")[0]
    ] * 2


def test_a_rank_lost_in_an_evaluation_breaks_the_generation_and_the_evaluation_is_owed() -> None:
    loop = evaluated_loop()
    train(loop, 1)
    loop.step()
    metrics = loop.evaluations.run()

    def lose(_: Any) -> Any:
        raise GroupError("a rank was lost")

    loop.ranks.gather = lose  # type: ignore[method-assign]
    with pytest.raises(GroupError):
        loop.evaluations.record(metrics)
    assert loop.evaluations.is_owed
    del loop.ranks.gather
    train(loop, 0)
    assert not loop.evaluations.is_owed


def test_what_was_recorded_is_part_of_the_state() -> None:
    alone, before = evaluated_loop(), evaluated_loop()
    expected, _ = train_alone(alone)
    losses = train(before, alone.step_count - 2)
    after = evaluated_loop()
    after.state.load_state_dict(copy.deepcopy(before.state.state_dict()))
    assert after.evaluations.best == before.evaluations.best
    losses += train(after)
    assert losses == pytest.approx(expected, rel=1e-12)
    assert after.step_count == alone.step_count


class OnDisk:
    """A trainer alone, with its checkpoints."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.loop, self.folder = evaluated_loop(**changes), folder
        self.checkpoints = DurableCheckpoints(folder, keep=2)
        self.keeper = ReplicatedKeeper(self.loop.state, CheckpointSpec(), self.checkpoints, None, lambda _: None)
        self.source = self.keeper.begin(ALONE, 0)
        self.loop.evaluations.agree()
        if self.loop.evaluations.is_owed:
            self._evaluate()

    def train(self, num_steps: int = 10**6) -> None:
        """Take the steps, with a durable checkpoint after each."""
        while not self.loop.finished and num_steps:
            self.loop.step()
            self.keeper.after_step(durable=True)
            if self.loop.evaluations.is_due:
                self._evaluate()
            self.checkpoints.wait()
            num_steps -= 1

    def _evaluate(self) -> None:
        if evaluate(self.loop):
            assert self.loop.evaluations.best is not None
            self.keeper.keep_best(self.loop.evaluations.best)

    @property
    def steps(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


def test_the_best_checkpoint_stays_beside_the_newest_ones(tmp_path: Path) -> None:
    trainer = OnDisk(tmp_path)
    trainer.train()
    trainer.keeper.finish()
    best, last = trainer.loop.evaluations.best, trainer.loop.step_count
    assert best is not None
    assert best.step < last - 2
    assert trainer.steps == {"best.json", *(f"step-{step}" for step in (best.step, last - 1, last))}
    assert read_best(tmp_path) == best


def test_a_process_that_finds_checkpoints_keeps_the_best_one_of_the_process_before(tmp_path: Path) -> None:
    alone = evaluated_loop()
    train_alone(alone)
    assert alone.evaluations.best is not None
    before = OnDisk(tmp_path)
    before.train(alone.evaluations.best.step + 1)
    after = OnDisk(tmp_path)
    assert (after.source, after.loop.evaluations.best) == ("checkpoint", alone.evaluations.best)
    after.train()
    last = alone.step_count
    assert after.loop.step_count == last
    assert after.steps == {
        "best.json",
        *(f"step-{step}" for step in (alone.evaluations.best.step, last - 1, last)),
    }


def test_a_checkpoint_from_before_its_steps_evaluation_evaluates_when_it_is_loaded(tmp_path: Path) -> None:
    before = OnDisk(tmp_path)
    before.loop.step()
    before.loop.step()
    before.keeper.close(save=True)
    assert before.loop.evaluations.is_owed
    after = OnDisk(tmp_path)
    assert after.loop.evaluations.best is not None
    assert after.loop.evaluations.best.step == 2
    after.checkpoints.wait()
    assert read_best(tmp_path) == after.loop.evaluations.best


def test_a_better_checkpoint_takes_the_place_of_the_best_one(tmp_path: Path) -> None:
    checkpoints = DurableCheckpoints(tmp_path, keep=1)
    for step in range(1, 7):
        if step in (2, 4):
            checkpoints.best = BestEvaluation(metric="error", value=1.0 / step, step=step)
        checkpoints.save({"weight": torch.ones(1)}, step)
    assert {path.name for path in tmp_path.iterdir()} == {"best.json", "step-4", "step-6"}


def test_a_trainer_that_begins_from_another_ones_state_has_no_best_yet(tmp_path: Path) -> None:
    before = OnDisk(tmp_path / "before")
    before.train(6)
    adopt(tmp_path / "before", tmp_path / "after", "somebody")
    after = OnDisk(tmp_path / "after", evaluate={**EVALUATE, "every_steps": 100})
    assert (after.source, after.loop.step_count, after.loop.evaluations.best) == ("checkpoint", 6, None)
    assert read_best(tmp_path / "after") is None


@each(
    ("mode", "values", "best", "misses"),
    [
        ("min", [3.0, 2.0, 2.0, 4.0], 2, 2),
        ("max", [3.0, 2.0, 5.0, 5.0], 3, 1),
        ("max", [math.nan, 1.0, math.inf], 2, 1),
        ("min", [math.nan, math.nan], None, 2),
    ],
)
@pytest.mark.filterwarnings("ignore:error was")
def test_only_a_better_finite_value_is_the_best(
    mode: str, values: list[float], best: int | None, misses: int
) -> None:
    watch = MetricWatch(EvaluateSpec(keep_best="error", mode=mode, patience=9))  # type: ignore[arg-type]
    for step, value in enumerate(values, 1):
        watch.record(step, value)
    assert (watch.best and watch.best.step) == best
    assert watch.state_dict()["misses"] == misses


def test_a_metric_that_is_not_finite_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"error was nan after step 4: it counts as no better value; look for"):
        MetricWatch(EvaluateSpec(keep_best="error")).record(4, math.nan)


@each(
    ("returned", "told"),
    [
        ({"accuracy": 1.0}, r"returned no metric 'error'.*its metrics: 'accuracy'. Name one of them"),
        ({}, r"returned no metric 'error'.*its metrics: none"),
        (None, r"returned a NoneType: return a dict of numbers by name"),
        ({"error": "low"}, r"returned 'error' as 'low', which cannot be read as a number"),
        ({"error": torch.ones(3)}, r"'error' as a tensor of shape \(3,\): return one number, such as its mean"),
        ({"error": torch.ones((), device="meta")}, r"'error' as a tensor on meta, which cannot be read"),
        ({"error": 1j}, r"returned 'error' as 1j, which cannot be read"),
    ],
)
def test_what_is_no_metric_is_told(returned: Any, told: str) -> None:
    loop = TrainingLoop(evaluated_task(evaluate=lambda _: returned), build_spec(evaluate=EVALUATE))
    loop.step()
    with pytest.raises(TaskError, match=told):
        loop.evaluations.run()


def test_a_spec_that_evaluates_needs_a_task_that_does() -> None:
    with pytest.raises(TaskError, match=r"return Task\(..., evaluate=...\)"):
        TrainingLoop(build_task(), build_spec(evaluate={"every_steps": 5}))


@each(
    ("evaluate", "due"),
    [
        ({"every_steps": 4}, [4, 8, 12, 14]),
        ({"every_epochs": 2}, [14]),
        ({}, [7, 14]),
        (None, [7, 14]),
    ],
)
def test_evaluations_come_when_the_spec_says(evaluate: dict[str, Any] | None, due: list[int]) -> None:
    loop = TrainingLoop(evaluated_task(), build_spec(evaluate=evaluate))
    found = []
    while not loop.finished:
        loop.step()
        found += [loop.step_count] if loop.evaluations.is_due else []
    assert found == due


@each(
    ("fields", "told"),
    [
        ({"evaluate": {"every_steps": 5, "every_epochs": 1}}, "every_steps and every_epochs are both given"),
        ({"evaluate": {"patience": 5}}, "patience counts evaluations without a better metric"),
        ({"evaluate": {"mode": "max"}}, "mode says which values of a metric are better"),
        ({"evaluate": {"every_steps": 0}}, "greater than or equal to 1"),
        ({"evaluate": {"every_steps": 5}, "script": "train.py", "entrypoint": ""}, "does not go with a script"),
    ],
)
def test_what_does_not_go_together_is_told(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        build_spec(**fields)
