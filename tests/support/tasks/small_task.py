"""Small tasks for the tests of the whole way: float64, no randomness inside, nothing slow to import."""

from __future__ import annotations

import inspect
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from oakum_worker.chain import Chain
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task

_ENDLESS_EPOCHS = 10_000


class LightSGD(torch.optim.SGD):
    """SGD without the wrappers that import torch's compiler, which takes a process that is not forked as much CPU
    time as torch itself."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))
    add_param_group = inspect.unwrap(torch.optim.SGD.add_param_group)
    load_state_dict = inspect.unwrap(torch.optim.SGD.load_state_dict)
    state_dict = inspect.unwrap(torch.optim.SGD.state_dict)
    zero_grad = inspect.unwrap(torch.optim.SGD.zero_grad)


def _points() -> TensorDataset:
    """960 points (64,) around ten centres, with their centres' numbers."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(960) % 10
    centres = torch.randn(10, 64, generator=generator, dtype=torch.float64)
    points = centres[labels] + torch.randn(960, 64, generator=generator, dtype=torch.float64)
    return TensorDataset(points, labels)


def task(spec: TrainerSpec, step_s: float | None = None) -> Task:
    """A two-layer network; `step_s`, which each rank's computation takes at least, leaves the CPU to others.

    By default a trainer that no test sees the end of takes its time: at 30 steps a second four ranks and their
    agents take half a core, at 6 a tenth.
    """
    pace_s = _pace_s(spec, 0.15, 0.005) if step_s is None else step_s
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)).double()

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        time.sleep(pace_s)
        return cross_entropy(model(batch[0]), batch[1])

    return Task(
        model=model,
        dataset=_points(),
        loss=loss,
        optimizer=LightSGD(model.parameters(), lr=0.05, momentum=0.9),
    )


def sleeping_task(spec: TrainerSpec, sample_s: float) -> Task:
    """A network for whose samples each rank sleeps `sample_s` each: more ranks are as much faster as on nodes of
    their own, and take no CPU from one another."""
    built = task(spec, step_s=0.0)

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        time.sleep(len(batch[1]) * sample_s)
        return cross_entropy(model(batch[0]), batch[1])

    built.loss = loss
    return built


def paced_task(spec: TrainerSpec, gate: str, step_s: float) -> Task:
    """Steps of `step_s` until the file `gate` is there, so that training goes on while nodes come and go."""
    return paced(task(spec, step_s=0.0), gate, step_s)


def paced(built: Task, gate: str, step_s: float) -> Task:
    """The task, its steps longer by `step_s` until the file `gate` is there."""
    compute = built.loss

    def loss(model: nn.Module, batch: Any) -> Any:
        if not Path(gate).exists():
            time.sleep(step_s)
        return compute(model, batch)

    built.loss = loss
    return built


def _pace_s(spec: TrainerSpec, endless_s: float, finite_s: float) -> float:
    return endless_s if spec.epochs >= _ENDLESS_EPOCHS else finite_s


def layered_task(spec: TrainerSpec, step_s: float | None = None, folder: str = "") -> Task:
    """Six layers that may be spread over ranks, each of which takes `step_s` at least.

    A file `hang` in `folder` makes one rank hang; with a file `gate` there nothing is slowed down any more.
    """
    model = nn.Sequential(nn.Linear(64, 64), *(nn.Linear(64, 64) for _ in range(4)), nn.Linear(64, 10)).double()

    pace_s = _pace_s(spec, 0.03, 0.005) if step_s is None else step_s

    def wait(*_: object) -> None:
        if not (folder and (Path(folder) / "gate").exists()):
            time.sleep(pace_s)
        if folder and _takes(Path(folder) / "hang", Path(folder) / f"hangs-{os.getpid()}"):
            time.sleep(1e9)

    for layer in model:
        layer.register_forward_pre_hook(wait)
    chain = Chain(
        layers=list(model),
        inputs=lambda batch: batch[0],
        loss=lambda output, batch: cross_entropy(output, batch[1]),
    )
    return Task(
        model=model,
        dataset=_points(),
        loss=chain,
        chain=chain,
        optimizer=LightSGD(model.parameters(), lr=0.05, momentum=0.9),
    )


def stalling_task(spec: TrainerSpec, folder: str, after: int, stall_s: float) -> Task:
    """From the step after `after` on, a step takes `stall_s`; a file in `folder` says that it has begun.

    None takes so long once the file `on` is there.
    """
    built = task(spec)
    calls = iter(range(10**9))

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if next(calls) >= after:
            (Path(folder) / f"stalls-{os.getpid()}").touch()
            until_s = time.monotonic() + stall_s
            while time.monotonic() < until_s and not (Path(folder) / "on").exists():
                time.sleep(0.02)
        return cross_entropy(model(batch[0]), batch[1])

    built.loss = loss
    return built


def once_hanging_task(spec: TrainerSpec, folder: str) -> Task:
    """A task of which the first process that comes to its twentieth step hangs there for ever."""
    built = task(spec, step_s=0.01)
    calls = iter(range(10**9))

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if next(calls) == 19 and _is_first(Path(folder) / "hung"):
            while True:
                time.sleep(1.0)
        return cross_entropy(model(batch[0]), batch[1])

    built.loss = loss
    return built


def _takes(order: Path, answer: Path) -> bool:
    try:
        order.rename(answer)
    except FileNotFoundError:
        return False
    return True


def _is_first(marker: Path) -> bool:
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def evaluated_task(spec: TrainerSpec) -> Task:
    """Evaluated by all ranks: the accuracy rises until the eighth step and falls then."""
    from oakum_worker.evaluation import sum_over  # late: the previous version, which imports this file, has it not

    built = task(spec)

    def evaluate(model: nn.Module) -> dict[str, float]:
        totals = sum_over(_points(), lambda batch: {"samples": len(batch[1])}, batch_size=100)
        return {"accuracy": totals["samples"] / 960 - abs(steps.taken - 8) / 100}

    steps = _Steps()
    built.on_step_end = lambda model, progress: setattr(steps, "taken", progress.step)
    built.evaluate, built.evaluates_together, built.extra_state = evaluate, True, {"steps": steps}
    return built


class _Steps:
    taken = 0

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.taken = state["taken"]


def crashing_task(spec: TrainerSpec) -> Task:
    """Raises in its third step."""
    built = task(spec)
    calls = iter(range(10**9))

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if next(calls) == 2:
            raise ValueError("points and labels disagree")
        return cross_entropy(model(batch[0]), batch[1])

    built.loss = loss
    return built


def broken_task(spec: TrainerSpec) -> Task:
    """A task whose function raises."""
    raise RuntimeError("the data set is not where it was")


def killed_task(spec: TrainerSpec) -> Task:
    """A task that kills its own process while it is built, as the kernel does on a node without memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return task(spec)


def summed_task(spec: TrainerSpec) -> Task:
    """A task whose loss is a sum over samples, which would mean another learning rate for each number of nodes."""
    built = task(spec)
    built.loss = lambda model, batch: cross_entropy(model(batch[0]), batch[1], reduction="sum")
    return built
