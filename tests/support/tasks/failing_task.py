"""Tasks that go wrong at a step of the trainer's, whichever process takes it."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from small_task import layered_task
from small_task import task as small_task
from torch import nn

from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Progress, Task


def task(
    spec: TrainerSpec, what: str, at: int = 30, jitter: bool = False, layered: bool = False, step_s: float = 0.005
) -> Task:
    """From step `at` on, which counts from 1, `what` goes wrong; with `jitter` up to 3 steps later."""
    built = layered_task(spec, step_s) if layered else small_task(spec, step_s)
    begins = at + (os.getpid() % 4 if jitter else 0)
    step = [0]

    def note(_: nn.Module, progress: Progress) -> None:
        step[0] = progress.step + 1

    def goes_wrong() -> bool:
        return step[0] >= begins

    built.on_step_start = note
    if layered:
        assert built.chain is not None
        compute = built.chain.loss
        built.chain = built.loss = dataclasses.replace(
            built.chain, loss=lambda output, batch: _wrong(what, goes_wrong, compute(output, batch))
        )
    else:
        then = built.loss
        built.loss = lambda model, batch: _wrong(what, goes_wrong, then(model, batch))
    return built


def _wrong(what: str, goes_wrong: Callable[[], bool], loss: torch.Tensor) -> Any:
    if not goes_wrong():
        return loss
    match what:
        case "nan":
            return loss * float("nan")
        case "gradient":
            return loss + torch.sqrt(0 * loss)
        case "raises":
            raise ValueError("points and labels disagree")
        case "shape":
            return loss.reshape(1).expand(3)
        case "memory":
            return loss + torch.zeros(1 << 50, dtype=torch.float64).sum()
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    raise LookupError(what)
