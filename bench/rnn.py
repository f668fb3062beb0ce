"""Times fused recurrent loops beside torch's layers, oneDNN and torch.compile at DeepBench's sizes, batch 1.

    python bench/rnn.py                                   # all sizes on one thread and on two, about ten minutes
    python bench/rnn.py --threads 1 --rounds 15 --json rnn.json
    python bench/rnn.py --cell gru --hidden 512 --only forward

All ways of computing take turns, round after round, and the least time of each counts: other work on the machine
only adds to it. Medians of the same rounds are printed beside. Sequences of more than 150 steps are shortened to
25; steps are alike, so a step's time is what is compared. A single step is called once before it is timed.

- `fused`: the loops, also where a layer would have torch compute as it is faster.
- `torch`: `nn.LSTM` or `nn.GRU` as it is, which for LSTMs runs oneDNN's; `without oneDNN`: with it switched off.
- `compiled`: a step through torch.compile (inductor), with W_ih x for all steps in one product before.
- `paper`: the fused loops with W_ih x within each step (a tile of one step), so that nothing is kept.
- `limit`: the time in which a dot product of a vector with itself reads W_hh once a step and W_ih once, in large
  pages. Weights are read at least as often by each way of computing.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import torch
import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from oakum_client.cli import output
from oakum_worker.recurrent import layers
from oakum_worker.recurrent.choices import choose
from oakum_worker.recurrent.design_space import LoopDesign, Shape
from oakum_worker.recurrent.kernels import Kernels, kernels
from oakum_worker.recurrent.packing import in_large_pages
from oakum_worker.recurrent.verdicts import Verdict

DEEPBENCH: tuple[tuple[str, int, int], ...] = (
    *(("lstm", 256, 150), ("lstm", 512, 25), ("lstm", 1024, 25), ("lstm", 1536, 50), ("lstm", 2048, 25)),
    *(("gru", 512, 1), ("gru", 1024, 1500)),
    *(("gru", hidden, 1500) for hidden in (1536, 2048, 2560, 2816)),
)
"""Layer, hidden units and steps; GRUs of 1536 and more also occur with 187, 375 and 750 steps, which are alike."""


_FEW_STEPS = 4


class Part(StrEnum):
    """Parts of the benchmark."""

    FORWARD = "forward"
    TRAINING = "training"


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer of as many inputs as hidden units, for one sequence, on a number of threads."""

    part: Part
    cell: str
    hidden: int
    steps: int
    full_steps: int
    threads: int


@dataclasses.dataclass(frozen=True)
class Figures:
    """Seconds of a call for each way of computing (least and median), and bytes of intermediate results."""

    case: Case
    least_s: dict[str, float]
    median_s: dict[str, float]
    limit_s: float
    bytes_of: dict[str, int]
    choice: LoopDesign

    def ratio(self, other: str, of: str = "fused") -> float:
        """How many times as long the other way takes, by the least times."""
        return self.least_s[other] / self.least_s[of]


class _Made(TorchDispatchMode):
    """Counts the bytes of tensors that operators allocate."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.storages[storage.data_ptr()] = storage  # kept, so that no address occurs twice
        return made


def bytes_made(run: Callable[[], Any], given: list[torch.Tensor]) -> int:
    """Bytes of all tensors that a call allocates besides its results."""
    with _Made() as counted:
        results = run()
    known = {tensor.untyped_storage().data_ptr() for tensor in [*given, *_flat(results)]}
    return sum(storage.nbytes() for address, storage in counted.storages.items() if address not in known)


def _flat(results: Any) -> Iterator[torch.Tensor]:
    if isinstance(results, torch.Tensor):
        yield results
    elif isinstance(results, tuple | list):
        for one in results:
            yield from _flat(one)


def lstm_step(by_input: Any, h: Any, c: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    """One step of an LSTM from W_ih x of the step, as a user of torch.compile would write it."""
    i, f, g, o = (by_input + nn.functional.linear(h, weight, bias)).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_step(by_input: Any, h: Any, c: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    """One step of a GRU from W_ih x of the step."""
    i_r, i_z, i_n = by_input.chunk(3, 1)
    h_r, h_z, h_n = nn.functional.linear(h, weight, bias).chunk(3, 1)
    z = (i_z + h_z).sigmoid()
    n = (i_n + (i_r + h_r).sigmoid() * h_n).tanh()
    return n + z * (h - n), c


def compiled_run(step: Callable[..., Any], layer: nn.RNNBase, input: torch.Tensor) -> torch.Tensor:
    """All steps of a sequence, each by a step that torch.compile has made."""
    (w_ih, w_hh, b_ih, b_hh) = layer.all_weights[0]
    by_input = nn.functional.linear(input.squeeze(1), w_ih, b_ih)
    h = c = input.new_zeros(1, layer.hidden_size)
    made = []
    for t in range(len(input)):
        h, c = step(by_input[t : t + 1], h, c, w_hh, b_hh)
        made.append(h)
    return torch.stack(made)


def measure(case: Case, rounds: int, *, with_compiled: bool) -> Figures:
    """Time all ways of computing a case, in turns. Raises `ValueError` where they do not compute the same."""
    torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    reference = (nn.LSTM if case.cell == "lstm" else nn.GRU)(case.hidden, case.hidden)
    with torch.device("meta"):
        fused = (layers.LSTM if case.cell == "lstm" else layers.GRU)(case.hidden, case.hidden)
    fused.load_state_dict(reference.state_dict(keep_vars=True), assign=True)
    input = torch.randn(case.steps, 1, case.hidden)
    loaded = kernels()
    if not isinstance(loaded, Kernels):
        raise loaded
    shape = Shape("lstm" if case.cell == "lstm" else "gru", case.hidden, case.hidden, case.steps)
    choice = choose(shape, loaded.vector_bytes, case.threads)
    is_training = case.part is Part.TRAINING
    ways = {
        "torch": lambda: reference(input),
        "without oneDNN": lambda: _without_onednn(lambda: reference(input)),
        "fused": lambda: _with_choice(choice, lambda: fused(input)),
        "paper": lambda: _with_choice(dataclasses.replace(choice, tile=1), lambda: fused(input)),
    }
    if with_compiled and not is_training:
        torch._dynamo.reset()  # else sizes after the eighth would run as they are
        step = torch.compile(lstm_step if case.cell == "lstm" else gru_step, dynamic=False)
        ways["compiled"] = lambda: compiled_run(step, reference, input)
    if is_training:
        ways = {name: _train_step(run, list(reference.parameters())) for name, run in ways.items()}
    limit = _Reader(reference.all_weights[0][1].numel(), reference.all_weights[0][0].numel(), case.steps)
    seconds: dict[str, list[float]] = {name: [] for name in (*ways, "limit")}
    with torch.set_grad_enabled(is_training):
        _check(ways, is_training)
        for _ in range(rounds):
            for name, run in ways.items():
                if case.steps < _FEW_STEPS:
                    run()  # a single step is called again and again in practice, with its weights in the caches
                seconds[name].append(_timed(run))
            seconds["limit"].append(limit.seconds())
        given = [*reference.parameters(), input]
        bytes_of = {name: bytes_made(run, given) for name, run in ways.items() if name != "compiled"}
    least = {name: min(taken) for name, taken in seconds.items()}
    median = {name: statistics.median(taken) for name, taken in seconds.items()}
    return Figures(case, least, median, least.pop("limit"), bytes_of, choice)


def _train_step(run: Callable[[], Any], parameters: list[torch.Tensor]) -> Callable[[], Any]:
    def train() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(run()[0].square().sum(), parameters)

    return train


def _without_onednn(run: Callable[[], Any]) -> Any:
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        return run()


def _with_choice(choice: LoopDesign, run: Callable[[], Any]) -> Any:
    by_loops = mock.patch.object(layers, "faster", return_value=Verdict(fused_s=1.0, torch_s=2.0))
    with by_loops, mock.patch.object(layers, "choose", return_value=choice):
        return run()


def _check(ways: dict[str, Callable[[], Any]], is_training: bool) -> None:
    results = {name: list(_flat(run())) for name, run in ways.items()}  # which also warms up
    for name, made in results.items():
        for one, other in zip(made, results["torch"], strict=False):
            if not torch.allclose(one.reshape(-1), other.reshape(-1), rtol=1e-3, atol=1e-3):
                raise ValueError(f"{name} computes something else than torch does")


def _timed(run: Callable[[], Any]) -> float:
    begin_s = time.perf_counter()
    run()
    return time.perf_counter() - begin_s


class _Reader:
    """Reads as many numbers from memory as an inference has to read."""

    def __init__(self, recurrent: int, inputs: int, steps: int) -> None:
        self._numbers = in_large_pages(max(recurrent, inputs), torch.float32).fill_(1e-3)
        self._recurrent, self._inputs, self._steps = recurrent, inputs, steps

    def seconds(self) -> float:
        """Seconds of reading W_ih once and W_hh once a step."""
        steps = min(self._steps, 8)
        recurrent, inputs = self._numbers[: self._recurrent], self._numbers[: self._inputs]
        begin_s = time.perf_counter()
        for _ in range(steps):
            torch.dot(recurrent, recurrent)
        taken_s = (time.perf_counter() - begin_s) * self._steps / steps
        return taken_s + _timed(lambda: torch.dot(inputs, inputs))


def forward_table(figures: list[Figures]) -> Table:
    """Table of inference: microseconds a step, and how many times as long others take."""
    columns = ("layer", "steps", "threads", "fused, us a step", "paper", "torch", "without oneDNN", "compiled")
    table = Table(
        *columns, "torch / fused (median)", "limit / fused", title="Inference, batch 1", box=box.MARKDOWN
    )
    for one in figures:
        step = {name: f"{1e6 * seconds / one.case.steps:,.0f}" for name, seconds in one.least_s.items()}
        medians = one.median_s["torch"] / one.median_s["fused"]
        table.add_row(
            *_named(one),
            *(step.get(name, "") for name in ("fused", "paper", "torch", "without oneDNN", "compiled")),
            f"{one.ratio('torch'):.2f} ({medians:.2f})",
            f"{100 * one.limit_s / one.least_s['fused']:.0f} %",
        )
    return table


def training_table(figures: list[Figures]) -> Table:
    """Table of forward and backward passes."""
    columns = (
        "layer",
        "steps",
        "threads",
        "fused, ms",
        "torch, ms",
        "without oneDNN, ms",
        "torch / fused (median)",
    )
    table = Table(*columns, title="Forward and backward, batch 1", box=box.MARKDOWN)
    for one in figures:
        times = (f"{1e3 * one.least_s[name]:,.1f}" for name in ("fused", "torch", "without oneDNN"))
        medians = one.median_s["torch"] / one.median_s["fused"]
        table.add_row(*_named(one), *times, f"{one.ratio('torch'):.2f} ({medians:.2f})")
    return table


def bytes_table(figures: list[Figures]) -> Table:
    """Table of the bytes that are allocated besides a call's results."""
    columns = ("part", "layer", "steps", "fused, KiB", "paper, KiB", "torch, KiB", "without oneDNN, KiB")
    table = Table(*columns, title="Intermediates of a call", box=box.MARKDOWN)
    for one in figures:
        sizes = (f"{one.bytes_of[name] / 1024:,.0f}" for name in ("fused", "paper", "torch", "without oneDNN"))
        table.add_row(str(one.case.part), *_named(one)[:2], *sizes)
    return table


def _named(one: Figures) -> tuple[str, str, str]:
    case = one.case
    steps = str(case.steps) if case.steps == case.full_steps else f"{case.steps} of {case.full_steps}"
    return f"{case.cell.upper()} {case.hidden}", steps, str(case.threads)


def shortened(steps: int, most_steps: int | None) -> int:
    """The number of steps of a sequence that are computed."""
    if most_steps is not None:
        return min(steps, most_steps)
    return steps if steps <= 150 else 25


def mean_ratio(figures: list[Figures], other: str) -> float:
    """Geometric mean of how many times as long the other way takes."""
    ratios = [one.ratio(other) for one in figures if other in one.least_s]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan


def main(
    threads: Annotated[
        list[int] | None, typer.Option(help="Threads; may be repeated. Default: 1, and all.")
    ] = None,
    cell: Annotated[str | None, typer.Option(help="lstm or gru alone.")] = None,
    hidden: Annotated[list[int] | None, typer.Option(help="Sizes alone; may be repeated.")] = None,
    only: Annotated[list[Part] | None, typer.Option(help="Run these parts alone; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of all ways of computing.")] = 9,
    most_steps: Annotated[
        int | None,
        typer.Option(min=1, help="Longer sequences are shortened to it.", show_default="25 of more than 150"),
    ] = None,
    compiled: Annotated[bool, typer.Option(help="Compare with torch.compile, too.")] = True,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Time recurrent layers at DeepBench's inference sizes, and print tables.

    Example: python bench/rnn.py --threads 1 --hidden 1024 --json rnn.json
    """
    counts = threads or sorted({1, torch.get_num_threads()})
    cases = [
        Case(part, kind, size, shortened(steps, most_steps), steps, count)
        for part in only or list(Part)
        for count in counts
        for kind, size, steps in DEEPBENCH
        if cell in (None, kind) and (not hidden or size in hidden)
    ]
    figures: list[Figures] = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    console = output.console()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("rnn", total=len(cases))
        for case in cases:
            progress.update(task, description=f"{case.part}, {case.cell} {case.hidden}, {case.threads} threads")
            figures.append(measure(case, rounds, with_compiled=compiled))
            progress.advance(task)
            if json_file is not None:
                json_file.write_text(
                    json.dumps(list(map(dataclasses.asdict, figures)), indent=1), encoding="utf-8"
                )
    for part, table in ((Part.FORWARD, forward_table), (Part.TRAINING, training_table)):
        for count in counts:
            own = [one for one in figures if one.case.part is part and one.case.threads == count]
            if own:
                console.print(table(own))
                means = {name: mean_ratio(own, name) for name in own[0].least_s if name not in ("fused", "paper")}
                told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in means.items())
                console.print(f"geometric means of times by the fused loops': {told}\n")
    console.print(bytes_table([one for one in figures if one.case.threads == counts[0]]))
    console.print(f"load on {os.cpu_count()} cores at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    typer.run(main)
