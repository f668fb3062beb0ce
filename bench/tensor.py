"""What 1-D, 2-D and 3-D tensor parallelism move and take, side by side: bytes, step time, memory, and predictions.

    python bench/tensor.py                                       # 8 ranks (2-D: 4 and 9), several sizes and links
    python bench/tensor.py --samples 64 --width 256 --link-mbytes 100 --json tensor.json

The model is a stack of two linear layers with a non-linearity (width -> 4 width -> width), as in a transformer's
block. Ranks are threads of this process. Their collectives exchange tensors in memory and then take as long as the
elements that a rank receives would take over a link of its own, and its latency once for each step of a ring. So
times of communication are real waiting, at the same time on all ranks; products are real, too, and share the
machine's cores. A link of 0 MB/s has no delay.

Predicted: the products' time, measured in one process for this shape and divided by the ranks' share, times the
threads that share a core; and the bytes of the formulas over the link. For 64 ranks, of which each would have a
core of its own, there are predictions alone. Ends with status 1 where a count is not what the formula says.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

from oakum_service.cli import output
from oakum_worker.parallel.tensor.computing import computing
from oakum_worker.parallel.tensor.convert import convert
from oakum_worker.parallel.tensor.grids import ALL_AXES, Grid
from oakum_worker.parallel.tensor.wires import Wires

_TIMEOUT_S = 120.0
_BYTES = 4
GRIDS = (Grid("1d", 8), Grid("2d", 2), Grid("2d", 3), Grid("3d", 2))
"""A 2-D grid has no 8 ranks: 4 and 9 lie on either side."""
PREDICTED = (Grid("1d", 64), Grid("2d", 8), Grid("3d", 4))
"""Grids of more ranks than can be measured here."""


@dataclass(frozen=True)
class Link:
    """What carries elements to a rank; 0 bytes/s stands for no delay at all."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, num_bytes: float, num_steps: int) -> float:
        """Time for bytes that arrive in `num_steps` messages, one after the other."""
        return num_steps * self.latency_s + num_bytes / self.bytes_per_s if self.bytes_per_s else 0.0


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
    """None where there is a prediction alone."""
    predicted_ms: float
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

    def exchange(self, place: int, value: Any, received: int, steps: int) -> list[Any]:
        """What all members gave, after the time that `received` elements take."""
        self._given[place] = value
        self._barrier.wait()
        found = list(self._given)
        time.sleep(self._link.seconds(received * _BYTES, steps))
        self._barrier.wait()
        return found

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self._given)


class _Done:
    def wait(self) -> None:
        """The collective is over."""


class _Member:
    def __init__(self, group: _Group, place: int) -> None:
        self._group, self._place = group, place

    def _allgather_base(self, made: torch.Tensor, own: torch.Tensor) -> _Done:
        others = self._group.size - 1
        made.copy_(torch.cat(self._group.exchange(self._place, own.detach(), others * own.numel(), others)))
        return _Done()

    def alltoall_base(self, made: torch.Tensor, own: torch.Tensor, takes: list[int], gives: list[int]) -> _Done:
        others = self._group.size - 1
        given = self._group.exchange(self._place, own.detach().split(gives), others * takes[0], others)
        made.copy_(torch.cat([parts[self._place] for parts in given]))
        return _Done()

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> _Done:
        n, own = self._group.size, tensors[0]
        given = self._group.exchange(self._place, own.clone(), 2 * own.numel() * (n - 1) // n, 2 * (n - 1))
        own.copy_(
            torch.stack(given).sum(0) if options.reduceOp == dist.ReduceOp.SUM else torch.stack(given).amax(0)
        )
        return _Done()


def wires_of(grid: Grid, link: Link) -> list[Wires]:
    """Each rank's connections."""
    groups: dict[Any, _Group] = {}
    made = []
    for rank in range(grid.num_ranks):
        own: dict[Any, Any] = {}
        for axis in ALL_AXES:
            ranks = tuple(grid.group_of(rank, (axis,)))
            own[axis] = groups.setdefault((axis, ranks), _Group(len(ranks), link)).at(ranks.index(rank))
        made.append(Wires(grid, rank, own))
    return made


def build(size: Size) -> nn.Sequential:
    """Two linear layers, without bias, so that counts are those of products alone."""
    torch.manual_seed(1)
    first, second = (nn.Linear(k, n, bias=False) for k, n in size.layers())
    return nn.Sequential(first, nn.GELU(), second)


def received(grid: Grid, size: Size, keep: bool) -> tuple[int, int]:
    """Elements that a rank receives in a step's products, and the messages of a ring, by the formulas.

    Forward and backward each: 1-D (q-1)/q MK or MN, 2-D (q-1)(MK+KN)/q^2, 3-D (q-1)(MK+KN+MN)/q^3. Backward,
    X and W are gathered again unless they were kept. The gradient of the first layer's input is not computed.
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
            share = q ** (3 if grid.kind == "3d" else 2)
            out = mn if grid.kind == "3d" else 0
            # X and W gathered, Y scattered; Y gathered, dW scattered, X again; dX scattered, W again.
            parts = [mk, kn, out, out, kn, 0 if keep else mk]
            parts += [] if first else [mk, 0 if keep else kn]
            elements += (q - 1) * sum(parts) // share
            steps += (q - 1) * sum(part > 0 for part in parts)
    return elements, steps


def measure(grid: Grid, size: Size, link: Link, rounds: int, keep: bool) -> tuple[float, int, int]:
    """Median seconds of a step, elements that one rank received in it, and elements of weights that it has."""
    model, batch = build(size), torch.randn(size.samples, size.width, generator=torch.Generator().manual_seed(2))
    conversion = convert(model, grid, lambda share: model(share(batch)).square().mean(), size.samples)
    locals_ = [conversion.local(copy.deepcopy(model), rank, model.state_dict()) for rank in range(grid.num_ranks)]
    begin = threading.Barrier(grid.num_ranks, timeout=_TIMEOUT_S)
    wires = wires_of(grid, link)

    def as_rank(rank: int) -> tuple[list[float], int]:
        times = []
        for _ in range(rounds + 1):
            before = wires[rank].received
            locals_[rank].zero_grad()
            begin.wait()
            start_s = time.perf_counter()
            with computing(wires[rank], size.samples, keep_gathered=keep) as share:
                made = locals_[rank](share(batch))
            made.local.backward(made.local.detach())
            begin.wait()
            times.append(time.perf_counter() - start_s)
        return times[1:], wires[rank].received - before

    with ThreadPoolExecutor(grid.num_ranks) as threads:
        found = list(threads.map(as_rank, range(grid.num_ranks)))
    weights = sum(parameter.numel() for parameter in locals_[0].parameters())
    return statistics.median(found[0][0]), found[0][1], weights


def product_s(size: Size, rounds: int) -> float:
    """Median seconds of a step's products in one thread that has all of the model."""
    model, batch = build(size), torch.randn(size.samples, size.width)
    times = []
    for _ in range(rounds + 1):
        start_s = time.perf_counter()
        made = model(batch)
        made.backward(made.detach())
        times.append(time.perf_counter() - start_s)
    return statistics.median(times[1:])


@dataclass(frozen=True)
class Costs:
    """What predictions are made from."""

    alone_s: float
    """Time of a step's products in one process."""
    code_s: float
    """Time that a rank's step takes beside its products and its link."""
    keep: bool

    def predicted_s(self, grid: Grid, size: Size, link: Link, cores: int) -> float:
        """Time of a step of ranks that share so many cores."""
        elements, steps = received(grid, size, self.keep)
        return (self.alone_s + grid.num_ranks * self.code_s) / cores + link.seconds(elements * _BYTES, steps)


def case(grid: Grid, size: Size, link: Link, costs: Costs, rounds: int) -> Result:
    """Measure one grid, and predict it."""
    seconds, counted, weights = measure(grid, size, link, rounds, costs.keep)
    elements, _ = received(grid, size, costs.keep)
    predicted_s = costs.predicted_s(grid, size, link, min(os.cpu_count() or 1, grid.num_ranks))
    return _result(grid, size, link, counted, weights, (seconds, predicted_s), counted == elements)


def prediction(grid: Grid, size: Size, link: Link, costs: Costs) -> Result:
    """Predict a grid of which each rank has a core of its own."""
    elements, _ = received(grid, size, costs.keep)
    weights = sum(k * n for k, n in size.layers()) // grid.num_ranks
    predicted_s = costs.predicted_s(grid, size, link, grid.num_ranks)
    return _result(grid, size, link, elements, weights, (None, predicted_s), True)


def _result(
    grid: Grid,
    size: Size,
    link: Link,
    elements: int,
    weights: int,
    seconds: tuple[float | None, float],
    right: bool,
) -> Result:
    step_s, predicted_s = seconds
    return Result(
        f"{grid.kind}, q = {grid.side}",
        grid.num_ranks,
        size.samples,
        size.width,
        link.bytes_per_s / 1e6,
        elements * _BYTES / 1e6,
        weights * _BYTES / 1e3,
        None if step_s is None else 1e3 * step_s,
        1e3 * predicted_s,
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
            alone_s = product_s(size, rounds)
            code_s = {grid: _code_s(grid, rounds, keep) for grid in GRIDS}
            for link in links:
                for grid in GRIDS:
                    results.append(case(grid, size, link, Costs(alone_s, code_s[grid], keep), rounds))
                    progress.advance(bar)
                if link.bytes_per_s:
                    of_kind = {grid.kind: seconds for grid, seconds in code_s.items()}
                    costs = [Costs(alone_s, of_kind[grid.kind], keep) for grid in PREDICTED]
                    results += [prediction(g, size, link, c) for g, c in zip(PREDICTED, costs, strict=True)]
    output.console().print(table_of(results))
    if json_file is not None:
        json_file.write_text(json.dumps([dataclasses.asdict(one) for one in results], indent=1), encoding="utf-8")
    if not all(one.right for one in results):
        sys.exit("a rank received another number of elements than the formula says")


def _code_s(grid: Grid, rounds: int, keep: bool) -> float:
    """Core-seconds that one rank's step of a model takes in which there is next to nothing to multiply."""
    seconds = min(measure(grid, Size(72, 72), Link(0, 0), 1, keep)[0] for _ in range(rounds))
    return seconds * min(os.cpu_count() or 1, grid.num_ranks) / grid.num_ranks


if __name__ == "__main__":
    typer.run(main)
