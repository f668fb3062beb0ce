"""A script is rehearsed in its own loop where no process can be copied, as where a GPU is in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import oakum
from cells import each
from oakum_worker.errors import SessionError
from oakum_worker.randomness import keyed
from oakum_worker.randomness.batch_dims import BatchDims
from oakum_worker.rehearsal import script
from oakum_worker.rehearsal.script import ScriptRehearsal
from oakum_worker.task import Task

CLASSES, BATCH, DEVICE = 3, 48, "cuda" if torch.cuda.is_available() else "cpu"

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "can_fork", lambda: False)
    monkeypatch.setattr(keyed, "_warned", set())


def points(seed: int = 0) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    classes = torch.randint(CLASSES, (2 * BATCH,), generator=draw)
    return TensorDataset(torch.randn(2 * BATCH, 16, generator=draw), classes)


def train_in_half_precision(loss: Loss, seed: int = 0, weights: torch.dtype = torch.float32) -> int:
    """Train with autocast to bfloat16. Returns the number of steps."""
    torch.manual_seed(seed)
    layers = nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, CLASSES)
    model = nn.Sequential(*layers).to(DEVICE, weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with oakum.session(model, optimizer, points(seed), batch_size=BATCH, seed=seed) as session:
        for vectors, classes in session:
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                computed = loss(model(vectors.to(DEVICE)), classes.to(DEVICE))
            session.backward(computed)
            session.step()
        return session.steps


def by_class(predicted: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(predicted, classes, weight=torch.tensor([1.0, 1.5, 2.0], device=DEVICE))


def among_half(predicted: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    each_loss, mask = F.cross_entropy(predicted, classes, reduction="none"), classes != 1
    return (each_loss * mask).sum() / mask.sum()


@each("weights", [torch.float32, torch.bfloat16], ids=str)
@each("loss", [by_class, among_half], ids=["weights of classes", "mask"])
def test_a_mean_over_other_items_is_refused_although_each_gradient_agrees_within_rounding(
    loss: Loss, weights: torch.dtype
) -> None:
    with pytest.raises(SessionError, match="no mean over samples"):
        train_in_half_precision(loss, weights=weights)


def test_rounding_in_half_precision_is_no_fault() -> None:
    for seed in range(10):
        weights = torch.bfloat16 if seed % 2 else torch.float32
        assert train_in_half_precision(F.cross_entropy, seed, weights) == 2


def rehearsal(num_ranks: int) -> ScriptRehearsal:
    model = nn.Linear(16, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    task = Task(model=model, dataset=points(), loss=_no_loss, optimizer=optimizer)
    return ScriptRehearsal(
        task, 0, num_samples=BATCH, num_ranks=num_ranks, how_to_weigh="", batch_dims=BatchDims()
    )


def _no_loss(*_: Any) -> torch.Tensor:
    raise AssertionError


def test_no_more_samples_are_computed_than_a_rank_has_memory_for() -> None:
    assert rehearsal(num_ranks=1).next_samples() == range(BATCH)
    assert rehearsal(num_ranks=4).next_samples() == range(BATCH // 4)


def test_a_rank_of_one_sample_tells_that_it_has_not_rehearsed() -> None:
    made = rehearsal(num_ranks=BATCH)
    assert made.next_samples() is None
    assert "a rank has one sample of a batch" in (made.obstacle or "")
