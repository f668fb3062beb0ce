"""What a step costs in a session, beside a `Task`'s step and plain PyTorch, alone in one process.

    python bench/session_steps.py [WIDTH STEPS]

Prints the median step in milliseconds over alternating rounds, and the medians of paired ratios. The first step,
before which a session rehearses, is not counted. It trains on the GPU where there is one, and else on one thread
of the CPU.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

import oakum
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task

_BATCH = 64
_ROUNDS = 7
_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _build(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers[:-1]).to(_DEVICE)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def _loss(model: nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    inputs, targets = (tensor.to(_DEVICE) for tensor in batch)
    return mse_loss(model(inputs), targets)


def _plain(width: int, data: TensorDataset) -> float:
    model, optimizer = _build(width)
    loader = DataLoader(data, _BATCH, shuffle=True)
    began_s = None
    for batch in loader:
        optimizer.zero_grad()
        loss = _loss(model, batch)
        torch.autograd.backward(loss)
        optimizer.step()
        loss.item()
        began_s = began_s or time.perf_counter()
    return time.perf_counter() - (began_s or 0)


def _task(width: int, data: TensorDataset) -> float:
    model, optimizer = _build(width)
    task = Task(model=model, dataset=data, loss=_loss, optimizer=optimizer)
    loop = TrainingLoop(task, TrainerSpec(name="steps", entrypoint="a:b", global_batch=_BATCH, epochs=1))
    began_s = None
    while not loop.finished:
        loop.step()
        began_s = began_s or time.perf_counter()
    return time.perf_counter() - (began_s or 0)


def _session(width: int, data: TensorDataset) -> float:
    model, optimizer = _build(width)
    with oakum.session(model, optimizer, data, batch_size=_BATCH) as session:
        began_s = None
        for batch in session:
            session.backward(_loss(model, batch))
            session.step()
            began_s = began_s or time.perf_counter()
        return time.perf_counter() - (began_s or 0)


def main(width: int, steps: int) -> None:
    """Measure, and print one line for each way of training."""
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(_BATCH * steps, width), torch.randn(_BATCH * steps, width))
    ways: dict[str, Callable[[int, TensorDataset], float]] = {
        "plain": _plain,
        "task": _task,
        "session": _session,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(_ROUNDS + 1):
        for name, train in ways.items():
            took_s = train(width, data)
            if number:  # the first round warms up
                times[name].append(1000 * took_s / (steps - 1))
    for name, each in times.items():
        ratio = statistics.median(a / b for a, b in zip(each, times["plain"], strict=True))
        print(f"{name:8} {statistics.median(each):8.3f} ms  {ratio:5.2f} of plain")
    ratio = statistics.median(a / b for a, b in zip(times["session"], times["task"], strict=True))
    print(f"session / task: {ratio:.2f}")


if __name__ == "__main__":
    main(*(map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (256, 50)))
