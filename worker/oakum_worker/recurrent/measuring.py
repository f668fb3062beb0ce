"""Times choices of the design space on this machine, beside what the cost model predicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from oakum_worker.recurrent.choices import remember
from oakum_worker.recurrent.design_space import DesignSearch, LoopDesign, Shape, search, space, step_s
from oakum_worker.recurrent.kernels import Kernels
from oakum_worker.recurrent.machine import Processor, this_machine
from oakum_worker.recurrent.passes import LayerPlan, TimeSteps, run_layer

Progress = Callable[[str], None]
_TYPES = {4: torch.float32, 8: torch.float64}
_MOST_STEPS = 64
_CALIBRATING_BYTES = 1 << 28
_BARRIERS = 1000


@dataclass(frozen=True)
class TimedDesign:
    """One choice of the design space with two times of a time step, in seconds: the cost model's prediction,
    and the least time that was measured."""

    choice: LoopDesign
    predicted_s: float
    measured_s: float


@dataclass(frozen=True)
class RnnProfile:
    """Result of `oakum profile rnn`: every choice with its times, for one shape on this machine."""

    shape: Shape
    threads: int
    machine: Processor
    model: DesignSearch
    """The model's choice."""
    candidates: tuple[TimedDesign, ...]
    """Every choice, the fastest as measured first."""
    rounds: int
    """How often each was timed."""

    @property
    def fastest(self) -> TimedDesign:
        """The candidate that was measured to be the fastest."""
        return self.candidates[0]

    @property
    def regret(self) -> float:
        """The share by which a step with the cost model's choice took longer than with the fastest choice; 0 if
        both are the same."""
        own = next(one for one in self.candidates if one.choice == self.model.choice)
        return own.measured_s / self.fastest.measured_s - 1


def profile(
    kernels: Kernels,
    shape: Shape,
    threads: int,
    *,
    seconds: float,
    keep: bool,
    progress: Progress = lambda _: None,
) -> RnnProfile:
    """Time every choice for a shape with at most `threads` threads, round after round for about `seconds`.
    Returns all choices with their times.

    A round times each choice once, and the least of its times counts, since whatever else runs on the machine
    only adds to them. With `keep`, layers of later processes run with the fastest.
    """
    progress("rates of this machine")
    machine = calibrated(kernels, threads)
    measured = replace(shape, steps=min(shape.steps, _MOST_STEPS))
    timed = {choice: float("inf") for choice in space(measured, machine, threads)}
    timers = {choice: _timer(kernels, measured, choice) for choice in timed}
    begin_s, rounds = time.monotonic(), 0
    while rounds == 0 or time.monotonic() - begin_s < seconds:
        rounds += 1
        for number, (choice, timer) in enumerate(timers.items()):
            progress(f"round {rounds}: choice {number + 1} of {len(timers)}")
            timed[choice] = min(timed[choice], timer())
    candidates = [
        TimedDesign(choice, step_s(measured, choice, machine), measured_s) for choice, measured_s in timed.items()
    ]
    candidates.sort(key=lambda one: one.measured_s)
    if keep:
        remember(shape, threads, candidates[0].choice)
    return RnnProfile(shape, threads, machine, search(measured, machine, threads), tuple(candidates), rounds)


def calibrated(kernels: Kernels, threads: int) -> Processor:
    """A description of this machine with measured rates: how fast the loops read from each cache and from memory,
    and how long threads wait for each other."""
    machine = this_machine(kernels.vector_bytes)
    one = LoopDesign(1, 2, 1, 1, serpentine=False)
    l2, l3, memory = (
        _bytes_per_s(kernels, size, one)
        for size in (machine.l2_bytes // 2, machine.l3_bytes // 2, min(3 * machine.l3_bytes, 1 << 28))
    )
    of_all = memory
    barrier_s = machine.barrier_s
    if threads > 1:
        several = replace(one, threads=threads)
        of_all = _bytes_per_s(kernels, min(3 * machine.l3_bytes, 1 << 28), several)
        tiny = Shape("lstm", threads * kernels.vector_bytes // 4, 1, _BARRIERS)
        apart = _least(_timer(kernels, tiny, several)) - _least(_timer(kernels, tiny, one)) / threads
        barrier_s = max(apart, 0.0) / (threads - 1)
    return replace(
        machine,
        l2_bytes_per_s=l2,
        l3_bytes_per_s=min(l3, l2),
        memory_bytes_per_s=min(memory, l3, l2),
        memory_bytes_per_s_of_all=max(of_all, min(memory, l3, l2)),
        barrier_s=barrier_s,
    )


def _bytes_per_s(kernels: Kernels, weight_bytes: int, choice: LoopDesign) -> float:
    hidden = int((weight_bytes / 16) ** 0.5) // 64 * 64
    # Enough steps that what a call takes beside them does not count.
    shape = Shape("lstm", hidden, 1, min(max(_CALIBRATING_BYTES // weight_bytes, 6), 1000))
    return shape.weight_bytes / _least(_timer(kernels, shape, choice))


def _least(timer: Callable[[], float]) -> float:
    return min(timer() for _ in range(4))


def _timer(kernels: Kernels, shape: Shape, choice: LoopDesign) -> Callable[[], float]:
    """A function that computes all time steps of a layer by `choice`, and returns the seconds of one step."""
    data, states, weights = _tensors(shape)
    steps = TimeSteps(torch.full((shape.steps,), shape.batch, dtype=torch.int64))
    plan = LayerPlan(kernels, shape.cell, steps, choice, 1)
    cells = states.clone() if shape.cell == "lstm" else None

    def timed() -> float:
        with torch.no_grad():
            begin_s = time.perf_counter()
            run_layer(plan, data, states, cells, weights)
            return (time.perf_counter() - begin_s) / shape.steps

    return timed


_made: dict[Shape, tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]] = {}


def _tensors(shape: Shape) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """(inputs, states, weights) for a layer of this shape, filled with random numbers. The result of the last
    call is cached, since large tensors take long to fill."""
    if shape not in _made:
        _made.clear()
        tensors = list(draw(shape, torch.Generator().manual_seed(0)))
        _made[shape] = tensors[0], tensors[1], tensors[2:]
    return _made[shape]


def draw(shape: Shape, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield the inputs, (steps * batch, input), the states, (1, batch, hidden), and the parameters of a layer of
    this shape, drawn from the generator."""
    dtype = _TYPES[shape.number_bytes]
    rows = shape.gates * shape.hidden
    yield torch.randn(shape.steps * shape.batch, shape.input, dtype=dtype, generator=generator)
    yield torch.zeros(1, shape.batch, shape.hidden, dtype=dtype)
    for width in (shape.input, shape.hidden):
        yield torch.empty(rows, width, dtype=dtype).uniform_(-0.05, 0.05, generator=generator)
    for _ in range(2):
        yield torch.zeros(rows, dtype=dtype)
