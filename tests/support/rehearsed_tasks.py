"""Tasks as people write them, each with its usual mistake and, on demand, as it should be."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, TensorDataset

from oakum_worker.task import Task

_WORDS = 50


class Sentences(Dataset[torch.Tensor]):
    """200 rows of 4 to 20 words."""

    def __init__(self) -> None:
        draws = torch.Generator().manual_seed(3)
        lengths = torch.randint(4, 21, (200,), generator=draws).tolist()
        self.rows = [torch.randint(1, _WORDS, (length,), generator=draws) for length in lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


class LanguageModel(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, 16, padding_idx=0)
        self.drop = nn.Dropout(dropout)
        self.recurrent = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, _WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.drop(self.embedding(words)))
        return self.head(F.dropout(hidden, 0.1, self.training))


def padded_language_model(*, per_sample: bool = False, total_over: str = "") -> Task:
    """The mean over a padded batch's tokens, or over samples of each one's mean; or a total and its weight,
    the tokens, or by mistake the words with their padding."""
    model = LanguageModel()

    def loss(model: nn.Module, batch: torch.Tensor) -> Any:
        logits, targets = model(batch[:, :-1]), batch[:, 1:]
        if total_over:
            total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="sum")
            return total, (targets != 0).sum() if total_over == "tokens" else targets.numel()
        if not per_sample:
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)
        each = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=0, reduction="none").sum(1)
        return (each / (targets != 0).sum(1)).mean()

    return Task(
        model=model,
        dataset=Sentences(),
        loss=loss,
        collate=lambda rows: pad_sequence(rows, batch_first=True),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    )


def _pictures(num_classes: int = 4) -> TensorDataset:
    draws = torch.Generator().manual_seed(5)
    pictures = torch.randn(96, 1, 8, 8, generator=draws)
    return TensorDataset(pictures, torch.randint(0, num_classes, (96,), generator=draws))


def _encoder(*last: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), *last)


def contrastive() -> Task:
    """A task with InfoNCE, which compares each sample with the others of its batch."""
    model = _encoder(nn.Linear(256, 8))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        pictures = batch[0]
        one, other = (F.normalize(model(pictures + noise)) for noise in (0.0, 0.1))
        return F.cross_entropy(one @ other.T / 0.1, torch.arange(len(pictures)))

    return _task(model, loss)


def classifier(loss: Any, model: nn.Module | None = None, dataset: Any = None) -> Task:
    return _task(model or _encoder(nn.Linear(256, 4)), loss, dataset)


def _task(model: nn.Module, loss: Any, dataset: Any = None) -> Task:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Task(model=model, dataset=dataset or _pictures(), loss=loss, optimizer=optimizer)


def cross_entropy_of(reduction: str = "mean", weight: torch.Tensor | None = None) -> Task:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction=reduction, weight=weight)

    return classifier(loss)


def dice(*, per_sample: bool = False) -> Task:
    """Overlap of a predicted mask with bright pixels, over the whole batch or of each sample."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1), nn.Sigmoid())

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        dims = (1, 2, 3) if per_sample else (0, 1, 2, 3)
        predicted, wanted = model(batch[0]), (batch[0] > 0.5).float()
        overlap = (predicted * wanted).sum(dims)
        return (1 - 2 * overlap / (predicted.sum(dims) + wanted.sum(dims))).mean()

    return _task(model, loss)


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 64))
        self.discriminator = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(64, 32)), nn.LeakyReLU(), nn.Linear(32, 1)
        )


def gan_with_two_optimizers() -> Task:
    """The discriminator has an optimizer of its own, which `loss` steps."""
    model = Gan()
    of_discriminator = torch.optim.Adam(model.discriminator.parameters(), lr=1e-3)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        real = batch[0].flatten(1)
        fake = model.generator(torch.randn(len(real), 8))
        told_apart = F.softplus(model.discriminator(fake.detach())) + F.softplus(-model.discriminator(real))
        of_discriminator.zero_grad()
        told_apart.mean().backward()
        of_discriminator.step()
        return F.softplus(-model.discriminator(fake)).mean()

    optimizer = torch.optim.Adam(model.generator.parameters(), lr=1e-3)
    return Task(model=model, dataset=_pictures(), loss=loss, optimizer=optimizer)


def gan_with_one_optimizer() -> Task:
    """Both losses in one sum, the generator's with a discriminator that it does not train."""
    model = Gan()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        real = batch[0].flatten(1)
        fake = model.generator(torch.randn(len(real), 8))
        told_apart = F.softplus(model.discriminator(fake.detach())) + F.softplus(-model.discriminator(real))
        fixed = {name: value.detach() for name, value in model.discriminator.named_parameters()}
        deceived = F.softplus(-torch.func.functional_call(model.discriminator, fixed, fake))
        return told_apart.mean() + deceived.mean()

    groups = [
        {"params": model.generator.parameters(), "lr": 1e-3},
        {"params": model.discriminator.parameters(), "lr": 4e-3},
    ]
    return Task(model=model, dataset=_pictures(), loss=loss, optimizer=torch.optim.Adam(groups))


class Noisy(Dataset[Any]):
    """Adds noise to each picture that it reads, drawn as `kind` says."""

    def __init__(self, kind: str) -> None:
        self.pictures, self.labels = _pictures().tensors
        self.kind = kind
        self.of_torch = torch.Generator().manual_seed(1)
        self.of_numpy = np.random.default_rng(1)
        self.of_python = random.Random(1)
        self.num_read = 0

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Any:
        self.num_read += 1
        noise = {
            "own torch": lambda: torch.rand((), generator=self.of_torch),
            "own numpy": lambda: torch.tensor(self.of_numpy.random(), dtype=torch.float32),
            "own python": lambda: torch.tensor(self.of_python.random()),
            "counter": lambda: torch.tensor(self.num_read / 100),
            "global torch": lambda: torch.rand(()),
            "global numpy": lambda: torch.tensor(np.random.rand(), dtype=torch.float32),
            "global python": lambda: torch.tensor(random.random()),
        }[self.kind]()
        return {"picture": self.pictures[index] + noise, "label": self.labels[index]}


def augmented(kind: str) -> Task:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch["picture"]), batch["label"])

    return classifier(loss, dataset=Noisy(kind))


class Counting(nn.Module):
    """A model of which a part of the loss grows with each call."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.layers, self.where = _encoder(nn.Linear(256, 4)), where
        self.calls = 0
        self.history: list[float] = []
        self.last: torch.Tensor | None = None
        self.register_buffer("mean", torch.zeros(1, 8, 8))
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        if self.where == "attribute":
            self.calls += 1
        if self.where == "list":
            self.history.append(float(pictures.mean()))
        if self.where == "buffer of data":
            self.mean.mul_(0.9).add_(0.1 * pictures.mean(0))
        if self.where == "buffer of passes":
            self.passes += 1
        if self.where == "generator":
            self.noise = getattr(self, "noise", None) or torch.Generator().manual_seed(1)
            pictures = pictures + torch.rand(pictures.shape, generator=self.noise)
        self.last = self.layers(pictures)
        return self.last


def counting(where: str) -> Task:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    return classifier(loss, Counting(where))
