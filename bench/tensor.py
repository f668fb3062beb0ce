"""What shards, 1-D, 2-D and 3-D tensor parallelism move and take, and what Oakum's chooser predicts of it.

    python bench/tensor.py                                       # 8 ranks (2-D: 4 and 9), several sizes and links
    python bench/tensor.py --samples 64 --width 256 --link-mbytes 100 --json tensor.json

The model is a stack of two linear layers with a non-linearity (width -> 4 width -> width), as in a transformer's
block. Ranks are threads of this process. Their collectives exchange tensors in memory and then take as long as the
elements that a rank receives would take over a link of its own, and its latency once for each step of a ring. A
link of 0 MB/s has no delay.

Each rank stands for one with a core of its own: its step is the CPU time of its thread and what it waited for its
link, so neither other ranks nor other work on the machine count. The slowest rank's is told. Memory is the most
that a rank's tensors take at one time in a step: blocks, gradients, what is kept and what is gathered.

Predicted: what `oakum profile layout` would say of the grid, from the same products timed in one process and the
link's latency and bandwidth. Grids of 64 ranks are predicted alone. Ends with status 1 where a count of bytes is
not what the formula says.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn
from torch.utils.data import Dataset

from oakum_client.cli import output
from oakum_worker.parallel.grids.costs import GridProfile
from oakum_worker.parallel.grids.layouts import GridChoices, predict_grid
from oakum_worker.parallel.grids.measuring import measure_products
from oakum_worker.parallel.link_costs import LinkCosts
from oakum_worker.parallel.pipeline.layouts import Layout
from oakum_worker.parallel.tensor.computing import computing
from oakum_worker.parallel.tensor.convert import convert
from oakum_worker.parallel.tensor.grids import ALL_AXES, Grid
from oakum_worker.parallel.tensor.wires import Wires
from oakum_worker.profiling.live_memory import LiveMemory
from oakum_worker.task import Task

_TIMEOUT_S = 120.0
_BYTES = 4
GRIDS = (Grid("1d", 2), Grid("1d", 8), Grid("2d", 2), Grid("2d", 3), Grid("3d", 2), Grid("shards", 8))
"""A 2-D grid has no 8 ranks: 4 and 9 lie on either side."""
PREDICTED = (Grid("1d", 64), Grid("2d", 8), Grid("3d", 4), Grid("shards", 64))
"""Grids of more ranks than can be measured here."""


@dataclass(frozen=True)
class Link:
    """What carries elements to a rank; 0 bytes/s stands for no delay at all."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, num_bytes: float, num_steps: int) -> float:
        """Time for bytes that arrive in `num_steps` messages, one after the other."""
        return num_steps * self.latency_s + num_bytes / self.bytes_per_s if self.bytes_per_s else 0.0

    @property
    def costs(self) -> LinkCosts:
        """The link as the chooser knows it."""
        return LinkCosts(self.latency_s, self.bytes_per_s) if self.bytes_per_s else LinkCosts(0.0, 1e15)


@dataclass(frozen=True)
class Size:
    """Samples of a batch, and the width of the model."""

    samples: int
    width: int

    def layers(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of the linear layers."""
        return [(self.width, 4 * self.width), (4 * self.width, self.width)]


@dataclass(frozen=True)
class Result:
    """One grid, size and link."""

    grid: str
    ranks: int
    samples: int
    width: int
    link_mbytes_per_s: float
    megabytes: float
    """Received by one rank in a step, as counted or, where nothing was measured, by the formula."""
    kilobytes_of_weights: float
    """On one rank."""
    step_ms: float | None
    """Of the slowest rank; None where there is a prediction alone."""
    predicted_ms: float
    peak_kilobytes: float | None
    """Of the rank that needs most."""
    predicted_kilobytes: float
    right: bool
    """Whether the count is what the formula says."""


class _Group:
    """A process group of threads whose collectives take the link's time."""

    def __init__(self, size: int, link: Link) -> None:
        self._barrier = threading.Barrier(size, timeout=_TIMEOUT_S)
        self._given: list[Any] = [None] * size
        self._link = link

    def at(self, place: int) -> _Member:
        """The group as its member `place` has it."""
        return _Member(self, place)

    def exchange(self, place: int, value: Any) -> list[Any]:
        """What all members gave."""
        self._given[place] = value
        self._barrier.wait()
        found = list(self._given)
        self._barrier.wait()
        self._given[place] = None
        return found

    def seconds(self, received: int, steps: int) -> float:
        """Time that a member waits for `received` elements in `steps` messages."""
        return self._link.seconds(received * _BYTES, steps)

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self._given)


class _Done:
    def wait(self, _timeout: timedelta | None = None) -> None:
        """Return at once: the members have exchanged their values before."""


class _Member:
    def __init__(self, group: _Group, place: int) -> None:
        self._group, self._place = group, place
        self.waited_s = 0.0

    def _exchange(self, value: Any, received: int, steps: int) -> list[Any]:
        self.waited_s += self._group.seconds(received, steps)
        return self._group.exchange(self._place, value)

    def _allgather_base(self, made: torch.Tensor, own: torch.Tensor) -> _Done:
        others = self._group.size - 1
        parts = self._exchange(own.detach(), others * own.numel(), others)
        for row, part in zip(made.view(len(parts), -1), parts, strict=True):
            row.copy_(part)
        return _Done()

    def alltoall_base(self, made: torch.Tensor, own: torch.Tensor, takes: list[int], gives: list[int]) -> _Done:
        others = self._group.size - 1
        given = self._exchange(own.detach().split(gives), others * takes[0], others)
        for row, parts in zip(made.split(takes), given, strict=True):
            row.copy_(parts[self._place])
        return _Done()

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> _Done:
        n, own = self._group.size, tensors[0]
        given = self._exchange(own.clone(), 2 * own.numel() * (n - 1) // n, 2 * (n - 1))
        own.copy_(
            torch.stack(given).sum(0) if options.reduceOp == dist.ReduceOp.SUM else torch.stack(given).amax(0)
        )
        return _Done()


@dataclass(frozen=True)
class Connected:
    """One rank's connections."""

    wires: Wires
    members: Sequence[_Member]

    @property
    def waited_s(self) -> float:
        """Seconds that the rank has waited for its link so far."""
        return sum(member.waited_s for member in self.members)


def connect(grid: Grid, link: Link) -> list[Connected]:
    """Connect the ranks of a grid. Returns each rank's connections."""
    groups: dict[Any, _Group] = {}
    made = []
    for rank in range(grid.num_ranks):
        own: dict[Any, Any] = {}
        for axis in ALL_AXES:
            ranks = tuple(grid.group_of(rank, (axis,)))
            own[axis] = groups.setdefault((axis, ranks), _Group(len(ranks), link)).at(ranks.index(rank))
        made.append(Connected(Wires(grid, rank, own), tuple(own.values())))
    return made


def build(size: Size) -> nn.Sequential:
    """Two linear layers, without bias, so that counts are those of products alone."""
    torch.manual_seed(1)
    first, second = (nn.Linear(k, n, bias=False) for k, n in size.layers())
    return nn.Sequential(first, nn.GELU(), second)


def received(grid: Grid, size: Size, keep: bool) -> tuple[int, int]:
    """Elements that a rank receives in a step's products, and the messages of a ring, by the formulas.

    Forward and backward each: 1-D (q-1)/q MK or MN, 2-D (q-1)(MK+KN)/q^2, 3-D (q-1)(MK+KN+MN)/q^3, shards
    (q-1)/q KN. Backward, X and W are gathered again unless they were kept. The gradient of the first layer's input
    is not computed.
    """
    q, m = grid.side, size.samples
    elements = steps = 0
    for number, (k, n) in enumerate(size.layers()):
        mk, kn, mn = m * k, k * n, m * n
        first = number == 0
        if grid.kind == "1d":
            into = mk if first else 0  # layout A is gathered, layout B is not
            out = 0 if first else mn
            passes = 1 if first and keep else 2
            elements += (q - 1) * passes * (into + out) // q
            steps += (q - 1) * passes
        else:
            share = grid.num_ranks
            mk = 0 if grid.kind == "shards" else mk
            out = mn if grid.kind == "3d" else 0
            # X and W gathered, Y scattered; Y gathered, dW scattered, X again; dX scattered, W again.
            parts = [mk, kn, out, out, kn, 0 if keep else mk]
            parts += [] if first else [mk, 0 if keep else kn]
            elements += (q - 1) * sum(parts) // share
            steps += (q - 1) * sum(part > 0 for part in parts)
    return elements, steps


@dataclass(frozen=True)
class Measured:
    """A step of one rank."""

    seconds: float
    """CPU time and waiting for the link, the median of all rounds."""
    received: int
    """Elements that the rank received."""
    peak_bytes: int
    """Of its weights and all tensors of the step."""


def measure(grid: Grid, size: Size, link: Link, rounds: int, keep: bool) -> tuple[list[Measured], int]:
    """Run steps of all ranks of a grid. Returns each rank's measurements, and the number of elements of weights
    that one rank has."""
    model, batch = build(size), torch.randn(size.samples, size.width, generator=torch.Generator().manual_seed(2))
    conversion = convert(model, grid, lambda share: model(share(batch)).square().mean(), size.samples)
    locals_ = [conversion.local(copy.deepcopy(model), rank, model.state_dict()) for rank in range(grid.num_ranks)]
    connected = connect(grid, link)
    begin = threading.Barrier(grid.num_ranks, timeout=_TIMEOUT_S)

    def step(rank: int) -> None:
        locals_[rank].zero_grad()
        begin.wait()
        with computing(connected[rank].wires, size.samples, keep_gathered=keep) as share:
            made = locals_[rank](share(batch))
        made.local.backward(made.local.detach())

    def as_rank(rank: int) -> Measured:
        own, times, received_before = connected[rank], [], 0
        with LiveMemory() as memory:
            memory.count(locals_[rank].parameters())
            step(rank)
        for _ in range(rounds + 1):
            received_before, waited_s, began_s = own.wires.received, own.waited_s, time.thread_time()
            step(rank)
            times.append(time.thread_time() - began_s + own.waited_s - waited_s)
        return Measured(statistics.median(times[1:]), own.wires.received - received_before, memory.peak_bytes)

    with ThreadPoolExecutor(grid.num_ranks) as threads:
        found = list(threads.map(as_rank, range(grid.num_ranks)))
    return found, sum(parameter.numel() for parameter in locals_[0].parameters())


class _Rows(Dataset[torch.Tensor]):
    """One random row."""

    def __init__(self, width: int) -> None:
        self._row = torch.randn(width, generator=torch.Generator().manual_seed(2))

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._row


def profiled(size: Size) -> GridProfile:
    """The products of the model, timed as a trainer's node times them. There is no optimizer's state."""
    model = build(size)
    task = Task(
        model=model,
        dataset=_Rows(size.width),
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    return measure_products(task, size.samples, contextlib.nullcontext)


def predict(grid: Grid, size: Size, link: Link, profile: GridProfile, keep: bool) -> Layout:
    """What the chooser predicts of a step."""
    return predict_grid(grid, 1, 1, profile, link.costs, GridChoices(size.samples, keep_gathered=keep))


def case(grid: Grid, size: Size, link: Link, profile: GridProfile, rounds: int, keep: bool) -> Result:
    """Measure one grid, and predict it."""
    ranks, weights = measure(grid, size, link, rounds, keep)
    slowest_s, peak_bytes = max(one.seconds for one in ranks), max(one.peak_bytes for one in ranks)
    counted, (elements, _) = ranks[0].received, received(grid, size, keep)
    predicted = predict(grid, size, link, profile, keep)
    return _result(grid, size, link, (counted, weights), (slowest_s, peak_bytes), predicted, counted == elements)


def prediction(grid: Grid, size: Size, link: Link, profile: GridProfile, keep: bool) -> Result:
    """Predict a grid without measuring it."""
    elements, _ = received(grid, size, keep)
    weights = sum(k * n for k, n in size.layers()) // grid.num_ranks
    return _result(grid, size, link, (elements, weights), None, predict(grid, size, link, profile, keep), True)


def _result(
    grid: Grid,
    size: Size,
    link: Link,
    elements: tuple[int, int],
    measured: tuple[float, int] | None,
    predicted: Layout,
    right: bool,
) -> Result:
    received_elements, weights = elements
    return Result(
        f"{grid.kind}, q = {grid.side}",
        grid.num_ranks,
        size.samples,
        size.width,
        link.bytes_per_s / 1e6,
        received_elements * _BYTES / 1e6,
        weights * _BYTES / 1e3,
        None if measured is None else 1e3 * measured[0],
        1e3 * predicted.predicted_step_s,
        None if measured is None else measured[1] / 1e3,
        predicted.most_bytes / 1e3,
        right,
    )


def table_of(results: Sequence[Result]) -> Table:
    """One row for each result."""
    columns = (
        "samples",
        "width",
        "link, MB/s",
        "grid",
        "ranks",
        "received, MB",
        "weights, kB",
        "step, ms",
        "predicted",
        "peak, kB",
        "predicted",
    )
    made = output.table(*columns, right=columns)
    for one in results:
        made.add_row(
            str(one.samples),
            str(one.width),
            f"{one.link_mbytes_per_s:g}" if one.link_mbytes_per_s else "no delay",
            one.grid,
            str(one.ranks),
            f"{one.megabytes:.3f}",
            f"{one.kilobytes_of_weights:.0f}",
            "-" if one.step_ms is None else f"{one.step_ms:.1f}",
            f"{one.predicted_ms:.1f}",
            "-" if one.peak_kilobytes is None else f"{one.peak_kilobytes:.0f}",
            f"{one.predicted_kilobytes:.0f}",
        )
    return made


def main(
    samples: Annotated[list[int] | None, typer.Option(help="Samples of a batch; 72 divides them.")] = None,
    width: Annotated[list[int] | None, typer.Option(help="Width of the model; 72 divides it.")] = None,
    link_mbytes: Annotated[list[float] | None, typer.Option(help="MB/s of the link; 0: no delay.")] = None,
    latency_ms: Annotated[float, typer.Option(help="Latency of each message, with a delay.")] = 0.05,
    keep: Annotated[bool, typer.Option(help="Keep what is gathered until the backward pass.")] = False,
    rounds: Annotated[int, typer.Option(help="Steps of which the median is taken.")] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
) -> None:
    """Measure all grids for each size and link."""
    torch.set_num_threads(1)
    sizes = [Size(m, h) for m in samples or [144, 1152] for h in width or [72, 288]]
    links = [Link(latency_ms / 1e3, 1e6 * speed) for speed in (link_mbytes or [0.0, 20.0])]
    results = []
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("measuring", total=len(sizes) * len(links) * len(GRIDS))
        for size in sizes:
            profile = profiled(size)
            for link in links:
                for grid in GRIDS:
                    results.append(case(grid, size, link, profile, rounds, keep))
                    progress.advance(bar)
                if link.bytes_per_s:
                    results += [prediction(grid, size, link, profile, keep) for grid in PREDICTED]
    output.console().print(table_of(results))
    if json_file is not None:
        json_file.write_text(json.dumps([dataclasses.asdict(one) for one in results], indent=1), encoding="utf-8")
    if not all(one.right for one in results):
        sys.exit("a rank received another number of elements than the formula says")


if __name__ == "__main__":
    typer.run(main)
