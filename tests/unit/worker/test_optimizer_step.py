"""What happens between a step's gradients and its new weights."""

from __future__ import annotations

import copy
import json
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from cells import each
from oakum_worker.errors import DivergedError, TaskError
from oakum_worker.step.optimizer_step import OptimizerStep
from oakum_worker.task import Task
from training_ranks import Points, build_spec, mean_squared_error


def build_task(optimizer: type[torch.optim.Optimizer] = torch.optim.SGD, **options: Any) -> Task:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    return Task(
        model=model,
        dataset=Points(torch.float32),
        loss=mean_squared_error,
        optimizer=optimizer(model.parameters(), **{"lr": 0.5} | options),
    )


def fill_gradients(task: Task, value: float = 1.0) -> None:
    for parameter in task.model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def weights(task: Task) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in task.model.parameters()]


def moved_by(task: Task, updater: OptimizerStep, epochs_done: float = 1.0, gain: float = 1.0) -> float:
    """The learning rate with which a step with gradients of 1 is taken."""
    before = weights(task)
    fill_gradients(task)
    updater.update(epochs_done, gain)
    [moved] = {round((b - a).max().item(), 5) for b, a in zip(before, weights(task), strict=True)}
    return moved


def test_without_options_the_step_is_the_optimizers_own() -> None:
    ours, theirs = build_task(torch.optim.AdamW, lr=0.1), build_task(torch.optim.AdamW, lr=0.1)
    updater = OptimizerStep(ours, build_spec())
    for value in (1.0, -3.0):
        fill_gradients(ours, value)
        fill_gradients(theirs, value)
        update = updater.update(0.0)
        theirs.optimizer.step()
        assert (update.skipped, update.grad_norm) == (False, None)
    assert all(map(torch.equal, weights(ours), weights(theirs)))
    assert (updater.loss_scale, updater.state_dict()) == (1.0, {})


def test_a_long_gradient_is_clipped_and_its_norm_told() -> None:
    task = build_task()
    fill_gradients(task, 2.0)
    norm = torch.cat([p.grad.flatten() for p in task.model.parameters() if p.grad is not None]).norm()
    before = weights(task)
    update = OptimizerStep(task, build_spec(clip_grad_norm=0.1)).update(0.0)
    moved = torch.cat([(b - a).flatten() for b, a in zip(before, weights(task), strict=True)]).norm()
    torch.testing.assert_close(update.grad_norm, norm)
    assert moved.item() == pytest.approx(0.5 * 0.1, rel=1e-4)


def test_a_short_gradient_is_not_made_longer() -> None:
    clipped, plain = build_task(), build_task()
    fill_gradients(clipped)
    fill_gradients(plain)
    OptimizerStep(clipped, build_spec(clip_grad_norm=1e3)).update(0.0)
    plain.optimizer.step()
    assert all(map(torch.equal, weights(clipped), weights(plain)))


def test_the_rate_rises_linearly_while_warming_up() -> None:
    task = build_task()
    updater = OptimizerStep(task, build_spec(warm_up={"epochs": 2, "start": 0.2}))
    rates = [moved_by(task, updater, epochs_done) for epochs_done in (0, 0.5, 1, 1.5, 2, 9)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5])


def test_the_gain_multiplies_the_rate_of_its_step_alone() -> None:
    task = build_task()
    updater = OptimizerStep(task, build_spec())
    assert [moved_by(task, updater, gain=gain) for gain in (3.0, 1.0)] == [1.5, 0.5]


@each(
    "build",
    [
        lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
        lambda optimizer: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(optimizer, 0.5, 2), lr_scheduler.MultiplicativeLR(optimizer, lambda _: 0.8)]
        ),
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 7),
    ],
    ids=["exponential", "chained", "cosine"],
)
def test_no_scheduler_notices_that_rates_are_multiplied(build: Any) -> None:
    ours, theirs = build_task(), build_task()
    ours.scheduler, theirs.scheduler = build(ours.optimizer), build(theirs.optimizer)
    updater = OptimizerStep(ours, build_spec(warm_up={"epochs": 3}))
    for step in range(5):
        fill_gradients(ours)
        fill_gradients(theirs)
        updater.update(step / 2, gain=1.7)
        theirs.optimizer.step()
        theirs.scheduler.step()
        assert ours.optimizer.param_groups[0]["lr"] == theirs.optimizer.param_groups[0]["lr"]


def test_a_rate_that_is_a_tensor_stays_the_same_object() -> None:
    rate = torch.tensor(0.5)
    task = build_task(torch.optim.SGD, lr=rate)
    assert moved_by(task, OptimizerStep(task, build_spec()), gain=3.0) == 1.5
    assert task.optimizer.param_groups[0]["lr"] is rate
    assert rate == 0.5


def test_a_step_that_raises_leaves_the_rate_as_it_was() -> None:
    task = build_task()

    def fail(*_: Any) -> None:
        raise ValueError("no")

    task.optimizer.register_step_pre_hook(fail)
    with pytest.raises(ValueError, match="no"):
        OptimizerStep(task, build_spec(warm_up={"epochs": 3})).update(0.0)
    assert task.optimizer.param_groups[0]["lr"] == 0.5


def test_the_schedule_moves_on_by_as_many_steps_as_asked() -> None:
    task = build_task()
    task.scheduler = lr_scheduler.ExponentialLR(task.optimizer, 0.5)
    fill_gradients(task)
    OptimizerStep(task, build_spec()).update(0.0, schedule_steps=3)
    assert task.optimizer.param_groups[0]["lr"] == 0.5**4


@pytest.mark.parametrize(("gain", "moved"), [(0.5, 0.01), (0.01, 0.005)], ids=["local rate", "own rate"])
def test_clipped_lars_compares_with_the_multiplied_rate(gain: float, moved: float) -> None:
    task = build_task()
    for parameter in task.model.parameters():
        parameter.data.fill_(1.0)
    fill_gradients(task)  # As large as the weights: the local rate is the trust coefficient.
    OptimizerStep(task, build_spec(lars={"trust_coefficient": 0.01, "clip": True})).update(0.0, gain)
    assert task.model[0].weight[0, 0].item() == pytest.approx(1 - moved)


def test_products_are_computed_in_the_specs_precision() -> None:
    task = build_task()
    inputs = torch.ones(2, 5)
    for precision, dtype in [
        ("float32", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
    ]:
        with OptimizerStep(task, build_spec(precision=precision)).forward():
            assert task.model(inputs).dtype == dtype
    assert task.model(inputs).dtype == torch.float32


def test_float16_gradients_are_scaled_back_before_they_are_clipped() -> None:
    task = build_task()
    updater = OptimizerStep(task, build_spec(precision="float16", clip_grad_norm=1e3))
    fill_gradients(task, updater.loss_scale)
    update = updater.update(0.0)
    assert update.grad_norm is not None
    assert update.grad_norm.item() == pytest.approx(sum(p.numel() for p in task.model.parameters()) ** 0.5)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_gradients_that_are_not_finite_change_neither_weights_nor_moments(value: float) -> None:
    task = build_task(torch.optim.Adam, lr=0.1)
    updater = OptimizerStep(task, build_spec(precision="float16"))
    fill_gradients(task, updater.loss_scale)
    updater.update(0.0)
    before, moments = weights(task), copy.deepcopy(task.optimizer.state_dict())
    fill_gradients(task, 1.0)
    task.model[0].weight.grad[0, 0] = value
    scale = updater.loss_scale
    assert updater.update(0.0).skipped
    assert all(map(torch.equal, weights(task), before))
    torch.testing.assert_close(task.optimizer.state_dict(), moments, rtol=0, atol=0)
    assert updater.loss_scale == scale / 2


def test_the_schedule_moves_on_with_a_skipped_batch_and_nobody_is_warned() -> None:
    task = build_task()
    task.scheduler = lr_scheduler.ExponentialLR(task.optimizer, 0.5)
    updater = OptimizerStep(task, build_spec(precision="float16"))
    fill_gradients(task, torch.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        updater.update(0.0)
    assert task.optimizer.param_groups[0]["lr"] == 0.25


def test_gradients_that_never_become_finite_end_the_training() -> None:
    task = build_task()
    updater = OptimizerStep(task, build_spec(precision="float16"))
    with pytest.raises(DivergedError, match="loss itself seems not to be finite"):  # noqa: PT012
        for _ in range(100):
            fill_gradients(task, torch.nan)
            updater.update(0.0)


def test_a_loss_scale_goes_on_where_another_process_left_it() -> None:
    task = build_task()
    before, after = (OptimizerStep(t, build_spec(precision="float16")) for t in (task, build_task()))
    for value in (torch.inf, 1.0, 1.0):
        fill_gradients(task, value)
        before.update(0.0)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert after.loss_scale == 2.0**15
    assert after.state_dict() == before.state_dict()


def test_float16_weights_are_refused_with_float16_precision() -> None:
    task = build_task()
    task.model.half()
    with pytest.raises(TaskError, match="keep the weights in float32"):
        OptimizerStep(task, build_spec(precision="float16"))


def train(precision: str, num_updates: int) -> list[float]:
    """The losses before each step that was not skipped."""
    task = build_task(momentum=0.9, lr=0.05)
    updater, losses = OptimizerStep(task, build_spec(precision=precision)), []
    while len(losses) < num_updates:
        task.optimizer.zero_grad()
        with updater.forward():
            loss = task.loss(task.model, task.read(range(32)))
        (loss * updater.loss_scale).backward()
        if not updater.update(0.0).skipped:
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_half_precision_training_follows_float32_training(precision: str) -> None:
    half, whole = train(precision, 30), train("float32", 30)
    assert whole[-1] < 0.9 * whole[0]
    assert half == pytest.approx(whole, rel=0.02)
