"""What a script changes from step to step and nobody saves is told after its first step."""

from __future__ import annotations

import itertools
import time
import warnings
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

import oakum
from cells import each
from oakum_worker.errors import TrainingWarning
from training_ranks import Points

BATCH = 12


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 2)).double()


def mean(session: Any, batch: Any, model: nn.Module) -> None:
    session.backward(mse_loss(model(batch[0]), batch[1]))


class Average:
    """A moving average of weights, as found in many repositories: nothing saves it."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.updates = 0

    def update(self, model: nn.Module) -> None:
        self.updates += 1
        for name, p in model.named_parameters():
            self.shadow[name].lerp_(p.detach(), 0.1)


class Annealing:
    """A weight that falls with each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> float:
        self.calls += 1
        return 1 / self.calls


def warnings_of_a_loop(*, kept: bool) -> list[str]:
    """Train with state in the loop's variables, some of it handed over as `state` if `kept`. Returns the texts of
    the warnings."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    swa = torch.optim.swa_utils.AveragedModel(model)
    average, generator, prior = Average(model), torch.Generator(), torch.zeros(2)
    taken, loss_sum, losses, best = 0, 0.0, [], None
    fixed, constants = torch.ones(3), {"width": 16}
    state = [schedule, swa] if kept else []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with oakum.session(model, optimizer, Points(), batch_size=BATCH, state=state) as session:
            for batch in session:
                mean(session, batch, model)
                session.step()
                schedule.step()
                swa.update_parameters(model)
                loss_sum += session.loss
                losses.append(session.loss)
                if not kept:
                    best = min(losses) if constants and fixed is not None else best
                    taken += 1
                    average.update(model)
                    prior = 0.9 * prior + 0.1
                    torch.rand(1, generator=generator)
    return [str(one.message) for one in caught if issubclass(one.category, TrainingWarning)]


def told_of_a_counter() -> None:
    model, count = network(), 0
    with oakum.session(model, torch.optim.SGD(model.parameters(), lr=0.1), Points(), batch_size=BATCH) as session:
        for batch in session:
            mean(session, batch, model)
            session.step()
            count += 1


def test_state_that_nobody_saves_is_told_of_by_name_after_the_first_step() -> None:
    [told] = warnings_of_a_loop(kept=False)
    named = told.partition(" changed in the first step")[0]
    assert named == "`schedule`, `swa`, `average`, `generator`, `prior`, `taken`, `best`"
    assert "handed over as state" in told


def test_it_is_told_of_however_it_is_kept() -> None:
    """Numbers with a fraction, counters under a name or in an object that is called, the number that
    enumerate() counts, and a second loader; not sums of losses, times and what is logged."""
    model, annealing, counted = network(), Annealing(), {"steps": 0}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    others = iter(torch.utils.data.DataLoader(Points(), batch_size=2))
    beta, best, total, at_s, logged = 0.1, float("inf"), 0.0, time.time(), [0]
    session = oakum.session(model, optimizer, Points(), batch_size=BATCH)
    with warnings.catch_warnings(record=True) as caught, session:
        warnings.simplefilter("always")
        for number, batch in enumerate(session):
            next(others)
            mean(session, batch, model)
            session.step()
            beta, best, at_s = beta + 0.1 * annealing(), min(best, session.loss), time.time()
            total += session.loss
            logged.append(number)
            counted["steps"] += at_s > 0
    [told] = [str(one.message) for one in caught if "nothing saves it" in str(one.message)]
    named = told.partition(" changed in the first step")[0]
    assert named.startswith("the number that enumerate() counts, for which there is session.steps, ")
    for name in ("annealing", "counted", "others", "beta", "best"):
        assert f"`{name}`" in told
    for name in ("total", "at_s", "logged"):
        assert f"`{name}`" not in named


def test_it_is_not_told_of_where_it_is_handed_over() -> None:
    assert warnings_of_a_loop(kept=True) == []


class Penalty(nn.Module):
    """A criterion that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, predicted: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return 0.01 * self.calls * predicted.square().mean()


class Settings:
    temperature = 3.0


class Levels(Points):
    """A data set whose noise a curriculum raises."""

    level = 0.1


class Counting(torch.optim.SGD):
    """An optimizer that counts its steps without saving it."""

    calls = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        self.calls += 1


def cooling() -> Any:
    """A function that keeps what it has come to in a variable around it."""
    heat = 1.0

    def now() -> float:
        nonlocal heat
        heat *= 0.9
        return heat

    return now


def told_of_a_loop(change: Any, kept: dict[str, Any], steps: int = 1) -> list[str]:
    """What is told of a loop that calls `change(kept, loss)` after each step, with `kept` in its variables."""
    model, dataset = network(), kept.get("dataset", Points())
    optimizer = kept.get("kind", torch.optim.SGD)(model.parameters(), lr=0.1)
    held, criterion, heat, settings = (
        kept.get("held"),
        kept.get("criterion"),
        kept.get("heat"),
        kept.get("settings"),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with oakum.session(model, optimizer, dataset, batch_size=2) as session:
            for inputs, targets in session:
                predicted = model(inputs)
                loss = mse_loss(predicted, targets)
                session.backward(loss if criterion is None else loss + criterion(predicted))
                session.step()
                held = change(held, session.loss)
                if heat is not None and settings is not None:
                    heat()
                if session.steps == steps:
                    break
    return [str(one.message) for one in caught if "nothing saves it" in str(one.message)]


def kept_as(held: Any, loss: float) -> Any:
    return held


def lowered(_: Any, loss: float) -> None:
    Settings.temperature *= 0.9


HELD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "nothing before the first step": (lambda held, loss: 0.5 * loss, {}, "`held`"),
    "a queue that was empty": (lambda held, _: held.append(torch.ones(4)) or held, {"held": deque()}, "`held`"),
    "a number in a dictionary": (lambda held, _: {"ema": 0.9 * held["ema"]}, {"held": {"ema": 1.0}}, "`held`"),
    "an array": (lambda held, _: held.__imul__(0.9), {"held": np.ones(3)}, "`held`"),
    "a flag": (lambda *_: True, {"held": False}, "`held`"),
    "a number of a criterion": (kept_as, {"criterion": Penalty()}, "`criterion`"),
    "a variable around a function": (kept_as, {"heat": cooling(), "settings": Settings}, "`heat`"),
    "a number of a class": (lowered, {"settings": Settings}, "`settings`"),
    "an iterator": (lambda held, _: next(held) and held, {"held": iter(range(1, 99))}, "`held`"),
    "a cycle": (lambda held, _: next(held) and held, {"held": itertools.cycle(map(abs, [1, 2]))}, "`held`"),
    "a number of an optimizer": (kept_as, {"kind": Counting}, "the optimizer Counting's `calls`"),
}


@each("name", HELD)
def test_it_is_told_of_in_whatever_it_is_kept(name: str) -> None:
    change, kept, told = HELD[name]
    assert told in " ".join(told_of_a_loop(change, kept))


@each("view", [lambda whole: whole, lambda whole: torch.utils.data.Subset(whole, range(10))])
def test_a_number_of_the_data_set_is_told_of(view: Any) -> None:
    dataset = Levels()

    def raised(held: Any, loss: float) -> Any:
        dataset.level *= 1.3

    assert "the data set's `level`" in " ".join(told_of_a_loop(raised, {"dataset": view(dataset)}))


def test_what_changes_in_a_later_step_is_told_of_once_then() -> None:
    calls = iter([7, 7, 8, 8, 9])
    [told] = told_of_a_loop(lambda *_: next(calls), {"held": 7}, steps=5)
    assert "`held` changed in the first 3 steps" in told


@each("held", [0.0, 1.0])
def test_losses_their_sums_and_means_are_what_a_loop_logs(held: float) -> None:
    losses: list[float] = []

    def logged(held: Any, loss: float) -> Any:
        losses.append(loss)
        numbers = {"last": loss, "sum": held["sum"] + loss, "mean": sum(losses) / len(losses), "all": losses}
        return numbers | {"at_s": time.time()}

    begun = {"last": held, "sum": held, "mean": held, "all": [], "at_s": time.time()}
    assert not told_of_a_loop(logged, {"held": begun}, steps=5)


def test_when_something_was_is_no_state() -> None:
    assert not told_of_a_loop(lambda held, _: held or time.perf_counter(), {})


def test_what_a_loop_zips_with_its_batches_is_told_of() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with oakum.session(model, optimizer, Points(), batch_size=BATCH) as session:
            for _, batch in zip(itertools.count(), session, strict=False):
                mean(session, batch, model)
                session.step()
    assert any("what zip() gives beside the batches" in str(one.message) for one in caught)


def test_the_number_of_the_epoch_is_given_and_no_state() -> None:
    model, epoch = network(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with oakum.session(model, optimizer, Points(), batch_size=BATCH, epochs=3) as session:
            for batch in session:
                epoch = session.epoch
                mean(session, batch, model)
                session.step()
    assert epoch == 2
    assert not [one for one in caught if "nothing saves it" in str(one.message)]


@each("category", [Warning, UserWarning])
def test_it_is_told_of_where_a_script_silences_all_warnings(category: type[Warning]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore", category)
        told_of_a_counter()
    assert any("`count` changed" in str(one.message) for one in caught)


def test_who_silences_what_training_tells_is_told_nothing() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore", TrainingWarning)
        told_of_a_counter()
    assert not caught


def test_what_each_iteration_makes_anew_is_no_state_although_a_loop_before_has_left_one() -> None:
    shown: list[str] = []
    for _ in range(2):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TrainingWarning)
            with oakum.session(model, optimizer, Points(), batch_size=BATCH) as session:
                for inputs, targets in session:
                    loss = mse_loss(model(inputs), targets)
                    session.backward(loss)
                    session.step()
                    latest = loss.detach()
                    if session.steps > 1:
                        seen = latest
        shown += [str(one.message) for one in caught]
    assert any("`seen`" in text for text in shown), seen
    assert not any(f"`{name}`" in text for name in ("inputs", "targets", "loss", "latest") for text in shown)
