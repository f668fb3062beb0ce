"""A trainer with recurrent layers and dropout, whose ranks come and go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import Dataset

from loop_verdicts import loops_are_faster
from oakum_worker.recurrent import layers
from oakum_worker.recurrent.layers import GRU, LSTM
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from training_ranks import build_spec
from waiting import DEADLINE_S

LONGEST, WIDTH = 7, 4


class Sequences(Dataset):
    """A data set of padded sequences of 1 to 7 points, with their lengths and a target each."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(40, LONGEST, WIDTH, generator=generator, dtype=torch.float64)
        self.lengths = torch.randint(1, LONGEST + 1, (40,), generator=generator)
        self.targets = torch.randn(40, 2, generator=generator, dtype=torch.float64)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.lengths[index], self.targets[index]


class Reader(nn.Module):
    """Two recurrent layers of each kind, with dropout: the first read padded sequences, the last packed ones."""

    def __init__(self, lstm: type[nn.LSTM] = LSTM) -> None:
        super().__init__()
        self.padded = lstm(WIDTH, 9, num_layers=3, dropout=0.4, batch_first=True)
        self.packed = GRU(9, 5, num_layers=2, dropout=0.4, bidirectional=True, batch_first=True)
        self.last = nn.Linear(10, 2)

    def forward(self, inputs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        read, _ = self.padded(inputs)
        packed, last = self.packed(pack_padded_sequence(read, lengths, batch_first=True, enforce_sorted=False))
        outputs, _ = pad_packed_sequence(packed, batch_first=True)
        told: torch.Tensor = self.last(outputs.sum(1) + last[-2:].transpose(0, 1).flatten(1))
        return told


def build_reader_loop(lstm: type[nn.LSTM] = LSTM, seed: int = 0, **changes: Any) -> TrainingLoop:
    """A trainer in float64 that draws for each sample."""
    torch.manual_seed(seed)
    model = Reader(lstm).double()
    task = Task(
        model=model,
        dataset=Sequences(),
        loss=lambda model, batch: mse_loss(model(batch[0], batch[1]), batch[2]),
        optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
    )
    return TrainingLoop(task, build_spec(**{"global_batch": 12, "epochs": 50} | changes))


def run(sizes: Sequence[int], steps: int, rank: int, store: dist.Store) -> list[float]:
    """Train `steps` steps in each generation that this rank is a member of; returns the losses that it saw.

    Generation i has the ranks below sizes[i]. Who was not in the one before gets the state from rank 0.
    """
    setattr(layers, "faster", loops_are_faster)  # noqa: B010  # of this process, which ends with the test
    loop = build_reader_loop(seed=rank, micro_batch=2)
    losses: list[float] = []
    for number, size in enumerate(sizes):
        if rank >= size:
            continue
        timeout = timedelta(seconds=DEADLINE_S)
        group = (
            dist.ProcessGroupGloo(dist.PrefixStore(f"{number}", store), rank, size, timeout) if size > 1 else None
        )
        loop.join(group, rank, size)
        loop.state.share(0)
        losses += [loop.step().loss for _ in range(steps)]
    return losses
