"""Generators that belong to samples: the same numbers whatever else a process reads or computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

from cells import each
from oakum_worker.errors import TaskError
from oakum_worker.generators import batch_generators, batch_rngs, sample_generator, sample_rng
from oakum_worker.rehearsal import rehearse
from oakum_worker.step.reading import SampleReader
from oakum_worker.step.training_loop import TrainingLoop
from training_ranks import Points, build_spec, build_task, mean_squared_error, step_together

STEPS = 9


def shake(inputs: torch.Tensor) -> torch.Tensor:
    """By both kinds, one of them asked for twice."""
    noise = torch.randn(5, generator=sample_generator(), dtype=torch.float64)
    more = sample_rng().normal(size=5) + 2 * sample_rng().normal(size=5)
    return inputs + 0.3 * noise + 0.3 * torch.from_numpy(more)


class Shaken(Points):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = super().__getitem__(index)
        return shake(inputs), targets


class ShakenByItsOwn(Points):
    """Shakes points by a generator of its own, as scripts often do: what it draws depends on what was read
    before."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(1)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = super().__getitem__(index)
        return inputs + 0.3 * torch.from_numpy(self.rng.normal(size=5)), targets


class ShakenStream:
    """A stream of the points in order, each shaken by `shake`."""

    def __init__(self) -> None:
        self._points = Points()

    def __len__(self) -> int:
        return len(self._points)

    def samples(self, epoch: int, start: int) -> Iterator[Any]:
        for number in range(start, len(self)):
            inputs, targets = self._points[number]
            yield shake(inputs), targets


class ShakenAtOnce(Shaken):
    """Reads many samples at once, where nothing says which of them draws."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[index] for index in indices]


DATA_SETS = [Shaken, ShakenStream, ShakenAtOnce]


def loops_of(dataset: Any, number: int, loss: Any = mean_squared_error, **spec: Any) -> list[TrainingLoop]:
    return [TrainingLoop(build_task(dataset=dataset(), loss=loss), build_spec(**spec)) for _ in range(number)]


def losses_alone(dataset: Any, loss: Any = mean_squared_error, **spec: Any) -> list[float]:
    loop = loops_of(dataset, 1, loss, **spec)[0]
    return [loop.step().loss for _ in range(STEPS)]


@each("dataset", DATA_SETS)
def test_the_losses_are_those_of_one_process(dataset: Any) -> None:
    expected = pytest.approx(losses_alone(dataset), rel=1e-12)
    assert losses_alone(dataset) == expected
    assert losses_alone(dataset, micro_batch=3) == expected
    assert step_together(loops_of(dataset, 2), STEPS) == expected
    assert step_together(loops_of(dataset, 3, micro_batch=1), STEPS) == expected
    assert losses_alone(Points) != pytest.approx(losses_alone(dataset), rel=1e-2)


def test_a_generator_that_the_data_set_keeps_is_another_training_and_is_told_of_these() -> None:
    assert losses_alone(ShakenByItsOwn) != pytest.approx(
        losses_alone(ShakenByItsOwn, micro_batch=3), rel=1e-2
    ) or (
        step_together(loops_of(ShakenByItsOwn, 2), STEPS) != pytest.approx(losses_alone(ShakenByItsOwn), rel=1e-2)
    )
    with pytest.raises(TaskError, match=r"oakum_worker\.generators\.sample_rng"):
        rehearse(build_task(dataset=ShakenByItsOwn()), build_spec(max_nodes=2), budget_s=60)


@each("dataset", DATA_SETS)
def test_a_rehearsal_has_nothing_against_them(dataset: Any) -> None:
    assert rehearse(build_task(dataset=dataset()), build_spec(max_nodes=2), budget_s=60) == ()


def test_each_epoch_and_each_sample_has_numbers_of_its_own() -> None:
    reader = SampleReader(build_task(dataset=Shaken()), 3)
    plain = Points()
    noises = {
        (epoch, index): reader.read(epoch, 0, [index])[0][0] - plain.inputs[index]
        for epoch in (0, 1)
        for index in (4, 5)
    }
    assert len({tuple(noise.tolist()) for noise in noises.values()}) == 4
    [(again, _), (other, _)] = reader.read(1, 7, [5, 4])
    assert torch.equal(again - plain.inputs[5], noises[1, 5])
    assert torch.equal(other - plain.inputs[4], noises[1, 4])


def test_a_data_set_that_reads_only_many_samples_at_once_is_refused() -> None:
    class AtOnce:
        def __len__(self) -> int:
            return 8

        def __getitems__(self, indices: Sequence[int]) -> list[float]:
            return [sample_rng().random() for _ in indices]

    reader = SampleReader(build_task(dataset=AtOnce()), 3)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="give it a __getitem__"):
        reader.read(0, 0, [0, 1])


def blended(samples: list[Any]) -> Any:
    """Each sample with noise of NumPy's and of torch's."""
    rngs, generators = batch_rngs(len(samples)), batch_generators(len(samples))
    inputs = [
        inputs + 0.3 * torch.from_numpy(rng.normal(size=5)) + 0.1 * torch.randn(5, generator=generator).double()
        for (inputs, _), rng, generator in zip(samples, rngs, generators, strict=True)
    ]
    return torch.stack(inputs), torch.stack([targets for _, targets in samples])


def noise_like(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.from_numpy(rng.normal(size=values.shape[1:])) for rng in batch_rngs(len(values))])


def noisy_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Twice other noise, and what is recomputed draws the same again."""
    inputs, targets = batch
    first = checkpoint(lambda values: model(values + 0.3 * noise_like(values)), inputs, use_reentrant=False)
    return mse_loss(first + 0.1 * noise_like(first), targets)


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_batches_and_losses_draw_the_same_whatever_is_computed_at_once(micro_batch: int) -> None:
    losses = []
    for spec in ({}, {"micro_batch": micro_batch}):
        task = build_task(loss=noisy_loss)
        task.collate = blended
        loop = TrainingLoop(task, build_spec(**spec))
        losses.append([loop.step().loss for _ in range(STEPS)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    assert losses[0] != pytest.approx(losses_alone(Points), rel=1e-2)
    assert rehearse(task, build_spec(max_nodes=2), budget_s=60) == ()


def test_what_is_recomputed_has_the_gradient_of_what_was_computed() -> None:
    def plain_loss(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        return mse_loss(model(inputs + 0.3 * noise_like(inputs)), targets)

    def recomputed_loss(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        noisy = checkpoint(lambda values: model(values + 0.3 * noise_like(values)), inputs, use_reentrant=False)
        return mse_loss(noisy, targets)

    assert losses_alone(Points, recomputed_loss) == losses_alone(Points, plain_loss)


def test_numpys_own_global_draws_in_the_forward_pass_are_told_of_these() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        return mse_loss(model(inputs + torch.from_numpy(np.random.normal(size=inputs.shape))), targets)

    with pytest.raises(TaskError, match=r"oakum_worker\.generators\.batch_rngs"):
        rehearse(build_task(loss=loss), build_spec(max_nodes=2), budget_s=60)


def test_another_number_of_samples_is_refused() -> None:
    loop = loops_of(Points, 1, lambda model, batch: len(batch_rngs(5)) * model(batch[0]).mean())[0]
    with pytest.raises(TaskError, match="asked for 5 samples, and 8 are computed at once: ask for one for each"):
        loop.step()


def test_elsewhere_they_follow_from_torchs_generator() -> None:
    drawn = []
    for _ in range(2):
        torch.manual_seed(4)
        drawn.append((sample_rng().random(), sample_rng().random(), batch_rngs(2)[1].random()))
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3
