"""Median times of a step by Oakum and by plain torch, in rounds that alternate."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader

from oakum_worker.devices import waiting_clock
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from on_gpus.models import KINDS, build, loss, samples

_WAYS = {
    "float32": (torch.float32, False),
    "bfloat16": (torch.bfloat16, False),
    "float16": (torch.float16, False),
    "bfloat16, compiled": (torch.bfloat16, True),
}


def main(device: torch.device, *, tiny: bool) -> Iterator[dict[str, Any]]:
    """Step times in ms by kind of model and way to compute."""
    for kind in KINDS:
        for way in ["float32"] if tiny else _WAYS:
            steps = [make(kind, way, device, tiny) for make in (_ours, _plain)]
            ours_s, plain_s = _alternately(steps, device, rounds=3 if tiny else 9, count=1 if tiny else 5)
            ratio = ours_s / plain_s
            yield {
                "model": kind,
                "way": way,
                "oakum_ms": 1e3 * ours_s,
                "torch_ms": 1e3 * plain_s,
                "ratio": ratio,
            }


def _batch(*, tiny: bool) -> int:
    return 2 if tiny else 32


def _ours(kind: str, way: str, device: torch.device, tiny: bool) -> Callable[[], object]:
    dtype, compiled = _WAYS[way]
    model = build(kind, tiny=tiny).to(device)
    task = Task(
        model=model,
        dataset=samples(kind, 8 * _batch(tiny=tiny), tiny=tiny),
        loss=loss,
        optimizer=torch.optim.AdamW(model.parameters()),
    )
    spec = TrainerSpec.model_validate(
        {
            "name": "steps",
            "entrypoint": "a:b",
            "global_batch": _batch(tiny=tiny),
            "epochs": 1_000_000,
            "precision": str(dtype).removeprefix("torch."),
            "compile": compiled,
        }
    )
    return TrainingLoop(task, spec).step


def _plain(kind: str, way: str, device: torch.device, tiny: bool) -> Callable[[], object]:
    dtype, compiled = _WAYS[way]
    model = build(kind, tiny=tiny).to(device)
    called: Any = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    data = samples(kind, 8 * _batch(tiny=tiny), tiny=tiny)

    def batches() -> Any:
        while True:
            yield from DataLoader(data, _batch(tiny=tiny), shuffle=True)

    following = batches()

    def step() -> None:
        optimizer.zero_grad()
        with nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype):
            value = loss(called, next(following))
        torch.autograd.backward(scaler.scale(value))
        scaler.step(optimizer)
        scaler.update()
        value.item()  # as each step of ours reports its loss

    return step


def _alternately(
    steps: list[Callable[[], object]], device: torch.device, *, rounds: int, count: int
) -> list[float]:
    clock: Callable[[], float] = waiting_clock(device)
    for step in steps:
        for _ in range(3):
            step()
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for step, taken in zip(steps, times, strict=True):
            began_s = clock()
            for _ in range(count):
                step()
            taken.append((clock() - began_s) / count)
    return [statistics.median(taken) for taken in times]


if __name__ == "__main__":
    for figure in main(torch.device(sys.argv[1]), tiny=sys.argv[2] == "tiny"):
        print(json.dumps(figure), flush=True)
