"""Tasks of pipelines of processes. Processes import a task by its module, so the tasks are not in the tests'
own modules."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

from oakum_worker.chain import Chain
from oakum_worker.generators import batch_rngs, sample_rng
from oakum_worker.task import Task
from pipeline_ranks import LENGTH, NUM_WORDS, build_transformer, sentences
from training_ranks import NUM_SAMPLES, Points

WIDTH = 6


class Block(nn.Module):
    """A layer with dropout, normalisation and a buffer that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.2)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return hidden + self.drop(torch.tanh(self.mix(self.norm(hidden))))


class Deep(nn.Module):
    """Eight layers; the first and the last share a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(5, WIDTH, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.out = Readout(self.into)


class Readout(nn.Module):
    """The first layer's matrix again, and one of its own."""

    def __init__(self, tied: nn.Linear) -> None:
        super().__init__()
        self.weight = tied.weight
        self.own = nn.Linear(5, 2)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.own(hidden @ self.weight)


def build_deep_task() -> Task:
    """The deep model with two groups of parameters, a schedule, and an optimizer with a third moment."""
    torch.manual_seed(2)
    model = Deep().double()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 0.02}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, amsgrad=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.05, 0.1], total_steps=100)
    chain = Chain(
        layers=[model.into, *model.blocks, model.out],
        inputs=lambda batch: batch[0],
        loss=lambda output, batch: mse_loss(output, batch[1]),
    )
    return Task(model=model, dataset=Points(), loss=chain, optimizer=optimizer, scheduler=schedule, chain=chain)


def evaluate(model: nn.Module) -> dict[str, float]:
    """Metrics of an evaluation: sums over everything that the model has."""
    return {name: float(value.double().sum()) for name, value in model.state_dict().items() if "seen" not in name}


def build_evaluated_task() -> Task:
    """The pipeline task with an evaluation after each epoch."""
    task = build_deep_task()
    task.evaluate = evaluate
    return task


class Sentences(Dataset):
    """53 sentences."""

    def __init__(self) -> None:
        self._all = sentences(NUM_SAMPLES)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._all[index]


def build_transformer_task() -> Task:
    """Ten layers, tied at their ends, with dropout."""
    chain = build_transformer(dropout=0.1)
    assert isinstance(chain.layers, nn.ModuleList)
    optimizer = torch.optim.AdamW(chain.layers.parameters(), lr=0.01)
    return Task(model=chain.layers, dataset=Sentences(), loss=chain, optimizer=optimizer, chain=chain)


class Crops(Sentences):
    """Six words of each sentence from a random place on, in either direction, and a number drawn with them."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:  # type: ignore[override]
        words = super().__getitem__(index).repeat(2)
        start = int(torch.randint(LENGTH, ()))
        crop = words[start : start + LENGTH]
        weight = torch.rand(()) + sample_rng().random()
        return {"words": crop.flip(0) if random.random() < 0.5 else crop, "weight": weight}


def mask(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Replace some words by others, which the model has to find, as masked language models do."""
    words = torch.stack([sample["words"] for sample in samples])
    is_masked = torch.bernoulli(torch.full(words.shape, 0.3)).bool()
    tokens = torch.where(is_masked, torch.randint(NUM_WORDS, words.shape), words)
    rngs = batch_rngs(len(samples))
    weights = torch.stack([sample["weight"] + rng.random() for sample, rng in zip(samples, rngs, strict=True)])
    return {"tokens": tokens, "words": words, "weights": is_masked * weights.double().unsqueeze(1)}


def mask_more(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the first layer is called with; notes in the batch what else is to be found."""
    hidden = torch.rand(batch["words"].shape) < 0.1
    batch["weights"] = batch["weights"] + hidden
    return torch.where(hidden, 0, batch["tokens"])


class Noisy(nn.Module):
    """A layer that draws from generators that belong to samples."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        noise = [torch.from_numpy(rng.normal(size=values.shape[1:])) for rng in batch_rngs(len(values))]
        return values + 0.1 * torch.stack(noise)


def masked_loss(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    losses = F.cross_entropy(logits.transpose(1, 2), batch["words"], reduction="none")
    return (losses * batch["weights"]).mean()


def build_masked_task() -> Task:
    """A masked language model: reading, collating and the first layer's inputs draw, and so do layers."""
    chain: Any = build_transformer(dropout=0.1)
    layers = nn.ModuleList([*chain.layers[:3], Noisy(), *chain.layers[3:6], Noisy(), *chain.layers[6:]])
    chain = replace(chain, layers=layers, inputs=mask_more, loss=masked_loss)
    optimizer = torch.optim.AdamW(chain.layers.parameters(), lr=0.01)
    task = Task(model=chain.layers, dataset=Crops(), loss=chain, optimizer=optimizer, chain=chain)
    task.collate = mask
    return task
