"""A loop with an `Accelerator` on ranks that come, leave and are killed: it ends as it does alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from oakum_worker.errors import SessionError
from oakum_worker.session.hosts import RankHost
from oakum_worker.session.scripts import run_script
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.step.turns import turns_alone
from regression_loops import ACCUMULATED, EPOCHS, PER_RANK, STEPS_PER_EPOCH, Best, network, spec
from session_ranks import Plan, Rank, Stage, random_stages
from training_ranks import Points

pytestmark = [pytest.mark.needs("hugging-face"), pytest.mark.usefixtures("states_of_threads")]


BREAKS = """
import torch
from torch.nn.functional import mse_loss
from oakum.accelerate import Accelerator
from training_ranks import Points

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(5, 2).double()
loader = torch.utils.data.DataLoader(Points(), batch_size=9, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for epoch in accelerator.epochs():
    for inputs, targets in loader:
        accelerator.backward(mse_loss(model(inputs), targets))
        optimizer.step()
    if epoch == 1:
        break
"""


class Record:
    """What the ranks of a trainer told."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.rates: dict[int, float] = {}
        self.validations: list[float] = []
        self.skipped = 0


def accelerated(record: Record, last_epoch: int = EPOCHS) -> Any:
    """A script with an accumulated batch, a scheduler, clipping, and validation after each epoch."""
    from oakum.accelerate import Accelerator

    def script(rank: Rank | None) -> Any:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED, epochs=EPOCHS, seed=3)
        model: Any = network()
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler: Any = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        best = Best()
        loader: Any = DataLoader(Points(), batch_size=PER_RANK, shuffle=True)
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        accelerator.register_for_checkpointing(best)
        assert len(loader) == STEPS_PER_EPOCH
        for epoch in accelerator.epochs():
            for inputs, targets in loader:
                with accelerator.accumulate(model):
                    loss = mse_loss(model(inputs), targets)
                    if rank is not None:
                        rank.may_die()
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                if not accelerator.sync_gradients:
                    continue
                if accelerator.optimizer_step_was_skipped:
                    record.skipped += 1
                    continue
                record.losses[accelerator._loop.open.steps] = accelerator._loop.open.loss
                record.rates[accelerator._loop.open.steps] = scheduler.get_last_lr()[0]
            best.validate(model)
            if epoch + 1 == last_epoch:
                break
        accelerator.end_training()
        record.validations = best.losses
        return [p.detach().clone() for p in model.parameters()]

    return script


def test_an_accelerated_loop_ends_alike_through_random_disturbances() -> None:
    expected, found = Record(), Record()
    weights = accelerated(expected)(None)
    stages = random_stages(20, seed=5)
    results = Plan(stages, spec(), accelerated(found)).run()
    assert found.skipped >= 6
    assert len(expected.losses) == EPOCHS * STEPS_PER_EPOCH
    assert found.losses == pytest.approx(expected.losses, rel=1e-9)
    assert found.rates == pytest.approx(expected.rates, rel=1e-12)
    assert len(expected.validations) == EPOCHS
    assert found.validations == pytest.approx(expected.validations, rel=1e-9)
    for name in stages[-1].members:
        for one, other in zip(results[name], weights, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(2, id="inner", marks=pytest.mark.soak),
        pytest.param(STEPS_PER_EPOCH - 1, id="last", marks=pytest.mark.soak),
        pytest.param(STEPS_PER_EPOCH, id="first"),
    ],
)
def test_a_step_that_one_rank_alone_loses_is_not_taken_twice(step: int) -> None:
    """The others have taken it, at the end of an epoch with what follows there, and the rank goes on with them."""
    expected, found = Record(), Record()
    weights = accelerated(expected)(None)
    stages = [Stage(("a", "b", "c"), step, loser="b"), Stage(("c", "b"), 4, loser="c"), Stage(("b", "c"))]
    results = Plan(stages, spec(), accelerated(found)).run()
    assert found.skipped == 2
    assert found.losses == pytest.approx(expected.losses, rel=1e-9)
    assert found.rates == pytest.approx(expected.rates, rel=1e-12)
    assert found.validations == pytest.approx(expected.validations, rel=1e-9)
    for name in ("b", "c"):
        for one, other in zip(results[name], weights, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_loop_that_is_left_early_ends_training_on_all_ranks() -> None:
    expected, found = Record(), Record()
    accelerated(expected, last_epoch=2)(None)
    Plan([Stage(("a", "b"), 4), Stage(("b", "c"))], spec(), accelerated(found, last_epoch=2)).run()
    assert max(found.losses) == 2 * STEPS_PER_EPOCH
    assert found.validations == pytest.approx(expected.validations, rel=1e-9)


def _prepared(**changes: Any) -> Any:
    from oakum.accelerate import Accelerator

    accelerator = Accelerator(cpu=True, epochs=1)
    model = nn.Linear(5, 2).double()
    loader = DataLoader(Points(), **({"batch_size": 8, "shuffle": True} | changes))
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)


def test_an_epoch_may_not_be_left_in_its_middle() -> None:
    accelerator, model, optimizer, loader = _prepared()
    epochs = accelerator.epochs()
    assert next(epochs) == 0
    inputs, targets = next(iter(loader))
    accelerator.backward(mse_loss(model(inputs), targets))
    optimizer.step()
    with pytest.raises(SessionError, match="left in the middle of epoch 0"):
        next(epochs)


def test_a_script_that_leaves_its_loop_ends_training_when_it_ends(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(BREAKS, encoding="utf-8")
    left: list[TrainingLoop] = []

    def begin(loop: TrainingLoop) -> Any:
        left.append(loop)
        return turns_alone(loop)

    run_script(spec(workdir=str(tmp_path)), RankHost(spec(), begin, lambda: None))
    assert left[0].finished
    assert left[0].epoch == 2


def test_what_cannot_be_kept_is_refused() -> None:
    from oakum.accelerate import Accelerator

    accelerator, model, _, loader = _prepared()
    for call in (accelerator.save_state, accelerator.load_state):
        with pytest.raises(SessionError, match="leave the call out"):
            call("folder")
    with pytest.raises(SessionError, match="training has not begun"):
        next(iter(loader))
    with pytest.raises(SessionError, match="a second optimizer"):
        accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(SessionError, match="drop_last"):
        _prepared(drop_last=True)
    with pytest.raises(SessionError, match="no data loader that shuffles"):
        next(_prepared(shuffle=False)[0].epochs())
    with pytest.raises(SessionError, match="no model or no optimizer"):
        next(Accelerator(cpu=True, epochs=1).epochs())
