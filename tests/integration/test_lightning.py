"""A loop with Lightning's `Fabric` on ranks that come, leave and are killed: it ends as it does alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from oakum_worker.errors import SessionError
from regression_loops import ACCUMULATED, EPOCHS, PER_RANK, STEPS_PER_EPOCH, Best, network, spec
from session_ranks import Plan, Rank, Stage, random_stages
from training_ranks import Points

pytestmark = pytest.mark.needs("lightning")


class Record:
    """What the ranks of a trainer told."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.rates: dict[int, float] = {}
        self.validations: list[float] = []
        self.lost = 0


def woven(record: Record, last_epoch: int = EPOCHS) -> Any:
    """A script with an accumulated batch, a LightningModule, a scheduler, clipping, and validation after each
    epoch."""
    import lightning

    from oakum.lightning import Fabric

    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, inputs: torch.Tensor) -> Any:
            return self.network(inputs)

        def training_step(self, batch: Any) -> torch.Tensor:
            return mse_loss(self(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    def script(rank: Rank | None) -> Any:
        fabric = Fabric(accelerator="cpu", accumulated=ACCUMULATED, epochs=EPOCHS, seed=3)
        module = Regression()
        own = module.configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ExponentialLR(own, 0.99)
        best = Best()
        model, optimizer = fabric.setup(module, own)
        loader = fabric.setup_dataloaders(DataLoader(Points(), batch_size=PER_RANK, shuffle=True))
        fabric.keep(scheduler, best)
        assert len(loader) == STEPS_PER_EPOCH
        for epoch in fabric.epochs():
            for batch in loader:
                loss = model.training_step(batch)
                if rank is not None:
                    rank.may_die()
                fabric.backward(loss)
                if fabric.is_accumulating:
                    continue
                fabric.clip_gradients(model, optimizer, max_norm=0.5)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                if not fabric.step_was_taken:
                    record.lost += 1
                    continue
                record.losses[fabric._loop.open.steps] = fabric._loop.open.loss
                record.rates[fabric._loop.open.steps] = scheduler.get_last_lr()[0]
            best.validate(model)
            if epoch + 1 == last_epoch:
                break
        fabric.end()
        record.validations = best.losses
        return [p.detach().clone() for p in module.parameters()]

    return script


def test_a_woven_loop_ends_alike_through_random_disturbances() -> None:
    expected, found = Record(), Record()
    weights = woven(expected)(None)
    stages = random_stages(20, seed=5)
    results = Plan(stages, spec(), woven(found)).run()
    assert found.lost >= 6
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
    weights = woven(expected)(None)
    stages = [Stage(("a", "b", "c"), step, loser="b"), Stage(("c", "b"), 4, loser="c"), Stage(("b", "c"))]
    results = Plan(stages, spec(), woven(found)).run()
    assert found.lost == 2
    assert found.losses == pytest.approx(expected.losses, rel=1e-9)
    assert found.rates == pytest.approx(expected.rates, rel=1e-12)
    assert found.validations == pytest.approx(expected.validations, rel=1e-9)
    for name in ("b", "c"):
        for one, other in zip(results[name], weights, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_loop_that_is_left_early_ends_training_on_all_ranks() -> None:
    expected, found = Record(), Record()
    woven(expected, last_epoch=2)(None)
    Plan([Stage(("a", "b"), 4), Stage(("b", "c"))], spec(), woven(found, last_epoch=2)).run()
    assert max(found.losses) == 2 * STEPS_PER_EPOCH
    assert found.validations == pytest.approx(expected.validations, rel=1e-9)


def test_a_step_in_the_middle_of_a_share_is_refused() -> None:
    from oakum.lightning import Fabric

    fabric = Fabric(accelerator="cpu", accumulated=2, epochs=1)
    net = nn.Linear(5, 2).double()
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    loader, whole = fabric.setup_dataloaders(
        DataLoader(Points(), batch_size=4, shuffle=True), DataLoader(Points(), batch_size=4)
    )
    assert sum(len(inputs) for inputs, _ in whole) == len(Points())
    epochs = fabric.epochs()
    next(epochs)
    inputs, targets = next(iter(loader))
    assert len(inputs) == 4
    fabric.backward(mse_loss(model(inputs), targets))
    with pytest.raises(SessionError, match="before the last part"):
        optimizer.step()
    epochs.close()  # type: ignore[attr-defined]  # as the interpreter does


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "ddp", "devices": 2}, "DDPStrategy: a rank has one device"),
        ({"precision": "16-mixed"}, "use 'bf16-mixed'"),
    ],
)
def test_what_cannot_be_kept_is_refused(options: Any, message: str) -> None:
    from oakum.lightning import Fabric

    with pytest.raises(SessionError, match=message):
        Fabric(accelerator="cpu", **options)
