"""Tasks whose loss is a mean over tokens; samples have different numbers of tokens, some none."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from oakum_worker.chain import Chain
from oakum_worker.losses import LossValue
from oakum_worker.task import Task
from training_ranks import NUM_SAMPLES, build_model

LONGEST = 4


class Tokens(Dataset):
    """`NUM_SAMPLES` samples of 0 to 4 tokens; those from number `until` on have none."""

    def __init__(self, until: int = NUM_SAMPLES) -> None:
        generator = torch.Generator().manual_seed(11)
        self._inputs = torch.randn(NUM_SAMPLES, LONGEST, 5, generator=generator, dtype=torch.float64)
        self._targets = torch.randn(NUM_SAMPLES, LONGEST, 2, generator=generator, dtype=torch.float64)
        self._lengths = torch.randint(LONGEST + 1, (NUM_SAMPLES,), generator=generator)
        self._lengths[until:] = 0

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        counts = torch.arange(LONGEST) < self._lengths[index]
        return {"inputs": self._inputs[index], "targets": self._targets[index], "counts": counts}


def inputs(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return batch["inputs"]


def total_and_weight(output: torch.Tensor, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    errors = (output - batch["targets"]).square().mean(2)
    return (errors * batch["counts"]).sum(), batch["counts"].sum()


def token_loss(model: nn.Module, batch: Any) -> LossValue:
    return total_and_weight(model(batch["inputs"]), batch)


def token_mean(model: nn.Module, batch: Any) -> torch.Tensor:
    """Mean over the tokens of a batch: right for a whole batch in one process, and wrong for a share of it."""
    total, weight = total_and_weight(model(batch["inputs"]), batch)
    return total / weight.clamp(min=1)


def build_token_task(*extra: nn.Module, until: int = NUM_SAMPLES, loss: Any = token_loss) -> Task:
    model = build_model(*extra)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    return Task(model=model, dataset=Tokens(until), loss=loss, optimizer=optimizer)


def build_token_chain() -> Task:
    """The token model as a chain of layers, for pipelines."""
    torch.manual_seed(6)
    task = build_token_task(nn.Linear(8, 8), nn.LayerNorm(8))
    assert isinstance(task.model, nn.Sequential)
    task.loss = task.chain = Chain(list(task.model), inputs=inputs, loss=total_and_weight)
    return task
