"""Loops with Accelerate and Fabric train alone as the library does by itself, in the same order of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Sampler

from adapters import (
    ACCELERATE,
    ACCUMULATED,
    FABRIC,
    PER_RANK,
    SEED,
    STEPS_PER_EPOCH,
    Told,
    Training,
    falling,
    network,
    regression,
    weights_of,
)
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.sampler import ElasticSampler
from training_ranks import NUM_SAMPLES, Points

EPOCHS = 3


class Order(Sampler[int]):
    """The order in which Oakum reads, epoch after epoch."""

    epoch = 0

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __iter__(self) -> Any:
        sampler = ElasticSampler(NUM_SAMPLES, NUM_SAMPLES, SEED)
        indices = sampler.indices(Cursor(epoch=self.epoch), range(NUM_SAMPLES))
        self.epoch += 1
        return iter(indices)


def in_order() -> DataLoader[Any]:
    return DataLoader(Points(), batch_size=PER_RANK, sampler=Order())


def agree(weights: list[torch.Tensor], rates: list[float], found: Told, expected: list[torch.Tensor]) -> None:
    assert found.ends == [EPOCHS * STEPS_PER_EPOCH]
    assert list(found.rates.values()) == pytest.approx(rates, rel=1e-12)
    for one, other in zip(weights, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.needs("hugging-face")
@pytest.mark.usefixtures("states_of_threads")
def test_accelerate_accumulates_clips_and_schedules_alone_as_the_library_does(tmp_path: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    own, rates = network(), []
    optimizer = torch.optim.AdamW(own.parameters(), lr=0.01)
    model, optimizer, loader, scheduler = accelerator.prepare(own, optimizer, in_order(), falling(optimizer))
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(mse_loss(model(inputs), targets))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                rates.append(float(scheduler.get_last_lr()[0]))
    accelerator.end_training()
    found = Told()
    weights = ACCELERATE.script(Training(epochs=EPOCHS), found, tmp_path)(None)
    agree(weights, rates, found, weights_of(own))


@pytest.mark.needs("lightning")
def test_fabric_clips_and_schedules_alone_as_the_library_does(tmp_path: Path) -> None:
    """The library accumulates nothing by itself: its users divide the loss, which the adapter does for them."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu")
    module, rates = regression(), []
    own = torch.optim.AdamW(module.parameters(), lr=0.01)
    scheduler = falling(own)
    model, optimizer = fabric.setup(module, own)
    loader = fabric.setup_dataloaders(in_order(), use_distributed_sampler=False)
    for _ in range(EPOCHS):
        for number, batch in enumerate(loader):
            first = number - number % ACCUMULATED
            accumulated = min(ACCUMULATED, len(loader) - first)
            fabric.backward(model.training_step(batch, number) / accumulated)
            if number + 1 < first + accumulated:
                continue
            fabric.clip_gradients(model, optimizer, max_norm=0.5)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            rates.append(float(scheduler.get_last_lr()[0]))
    found = Told()
    weights = FABRIC.script(Training(epochs=EPOCHS), found, tmp_path)(None)
    agree(weights, rates, found, weights_of(module))
