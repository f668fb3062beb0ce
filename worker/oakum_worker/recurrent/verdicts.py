"""Decides for each size of a layer what computes it, fused loops or torch: whichever was faster here.

Both are measured once, when a layer first meets a size, and the verdict is kept beside the measured choices.
Numbers of sequences and of time steps vary from call to call, so those near the same power of two are one class
and share a verdict.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch

from oakum_worker.recurrent.choices import choose, entry, hashed, keep_entry
from oakum_worker.recurrent.design_space import LoopDesign, Shape
from oakum_worker.recurrent.kernels import Kernels
from oakum_worker.recurrent.measuring import draw
from oakum_worker.recurrent.passes import LayerPlan, TimeSteps, run_by_torch, run_layer

Gradients = Literal["none", "weights", "inputs"]
"""What is differentiated: nothing, a layer's weights alone, or also its inputs."""

_WORTH = 1.1
"""How many times as fast as torch the loops have to be: less may be noise of the measurement."""
_AROUND_S = 40e-6
"""What a layer takes around a call of the loops beyond torch's forward pass, in Python."""
_FEWEST_TURNS, _MOST_TURNS = 4, 30
_ENOUGH_S = 0.2
"""Seconds of a call, or of all turns, after which no more than the fewest turns are taken."""
_CLEAR = 1.5
"""How many times as long one way has to take for long calls to be compared by a single turn."""
_MOST_STEPS, _FEWEST_STEPS = 64, 8
_MOST_BATCH = 256
_MOST_MULTIPLICATIONS = 4e9
"""Of a forward pass that is timed, about 0.3 s on one core. Longer sequences are shortened, to 8 steps or more."""


@dataclass(frozen=True)
class Verdict:
    """Least times of both ways to compute a layer, in seconds of a call."""

    fused_s: float
    torch_s: float

    @property
    def is_fused(self) -> bool:
        """Whether the fused loops compute the layer: they do if they are faster by more than noise."""
        return (self.fused_s + _AROUND_S) * _WORTH <= self.torch_s

    def __str__(self) -> str:
        own, other = (self.fused_s, self.torch_s) if self.is_fused else (self.torch_s, self.fused_s)
        return f"faster at this size: {1e3 * own:.3g} ms against {1e3 * other:.3g}"


@functools.lru_cache(maxsize=1024)
def faster(kernels: Kernels, shape: Shape, threads: int, gradients: Gradients) -> Verdict:
    """The verdict on a layer of this shape with `threads` threads: kept from earlier, else measured now, in a
    fraction of a second (of a layer whose call takes longer, in the time of some calls). A verdict that cannot be
    written is kept in this process alone."""
    return _of_class(kernels, alike(shape), threads, gradients)


def alike(shape: Shape) -> Shape:
    """The shape that stands for the class of this one: sequences and steps are the nearest powers of two."""
    return replace(
        shape,
        steps=min(_power_of_two(shape.steps), _MOST_STEPS),
        batch=min(_power_of_two(shape.batch), _MOST_BATCH),
    )


def measure(kernels: Kernels, shape: Shape, threads: int, gradients: Gradients, choice: LoopDesign) -> Verdict:
    """Time both ways to compute a layer of this shape, in turns, with the loops run by `choice`.

    The times are those of a thread of its own, which has none of the caller's modes: no hooks, autocast or random
    draws of the caller see the measurement. Long sequences are shortened. Raises `RuntimeError` where that fails.
    """
    verdicts: list[Verdict] = []
    arguments = kernels, _shortened(shape), threads, gradients, choice
    thread = threading.Thread(target=lambda: verdicts.append(_timed(*arguments)))
    with _threads_of_torch(threads):
        thread.start()
        thread.join()
    if not verdicts:
        raise RuntimeError(f"a layer of {shape} could not be timed: the traceback of its thread says why")
    return verdicts[0]


@contextlib.contextmanager
def _threads_of_torch(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if before == threads:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.lru_cache(maxsize=1024)
def _of_class(kernels: Kernels, shape: Shape, threads: int, gradients: Gradients) -> Verdict:
    choice = choose(shape, kernels.vector_bytes, threads)
    key = hashed(
        "verdict", torch.__version__, *asdict(shape).values(), threads, gradients, *asdict(choice).values()
    )
    kept = _kept(key)
    if kept is None:
        kept = measure(kernels, shape, threads, gradients, choice)
        with contextlib.suppress(OSError):
            keep_entry(key, asdict(kept))
    return kept


def _kept(key: str) -> Verdict | None:
    try:
        verdict = Verdict(**entry(key))
        return verdict if verdict.fused_s > 0 and verdict.torch_s > 0 else None
    except (KeyError, TypeError):
        return None


def _power_of_two(number: int) -> int:
    return 1 << round(math.log2(number))


def _shortened(shape: Shape) -> Shape:
    of_a_step = shape.batch * shape.weight_bytes / shape.number_bytes
    most = max(_FEWEST_STEPS, int(_MOST_MULTIPLICATIONS / of_a_step))
    return replace(shape, steps=min(shape.steps, most))


def _timed(kernels: Kernels, shape: Shape, threads: int, gradients: Gradients, choice: LoopDesign) -> Verdict:
    # A single thread's processor time says more than its wall time, to which other work on the machine adds.
    clock = time.thread_time if threads == 1 else time.perf_counter
    ways = _ways(kernels, shape, gradients, choice)
    least_s = [math.inf] * len(ways)
    spent_s = 0.0
    with torch.set_grad_enabled(gradients != "none"):
        for turn in range(1, _MOST_TURNS + 1):
            for number, run in enumerate(ways):
                before_s = clock()
                run()
                taken_s = clock() - before_s
                least_s[number] = min(least_s[number], taken_s)
                spent_s += taken_s
            if _is_enough(turn, spent_s, least_s):
                break
    return Verdict(*least_s)


def _is_enough(turns: int, spent_s: float, least_s: Sequence[float]) -> bool:
    if min(least_s) > _ENOUGH_S:  # so long that what only the first call does is little of it
        return turns > 1 or max(least_s) > _CLEAR * min(least_s)
    return turns >= _FEWEST_TURNS and spent_s > _ENOUGH_S


def _ways(
    kernels: Kernels, shape: Shape, gradients: Gradients, choice: LoopDesign
) -> tuple[Callable[[], None], Callable[[], None]]:
    """(by fused loops, by torch): functions that compute a layer of this shape and its gradients."""
    data, states, *weights = draw(shape, torch.Generator().manual_seed(0))
    cells = states.clone() if shape.cell == "lstm" else None
    steps = TimeSteps(torch.full((shape.steps,), shape.batch, dtype=torch.int64))
    plan = LayerPlan(kernels, shape.cell, steps, choice, 1)
    trained = {"none": [], "weights": weights, "inputs": [data, *weights]}[gradients]
    for tensor in trained:
        tensor.requires_grad_()

    def differentiated(outputs: Sequence[torch.Tensor]) -> None:
        if trained:
            torch.autograd.grad(outputs[0].sum(), trained)

    def by_loops() -> None:
        differentiated(run_layer(plan, data, states, cells, weights))

    def by_torch() -> None:
        training = bool(trained)
        differentiated(
            run_by_torch(shape.cell, steps, data, states, cells, weights, directions=1, training=training)
        )

    return by_loops, by_torch
