"""A task that writes down what each of its steps did, as seen by the gradient that the step applies.

Two parameters exist for that alone; their terms of the loss are zero and their gradients are not. The gradient of
`visits` has -1/n at each of the batch's n samples, that of `meter` is the batch's mean loss. Both are summed over
the ranks with all others, so what a rank records of a finished step is what went into its weights, whoever
computed it. `visits` is also stepped: it ends as how often each sample was part of a finished step.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task

NUM_SAMPLES = 1000
_GATE_POLL_S = 0.002


@dataclass(frozen=True)
class Attempt:
    """What one rank computed for a step that may or may not have finished."""

    step: int
    """Finished steps before it."""
    world_size: int
    samples: list[int]
    loss: float
    """Mean over these samples."""


@dataclass(frozen=True)
class FinishedStep:
    """What one rank applied: samples and mean loss of the whole global batch."""

    step: int
    world_size: int
    samples: list[int]
    loss: float


class Points:
    """Samples (64,) around ten centres, each with its own number."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self._labels = torch.arange(NUM_SAMPLES) % 10
        centres = torch.randn(10, 64, generator=generator, dtype=torch.float64)
        self._points = centres[self._labels] + torch.randn(
            NUM_SAMPLES, 64, generator=generator, dtype=torch.float64
        )

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self._points[index], self._labels[index], index


class Network(nn.Module):
    """Two layers, and the two parameters that record."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Dropout(dropout), nn.Linear(64, 10)).double()
        self.visits = nn.Parameter(torch.zeros(NUM_SAMPLES, dtype=torch.float64))
        self.meter = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def loss(self, points: torch.Tensor, labels: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy; the recording terms add nothing to it but their gradients."""
        loss = cross_entropy(self.layers(points), labels)
        visited = self.visits[samples]
        return loss + (visited.detach() - visited).mean() + loss.detach() * (self.meter - self.meter.detach())


class Recorder:
    """Appends one JSON line for each attempt and each finished step to a file of this process's own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Line-buffered: what was written before a kill stays.
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1, encoding="utf-8")

    def write(self, record: Attempt | FinishedStep) -> None:
        """Append the record."""
        kind = {"kind": type(record).__name__, "pid": os.getpid()}
        self._file.write(json.dumps(kind | asdict(record)) + "\n")


class Gate:
    """Holds ranks back before a step that the file does not allow yet: it holds how many steps may be taken."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._allowed = 0

    def wait(self, step: int) -> None:
        """Return once the step, counted from 0, is allowed."""
        while self._file is not None and step >= self._allowed:
            self._allowed = int(self._file.read_text(encoding="utf-8"))
            if step >= self._allowed:
                time.sleep(_GATE_POLL_S)


def task(
    spec: TrainerSpec, folder: str, gate: str | None = None, step_s: float = 0.0, dropout: float = 0.0
) -> Task:
    """Momentum and a schedule, so that any repeated, lost or foreign step shows in every later loss.

    Records go to `folder`; so do the weights at the end of each epoch, as `weights-STEP.pt`.
    """
    model = Network(dropout)
    optimizer = torch.optim.SGD(
        [
            {"params": model.layers.parameters(), "lr": 0.05, "momentum": 0.9},
            {"params": [model.visits], "lr": 1.0},
            {"params": [model.meter], "lr": 0.0},
        ]
    )
    scheduler = LambdaLR(optimizer, [lambda step: 1 / (1 + step / 50), lambda step: 1.0, lambda step: 1.0])
    recorder, waiting = Recorder(Path(folder)), Gate(Path(gate) if gate else None)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        assert isinstance(model, Network)
        # Counted by the scheduler: its state travels with the weights, so the number is right after any rescale.
        waiting.wait(scheduler.last_epoch)
        time.sleep(step_s)
        value = model.loss(*batch)
        recorder.write(Attempt(scheduler.last_epoch, _world_size(), batch[2].tolist(), value.item()))
        return value

    def record_finished(*_: Any) -> None:
        assert model.visits.grad is not None
        assert model.meter.grad is not None
        samples = model.visits.grad.nonzero().flatten().tolist()
        finished = FinishedStep(scheduler.last_epoch, _world_size(), samples, model.meter.grad.item())
        recorder.write(finished)

    def evaluate(model: nn.Module) -> dict[str, float]:
        weights = Path(folder) / f"weights-{scheduler.last_epoch}.pt"
        torch.save(model.state_dict(), weights.with_suffix(".tmp"))
        weights.with_suffix(".tmp").replace(weights)
        return {}

    optimizer.register_step_post_hook(record_finished)
    return Task(
        model=model,
        dataset=Points(),
        loss=loss,
        optimizer=optimizer,
        scheduler=scheduler,
        evaluate=evaluate,
    )


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
