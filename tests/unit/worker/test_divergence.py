"""Training whose loss, gradients or weights are not finite ends, on every rank after the same step."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.errors import CheckpointError, DivergedError
from oakum_worker.parallel.offload import OffloadedAdamW
from oakum_worker.spec_options import DivergenceSpec
from oakum_worker.state.finiteness import first_not_finite
from oakum_worker.step.divergence import DivergenceWatch, tensors_to_be_finite
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from pipeline_tasks import build_deep_task
from sharded_ranks import Act, Script, play
from training_ranks import Points, build_loop, build_spec, build_task, in_ranks, step_together

NAN, INF = math.nan, math.inf
Spoiler = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def spoil(task: Task, steps: Sequence[int], how: Spoiler) -> Task:
    """The task, whose loss is what `how` makes of it in these steps, which count from 1."""
    finished = [0]
    task.optimizer.register_step_post_hook(lambda *_: finished.__setitem__(0, finished[0] + 1))
    before = task.loss

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = before(model, batch)
        return how(model, value) if finished[0] + 1 in steps else value

    task.loss = loss
    return task


def with_loss(value: float) -> Spoiler:
    """The loss has this value, and its gradient is unchanged."""
    return lambda _, loss: loss + value if math.isinf(value) else loss + torch.tensor(value)


def with_gradient(_: nn.Module, loss: torch.Tensor) -> torch.Tensor:
    """The root of 0 is 0, and its derivative is not finite."""
    return loss + torch.sqrt(0 * loss)


def with_weights(model: nn.Module, loss: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        model[2].bias[0] = NAN
    return loss


@pytest.fixture(autouse=True)
def _looks_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr("oakum_worker.step.divergence._AT_ONCE_S", INF)


def train(loop: TrainingLoop) -> None:
    while not loop.finished:
        loop.step()
    loop.conclude()


def spoiled(how: Spoiler, steps: Sequence[int], **spec: Any) -> TrainingLoop:
    return TrainingLoop(spoil(build_task(), steps, how), build_spec(**spec))


class TestAlone:
    @pytest.mark.parametrize("value", [NAN, INF])
    def test_a_loss_that_is_not_finite_ends_training_after_some_steps(self, value: float) -> None:
        loop = spoiled(with_loss(value), range(3, 99))
        with pytest.raises(DivergedError, match=f"^the loss was {value} at step 3; it has been so for 5 steps"):
            train(loop)
        assert loop.step_count == 7

    def test_how_many_may_be_set(self) -> None:
        loop = spoiled(with_loss(NAN), range(3, 99), divergence={"steps": 1})
        with pytest.raises(DivergedError):
            train(loop)
        assert loop.step_count == 3

    def test_a_few_bad_losses_are_none(self) -> None:
        loop = spoiled(with_loss(INF), [2, 3, 4, 5, 7, 8, 9, 10])
        train(loop)
        assert loop.finished

    def test_it_may_be_switched_off(self) -> None:
        loop = spoiled(with_loss(NAN), range(3, 99), divergence=None)
        train(loop)
        assert loop.finished
        assert tensors_to_be_finite(loop.task.model, None) == frozenset()

    def test_a_gradient_is_named_and_the_finite_loss_of_its_step_told(self) -> None:
        loop = spoiled(with_gradient, [4])
        with pytest.raises(DivergedError, match=r"^the gradient of 0\.weight was not finite at step 4, where the"):
            train(loop)
        # Known to all with step 5, whose loss is not finite either, as are those of 6 to 9.
        assert loop.step_count == 9

    def test_weights_that_the_loss_does_not_depend_on_are_named(self) -> None:
        def unused(model: nn.Module, loss: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                model.unused.fill_(INF)
            return loss

        task = build_task()
        task.model.unused = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        task.optimizer.add_param_group({"params": [task.model.unused], "lr": 0.0, "max_lr": 1, "min_lr": 0})
        task.scheduler = None
        loop = TrainingLoop(spoil(task, [4], unused), build_spec())
        with pytest.raises(DivergedError, match=r"^the weights of unused were not finite after step 3;"):
            train(loop)

    def test_an_end_that_is_not_finite_is_no_success_however_late_it_comes(self) -> None:
        loop = spoiled(with_loss(NAN), [14])
        with pytest.raises(DivergedError, match="the loss was nan at step 14; training ended so, after 14 steps"):
            train(loop)
        loop = spoiled(with_weights, [14])
        with pytest.raises(DivergedError, match=r"2\.bias .* training ended so"):
            train(loop)

    def test_numbers_whose_sum_overflows_are_finite(self) -> None:
        assert (
            first_not_finite([("a", torch.full((4,), 3e38)), ("b", torch.ones(2, dtype=torch.complex64))]) is None
        )
        assert first_not_finite([("a", torch.ones(3)), ("b", torch.tensor([INF, -INF]))]) == "b"


class TestSkippedSteps:
    def test_of_float16_are_none(self) -> None:
        task = build_task(dataset=Points(torch.float32))
        task.model.float()
        calls = itertools.count(1)
        then = task.loss
        task.loss = lambda model, batch: then(model, batch) * (INF if 2 <= next(calls) <= 9 else 1.0)
        loop = TrainingLoop(task, build_spec(precision="float16"))
        losses = []
        while not loop.finished:
            losses.append(loop.step().loss)
        loop.conclude()
        assert sum(not math.isfinite(value) for value in losses) == 8

    def test_of_float16_leave_a_batch_that_adapts_what_it_has_learnt(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Gradients that overflowed tell nothing of the noise, on which the batch and the learning rate depend."""
        monkeypatch.setattr("oakum_worker.step.batch_sizes._STEPS_BETWEEN_DECISIONS", 10)
        task = build_task(dataset=Points(torch.float32))
        task.model.float()
        task.scheduler = None
        calls = itertools.count(1)
        then = task.loss
        task.loss = lambda model, batch: then(model, batch) * (INF if next(calls) % 40 in (20, 21) else 1.0)
        spec = build_spec(
            epochs=20, precision="float16", micro_batch=4, adaptive_batch={"largest": 32}, divergence={"steps": 1}
        )
        loop = TrainingLoop(task, spec)
        losses, batches = [], set()
        while not loop.finished:
            batches.add(loop.progress.global_batch)
            losses.append(loop.step().loss)
        loop.conclude()
        assert any(not math.isfinite(value) for value in losses)
        assert max(batches) > 8

    def test_now_and_then_are_none_however_many(self) -> None:
        """A loss scale that grows again and again costs a step each time: only those in a row are counted."""
        watch = DivergenceWatch(lambda: [], DivergenceSpec())
        for step in range(1, 201):
            watch.look(step, 0.5, gradients=False)
            watch.judge(step, found=False, skipped=step % 50 > 0)

    def test_are_divergence_where_there_is_nothing_else(self) -> None:
        task = build_task()
        task.optimizer = OffloadedAdamW(task.model.parameters(), lr=0.01)
        task.scheduler = None
        then = task.loss
        task.loss = lambda model, batch: then(model, batch) * NAN
        loop = TrainingLoop(task, build_spec(epochs=20))
        with (
            pytest.warns(match="the step was skipped"),
            pytest.raises(DivergedError, match="not finite at step 1; 50 steps in a row have been skipped"),
        ):
            train(loop)


class TestRanks:
    @pytest.mark.parametrize(("how", "last"), [(with_loss(NAN), 7), (with_gradient, 8)], ids=["loss", "gradient"])
    def test_give_up_after_the_same_step(self, how: Spoiler, last: int) -> None:
        loops = [spoiled(how, range(3, 99)) for _ in range(3)]

        def run(group: dist.ProcessGroup, rank: int) -> str:
            loops[rank].join(group, rank, 3)
            with pytest.raises(DivergedError) as raised:
                train(loops[rank])
            return str(raised.value)

        told = in_ranks(3, run)
        assert [loop.step_count for loop in loops] == [last] * 3
        assert len(set(told)) == 1

    def test_that_alone_know_have_the_others_give_up_with_them(self) -> None:
        """What a rank finds in its part of the weights, no other may see."""
        watches = [DivergenceWatch(lambda: [], DivergenceSpec()), DivergenceWatch(lambda: bad, DivergenceSpec())]
        bad = [("rows", nn.Parameter(torch.tensor([NAN])))]
        ended = {}
        for step in range(1, 20):
            found = any(watch.has_found for watch in watches)
            for watch in watches:
                watch.look(step, 0.5, gradients=True)
            for rank, watch in enumerate(watches):
                try:
                    watch.judge(step, found=found, skipped=False)
                except DivergedError as error:
                    ended[rank] = step, str(error).split(";")[0]
            if ended:
                break
        assert ended == {
            0: (6, "gradients or weights of another rank were not finite at step 1"),
            1: (6, "the weights of rows were not finite before the first step"),
        }

    def test_ask_for_checkpoints_as_ever_meanwhile(self) -> None:
        loops = [spoiled(with_gradient, range(2, 99)) for _ in range(2)]
        asked: list[list[bool]] = [[], []]

        def run(group: dist.ProcessGroup, rank: int) -> None:
            loops[rank].join(group, rank, 2)
            for step in range(1, 6):
                asked[rank].append(loops[rank].step(checkpoint=rank == 0 and step == 4).checkpoint)

        in_ranks(2, run)
        assert asked == [[False, False, False, True, False]] * 2


def nan_from_step_3() -> Task:
    return spoil(build_task(), range(3, 99), with_loss(NAN))


def bad_gradient_in_step_3() -> Task:
    return spoil(build_task(), [3], with_gradient)


@pytest.mark.parametrize(
    ("task", "last", "first"),
    [
        (nan_from_step_3, 7, "the loss was nan at step 3"),
        (bad_gradient_in_step_3, 8, r"the (gradient|weights) of 0\.weight w(as|ere) not finite (at|after) step 3"),
    ],
)
def test_sharded_ranks_give_up_after_the_same_step(
    task: Callable[[], Task], last: int, first: str, tmp_path: Path
) -> None:
    outcomes = play(Script((Act((0, 1), until=99),), str(tmp_path), task=task, durable_at=2))
    assert [outcome.losses[-1][0] for outcome in outcomes if outcome is not None] == [last - 1] * 2
    for outcome in outcomes:
        assert outcome is not None
        assert re.match(first, outcome.diverged), outcome.diverged


def deep_nan_from_step_3() -> Task:
    task = build_deep_task()
    assert task.chain is not None
    finished = [0]
    task.optimizer.register_step_post_hook(lambda *_: finished.__setitem__(0, finished[0] + 1))
    compute = task.chain.loss
    chain = dataclasses.replace(
        task.chain, loss=lambda output, batch: compute(output, batch) * (NAN if finished[0] >= 2 else 1.0)
    )
    task.chain = task.loss = chain
    return task


def test_all_stages_of_a_pipeline_give_up_after_the_same_step(tmp_path: Path) -> None:
    spec = {"parallel": {"pipeline": {"stages": 2, "schedule": "1f1b", "micro_batch": 4}}}
    outcomes = play(Script((Act((0, 1), until=99),), str(tmp_path), deep_nan_from_step_3, spec, measured=False))
    assert [outcome.losses[-1][0] for outcome in outcomes if outcome is not None] == [6] * 2
    for outcome in outcomes:
        assert outcome is not None
        assert outcome.diverged.startswith("the loss was nan at step 3; it has been so for 5 steps"), outcome


class TestCheckpoints:
    def test_of_weights_that_are_not_finite_are_not_written_and_push_none_out(self, tmp_path: Path) -> None:
        loop = build_loop()
        checkpoints = DurableCheckpoints(tmp_path, keep=1)
        checkpoints.finite = tensors_to_be_finite(loop.task.model, loop.loss_parts.spec.divergence)
        loop.step()
        checkpoints.save(loop.state.state_dict(), loop.step_count)
        with torch.no_grad():
            loop.task.model[0].weight[1, 1] = NAN  # type: ignore[index]
        loop.step()
        text = r"no checkpoint of step 2 is written: the weights of 0\.weight are not finite"
        with pytest.raises(CheckpointError, match=text):
            checkpoints.save(loop.state.state_dict(), loop.step_count)
        checkpoints.save_in_background(loop.state.state_dict(), loop.step_count)
        checkpoints.wait()
        assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_losses_are_the_same_bits_whether_or_not_anyone_looks() -> None:
    told = []
    for divergence in ({"steps": 5}, None):
        loops = [build_loop(divergence=divergence) for _ in range(3)]
        told.append(step_together(loops, 10))
    assert told[0] == told[1]
