"""A task's hooks at the boundaries of steps and epochs: when they are called, and what their changes are worth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from cells import each
from oakum_worker.errors import TaskError
from oakum_worker.rehearsal import rehearse
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Progress, Task
from training_ranks import NUM_SAMPLES, build_loop, build_spec, build_task, step_together

Call = tuple[str, int, int]


class Calls:
    """The calls of one task's hooks."""

    def __init__(self, task: Task) -> None:
        self.made: list[Call] = []
        self.losses: list[float] = []
        task.on_epoch_start = lambda _, progress: self._note("epoch", progress)
        task.on_step_start = lambda _, progress: self._note("start", progress)
        task.on_step_end = lambda _, progress: self._note("end", progress)

    def _note(self, kind: str, progress: Progress) -> None:
        self.made.append((kind, progress.step, progress.epoch))
        if progress.loss is not None:
            self.losses.append(progress.loss)


def test_hooks_see_the_number_of_the_step_and_its_epoch() -> None:
    task = build_task()
    calls = Calls(task)
    loop = TrainingLoop(task, build_spec(global_batch=NUM_SAMPLES // 2 + 1))

    losses = [loop.step().loss for _ in range(3)]

    assert calls.made == [
        ("epoch", 0, 0),
        ("start", 0, 0),
        ("end", 1, 0),
        ("start", 1, 0),
        ("end", 2, 0),
        ("epoch", 2, 1),
        ("start", 2, 1),
        ("end", 3, 1),
    ]
    assert calls.losses == losses


def take_steps(loop: TrainingLoop, num: int) -> list[float]:
    return [loop.step().loss for _ in range(num)]


class Counter:
    def __init__(self) -> None:
        self.num = 0

    def state_dict(self) -> dict[str, Any]:
        return {"num": self.num}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num = state["num"]


def counted_task(counter: Counter, breaks_at: int | None = None) -> Task:
    """A task whose loss is weighted by the count that its hook keeps; it is interrupted once at a step."""
    task = build_task()
    task.extra_state = {"counter": counter}
    broken: list[int] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if counter.num == breaks_at and not broken:
            broken.append(1)
            raise ConnectionError("a peer is lost")
        return mse_loss(model(batch[0]), batch[1]) * (1 + counter.num)

    def count(model: nn.Module, progress: Progress) -> None:
        counter.num += 1

    task.loss, task.on_step_end = loss, count
    return task


def test_what_a_hook_changes_at_a_steps_end_is_counted_once_though_a_step_is_repeated() -> None:
    undisturbed = TrainingLoop(counted_task(Counter()), build_spec())
    expected = [undisturbed.step().loss for _ in range(6)]
    counter = Counter()
    loop = TrainingLoop(counted_task(counter, breaks_at=3), build_spec())

    losses = []
    while len(losses) < 6:
        try:
            losses.append(loop.step().loss)
        except ConnectionError:
            assert counter.num == 3

    assert losses == expected
    assert counter.num == 6


def test_the_state_in_the_middle_of_a_step_is_that_after_the_hook_of_the_one_before() -> None:
    counter = Counter()
    held: list[Any] = []
    task = counted_task(counter)
    compute = task.loss

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        with loop.state.held_at_boundary() as state:
            held.append((state["cursor"]["step"], state["parts"]["task.counter"]["num"]))
        return compute(model, batch)

    task.loss = loss
    loop = TrainingLoop(task, build_spec())
    for _ in range(3):
        loop.step()

    assert held == [(0, 0), (1, 1), (2, 2)]


def test_who_takes_up_a_state_is_told_of_its_epoch() -> None:
    first = build_loop()
    take_steps(first, 2)
    task = build_task()
    calls = Calls(task)
    second = TrainingLoop(task, build_spec())
    second.step()
    calls.made.clear()

    second.state.load_state_dict(first.state.state_dict())
    second.step()

    assert calls.made == [("epoch", 2, 0), ("start", 2, 0), ("end", 3, 0)]


def test_a_hook_at_a_steps_end_finds_the_weights_after_it_and_may_change_them() -> None:
    task = build_task()
    seen: list[torch.Tensor] = []

    def halve(model: nn.Module, progress: Progress) -> None:
        with torch.no_grad():
            weight = next(model.parameters())
            seen.append(weight.clone())
            weight.div_(2)

    task.on_step_end = halve
    loop, other = TrainingLoop(task, build_spec()), build_loop()
    loop.step(), other.step()

    assert torch.equal(seen[0], next(other.task.model.parameters()))
    assert torch.equal(next(task.model.parameters()), seen[0] / 2)


def test_all_ranks_are_called_at_the_same_steps_with_the_same_loss() -> None:
    built = [build_task() for _ in range(3)]
    calls = [Calls(task) for task in built]

    losses = step_together([TrainingLoop(task, build_spec()) for task in built], 8)

    assert [len(made.made) for made in calls] == [2 * 8 + 2] * 3
    assert all(made.made == calls[0].made and made.losses == losses for made in calls)


@each("hook", ["on_step_start", "on_step_end", "loss"])
def test_a_parameter_that_is_unfrozen_on_the_way_ends_training_at_that_step(hook: str) -> None:
    task = build_task()
    first = task.model[0]  # type: ignore[index]
    first.weight.requires_grad_(False)  # type: ignore[union-attr]
    calls = iter(range(100))

    def unfreeze(*given: Any) -> Any:
        if next(calls) == 2:
            first.weight.requires_grad_(True)  # type: ignore[union-attr]
        return mse_loss(given[0](given[1][0]), given[1][1]) if hook == "loss" else None

    setattr(task, hook, unfreeze)
    loop = TrainingLoop(task, build_spec())

    with pytest.raises(TaskError, match=r"changes which parameters require gradients \(0.weight\).*LambdaLR"):
        take_steps(loop, 5)

    assert loop.step_count == (3 if hook == "on_step_end" else 2)


def test_unfreezing_by_a_learning_rate_of_zero_changes_no_weight_before() -> None:
    task = build_task()
    layers: Any = task.model
    groups = [{"params": layers[2].parameters()}, {"params": layers[0].parameters()}]
    task.optimizer = torch.optim.AdamW(groups, lr=0.01)
    schedule = [lambda step: 1.0, lambda step: float(step >= 3)]
    task.scheduler = torch.optim.lr_scheduler.LambdaLR(task.optimizer, schedule)
    loop = TrainingLoop(task, build_spec())
    before = layers[0].weight.detach().clone()

    for _ in range(3):
        loop.step()
    assert torch.equal(layers[0].weight, before)

    loop.step()
    assert not torch.equal(layers[0].weight, before)


def test_a_rehearsal_tries_a_loss_that_needs_its_hooks_and_leaves_nothing_of_them() -> None:
    task = build_task()

    def set_rate(model: nn.Module, progress: Progress) -> None:
        model.rate = 0.5**progress.epoch  # type: ignore[assignment]

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return mse_loss(model(batch[0]), batch[1], reduction="sum") * model.rate

    task.on_epoch_start, task.loss = set_rate, loss

    with pytest.raises(TaskError, match="It is the sum over the samples"):
        rehearse(task, build_spec(), budget_s=60)
    assert not hasattr(task.model, "rate")


def test_a_hook_that_is_none_is_told_of() -> None:
    from oakum_worker.task_checks import first_complaint

    task = build_task()
    task.on_step_end = 3  # type: ignore[assignment]

    assert first_complaint(task) == "on_step_end is a int: give a function of (model, progress), or None"


def by_epoch(scheduler: Any) -> Task:
    task = build_task()
    task.optimizer = torch.optim.Adam(task.model.parameters(), lr=0.01)
    task.scheduler = scheduler(task.optimizer)
    task.scheduler_by_epoch = True
    return task


def rates_after(loop: TrainingLoop, num: int) -> list[float]:
    rates = []
    for _ in range(num):
        loop.step()
        rates.append(loop.task.optimizer.param_groups[0]["lr"])
    return rates


def halved(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def test_a_scheduler_by_epoch_steps_once_after_each_epochs_last_step() -> None:
    task = by_epoch(halved)
    rates_seen: list[float] = []
    task.on_step_end = lambda model, progress: rates_seen.append(task.optimizer.param_groups[0]["lr"])
    rates = rates_after(TrainingLoop(task, build_spec(global_batch=20)), 6)
    assert rates == [0.01, 0.01, 0.005, 0.005, 0.005, 0.0025]
    assert rates_seen == rates


def test_a_scheduler_by_epoch_goes_on_with_a_state_and_with_other_ranks() -> None:
    spec = build_spec(global_batch=20, epochs=3)
    alone = TrainingLoop(by_epoch(halved), spec)
    expected = take_steps(alone, 9)
    loops = [TrainingLoop(by_epoch(halved), spec) for _ in range(3)]
    losses = step_together(loops[:2], 2) + step_together(loops, 4, share_from=0)
    last = TrainingLoop(by_epoch(halved), spec)
    last.state.load_state_dict(loops[2].state.state_dict())
    losses += take_steps(last, 3)
    assert losses == pytest.approx(expected, rel=1e-9)
    assert last.task.optimizer.param_groups[0]["lr"] == alone.task.optimizer.param_groups[0]["lr"] == 0.00125


@each(("before", "after", "rate"), [(True, True, 0.005), (False, True, 0.005), (True, False, 0.000625)])
def test_another_spec_begins_with_as_many_steps_of_its_scheduler_as_it_would_have_taken(
    before: bool, after: bool, rate: float
) -> None:
    loops = []
    for counts_epochs in (before, after):
        task = by_epoch(halved)
        task.scheduler_by_epoch = counts_epochs
        loops.append(TrainingLoop(task, build_spec(global_batch=20, epochs=3)))
    take_steps(loops[0], 4)
    loops[1].state.adopt(loops[0].state.state_dict())
    assert loops[1].task.optimizer.param_groups[0]["lr"] == rate


def plateau_task() -> Task:
    """The way to have `ReduceLROnPlateau` in a task: by the loss, which is equal on every rank."""
    task = build_task()
    task.optimizer = torch.optim.Adam(task.model.parameters(), lr=0.01)
    task.scheduler = None
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(task.optimizer, patience=0, threshold=0.2)
    task.extra_state = {"plateau": plateau}
    task.on_step_end = lambda model, progress: plateau.step(progress.loss)
    return task


def test_a_plateau_of_the_loss_lowers_the_rate_alike_at_any_number_of_ranks() -> None:
    spec = build_spec(global_batch=20, epochs=3)
    alone = TrainingLoop(plateau_task(), spec)
    expected = take_steps(alone, 9)
    loops = [TrainingLoop(plateau_task(), spec) for _ in range(3)]
    losses = step_together(loops[:2], 3) + step_together(loops, 6, share_from=0)
    assert losses == pytest.approx(expected, rel=1e-9)
    rates = {loop.task.optimizer.param_groups[0]["lr"] for loop in [alone, *loops]}
    assert len(rates) == 1
    assert rates.pop() < 0.01
