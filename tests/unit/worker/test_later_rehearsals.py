"""What shows after some steps only is found by a rehearsal before one of the later steps."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import oakum
from cells import each
from oakum_worker.errors import SessionError, TrainingWarning
from rank_processes import in_a_fresh_process
from training_ranks import Points

BATCH = 2
Loss = Callable[[torch.Tensor, int], torch.Tensor]
"""What is added to the loss: of the predictions, after so many steps."""


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def train(added: Loss, model: nn.Module, taken: list[int], **options: Any) -> None:
    """A loop that notes how many steps it has `taken`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with oakum.session(model, optimizer, Points(), batch_size=BATCH, **options) as session:
        for inputs, targets in session:
            predicted = model(inputs)
            session.backward(mse_loss(predicted, targets) + added(predicted, session.steps))
            session.step()
            taken[:] = [session.steps]


def steps_until_refused(added: Loss, model: nn.Module) -> int:
    taken: list[int] = []
    with pytest.raises(SessionError, match="no mean over samples"):
        train(added, model, taken)
    return taken[0]


def steps_of(added: Loss, model: nn.Module, **options: Any) -> int:
    taken: list[int] = []
    train(added, model, taken, **options)
    return taken[0]


def faded_in(predicted: torch.Tensor, steps: int) -> torch.Tensor:
    """A term of the whole batch that is nothing at first."""
    return min(1.0, steps / 100) * predicted.mean(0).square().sum()


def faded_in_by_sample(predicted: torch.Tensor, steps: int) -> torch.Tensor:
    return min(1.0, steps / 100) * predicted.square().mean()


def nothing(predicted: torch.Tensor, steps: int) -> torch.Tensor:
    return predicted.new_zeros(())


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2)).double()


def test_a_term_of_the_batch_that_is_faded_in_is_refused_once_it_counts() -> None:
    assert in_a_fresh_process(steps_until_refused, faded_in, network()) == 1


def every_other(predicted: torch.Tensor, steps: int) -> torch.Tensor:
    return predicted.mean() ** 2 if steps % 2 else predicted.new_zeros(())


def every_fifth(predicted: torch.Tensor, steps: int) -> torch.Tensor:
    return predicted.mean() ** 2 if steps % 5 == 4 else predicted.new_zeros(())


@each(("term", "refused_after"), [(every_other, 1), (every_fifth, 4)])
def test_a_term_of_the_batch_that_comes_every_few_steps_is_refused_when_it_comes_first(
    term: Loss, refused_after: int
) -> None:
    assert in_a_fresh_process(steps_until_refused, term, network()) == refused_after


def test_a_term_of_samples_that_is_faded_in_trains() -> None:
    assert in_a_fresh_process(steps_of, faded_in_by_sample, network()) > 8


def steps_until_clipping_is_refused() -> int:
    model = network()
    calls = 0

    def clip(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return gradient.clamp(-1e-3, 1e-3) if calls > 7 else gradient

    model[0].weight.register_hook(clip)  # type: ignore[index, operator]
    return steps_until_refused(nothing, model)


def test_gradients_that_grow_into_being_clipped_by_a_hook_are_refused() -> None:
    assert in_a_fresh_process(steps_until_clipping_is_refused) == 8


def test_who_says_that_it_need_not_be_exact_is_not_rehearsed_again() -> None:
    assert steps_of(faded_in, network(), exact=False) > 8


def told_of_numbers(are_used: bool) -> list[str]:
    """What is told of a loop that keeps numbers, and that divides by them if `are_used`."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, last, means = [1.0], 1.0, {"all": [1.0], "mean": 1.0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with oakum.session(model, optimizer, Points(), batch_size=BATCH) as session:
            for inputs, targets in session:
                scale = losses[-1] + last + sum(means["all"]) if are_used else 1.0  # type: ignore[arg-type]
                session.backward(mse_loss(model(inputs), targets) / scale)
                if session.step():
                    losses.append(session.loss)
                    last = session.loss
                    means["all"].append(session.loss)  # type: ignore[attr-defined]
                    means["mean"] = sum(losses[1:]) / session.steps
    return [str(one.message) for one in caught if issubclass(one.category, TrainingWarning)]


def test_numbers_that_are_logged_and_used_are_told_of() -> None:
    [told] = in_a_fresh_process(told_of_numbers, True)
    assert "depends on numbers in `losses`, `last`, `means`" in told


def test_numbers_that_are_logged_alone_are_not() -> None:
    assert in_a_fresh_process(told_of_numbers, False) == []
