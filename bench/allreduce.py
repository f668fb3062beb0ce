"""What a 2D-torus all-reduce saves over a ring, and over what links: steps, bytes and time.

    python bench/allreduce.py                                  # N = 4, 6, 8, 16
    python bench/allreduce.py --ranks 8 --latency-ms 2 --json allreduce.json

Ranks are threads of this process that send each other messages over simulated links: a message is there after its
link's latency and its bytes' time, and a link carries one at a time. Messages and bytes are counted where they are
sent. Beside that, the time of gloo's own all-reduce and of our torus over gloo, on the loopback device without any
delay. Ends with status 1 where a sum is wrong or a count is not what the formulas say.
"""

from __future__ import annotations

import dataclasses
import json
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from oakum_client.cli import output
from oakum_worker.parallel.subgroups import StoreSubgroups
from oakum_worker.parallel.torus import TorusAllReduce, TorusShape, grid

_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Link:
    """Latency and bandwidth of the simulated link between two ranks."""

    latency_s: float
    bytes_per_s: float


@dataclass
class Sent:
    """Numbers of messages and bytes that one rank has sent."""

    messages: int = 0
    num_bytes: int = 0


@dataclass
class Network:
    """A link from every rank to every other."""

    link: Link
    sent: list[Sent]
    _boxes: dict[tuple[int, int], queue.SimpleQueue[tuple[float, torch.Tensor]]] = field(default_factory=dict)
    _free_at_s: dict[tuple[int, int], float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, source: int, target: int, values: torch.Tensor) -> None:
        """Send `values` to `target` without waiting."""
        num_bytes = values.numel() * values.element_size()
        begin_s = max(time.monotonic(), self._free_at_s.get((source, target), 0.0))
        self._free_at_s[source, target] = begin_s + num_bytes / self.link.bytes_per_s
        self._box(source, target).put((self._free_at_s[source, target] + self.link.latency_s, values.clone()))
        self.sent[source].messages += 1
        self.sent[source].num_bytes += num_bytes

    def receive(self, source: int, target: int) -> torch.Tensor:
        """Wait for the next message from `source` and return it."""
        there_at_s, values = self._box(source, target).get(timeout=_TIMEOUT_S)
        time.sleep(max(there_at_s - time.monotonic(), 0.0))
        return values

    def _box(self, source: int, target: int) -> queue.SimpleQueue[tuple[float, torch.Tensor]]:
        with self._lock:
            return self._boxes.setdefault((source, target), queue.SimpleQueue())


def reduce_scatter(network: Network, ranks: Sequence[int], rank: int, flat: torch.Tensor) -> torch.Tensor:
    """Reduce-scatter `flat` in place around the ring of `ranks`; returns this rank's summed part."""
    size, index = len(ranks), ranks.index(rank)
    parts = flat.view(size, -1)
    for step in range(size - 1):
        network.send(rank, ranks[(index + 1) % size], parts[(index - step - 1) % size])
        parts[(index - step - 2) % size] += network.receive(ranks[index - 1], rank)
    return parts[index]


def all_gather(network: Network, ranks: Sequence[int], rank: int, flat: torch.Tensor) -> None:
    """All-gather in place around the ring of `ranks`; at first each rank has its own part of `flat`."""
    size, index = len(ranks), ranks.index(rank)
    parts = flat.view(size, -1)
    for step in range(size - 1):
        network.send(rank, ranks[(index + 1) % size], parts[(index - step) % size])
        parts[(index - step - 1) % size] = network.receive(ranks[index - 1], rank)


def ring(network: Network, ranks: Sequence[int], rank: int, flat: torch.Tensor) -> None:
    """Sum `flat` over the ranks in place, by a ring all-reduce of 2(N-1) steps."""
    reduce_scatter(network, ranks, rank, flat)
    all_gather(network, ranks, rank, flat)


def torus(network: Network, shape: TorusShape, rank: int, flat: torch.Tensor) -> None:
    """Sum `flat` over the grid's ranks in place, by a torus all-reduce of 2(X-1) + 2(Y-1) steps."""
    row = shape.row_of(rank)
    own = reduce_scatter(network, row, rank, flat)
    ring(network, shape.column_of(rank), rank, own)
    all_gather(network, row, rank, flat)


@dataclass(frozen=True)
class Result:
    """The measurement of one algorithm for one number of ranks and one size."""

    algorithm: str
    ranks: int
    grid: str
    latency_ms: float
    """Latency added to each message; 0 for measurements over gloo."""
    size_bytes: int
    steps: int
    """Messages that each rank sends one after the other; 0 where gloo sends them and they are not counted."""
    bytes_per_rank: int
    ms: float
    """Median over the rounds of the slowest rank's time in milliseconds."""


AllReduce = Callable[[int, torch.Tensor], None]


def time_rounds(num_ranks: int, length: int, rounds: int, all_reduce: AllReduce) -> float:
    """Seconds that the slowest rank takes, the median of the rounds. Raises `ValueError` where a sum is wrong."""
    barrier = threading.Barrier(num_ranks)

    def run(rank: int) -> list[float]:
        seconds = []
        for _ in range(rounds + 1):
            flat = torch.full((length,), float(rank + 1))
            barrier.wait(_TIMEOUT_S)
            begin_s = time.perf_counter()
            all_reduce(rank, flat)
            seconds.append(time.perf_counter() - begin_s)
            if not bool((flat == num_ranks * (num_ranks + 1) / 2).all()):
                raise ValueError(f"rank {rank} of {num_ranks} has a wrong sum")
        return seconds[1:]  # the first one warms up

    with ThreadPoolExecutor(num_ranks) as threads:
        slowest = map(max, zip(*threads.map(run, range(num_ranks)), strict=True))
        return statistics.median(slowest)


def simulate(name: str, shape: TorusShape, length: int, link: Link, rounds: int) -> Result:
    """Ring or torus over simulated links. Raises `ValueError` where the counts are not the formulas'."""
    num_ranks = shape.row_length * shape.num_rows
    network = Network(link, [Sent() for _ in range(num_ranks)])

    def all_reduce(rank: int, flat: torch.Tensor) -> None:
        if name == "torus":
            torus(network, shape, rank, flat)
        else:
            ring(network, range(num_ranks), rank, flat)

    seconds = time_rounds(num_ranks, length, rounds, all_reduce)
    steps = 2 * (num_ranks - 1) if name == "ring" else 2 * (shape.row_length - 1) + 2 * (shape.num_rows - 1)
    num_bytes = 2 * 4 * length * (num_ranks - 1) // num_ranks
    expected = Sent((rounds + 1) * steps, (rounds + 1) * num_bytes)
    if any(sent != expected for sent in network.sent):
        raise ValueError(f"{name} over {num_ranks} ranks sent {network.sent[0]}, expected {expected}")
    laid_out = f"{shape.row_length}x{shape.num_rows}" if name == "torus" else ""
    return Result(name, num_ranks, laid_out, 1e3 * link.latency_s, 4 * length, steps, num_bytes, 1e3 * seconds)


def over_gloo(name: str, shape: TorusShape, length: int, rounds: int) -> Result:
    """Time gloo's own all-reduce, or Oakum's torus over gloo, on the loopback device."""
    num_ranks = shape.row_length * shape.num_rows
    store = dist.HashStore()

    def connect(rank: int) -> AllReduce:
        timeout = timedelta(seconds=_TIMEOUT_S)
        if name == "torus over gloo":
            formed = TorusAllReduce.form(shape, rank, StoreSubgroups(store, rank, timeout))

            def run_torus(_: int, flat: torch.Tensor) -> None:
                formed.start(flat).wait()

            return run_torus
        group: Any = dist.ProcessGroupGloo(store, rank, num_ranks, timeout)
        return lambda _, flat: dist.all_reduce(flat, group=group)

    with ThreadPoolExecutor(num_ranks) as threads:
        connected = list(threads.map(connect, range(num_ranks)))
    seconds = time_rounds(num_ranks, length, rounds, lambda rank, flat: connected[rank](rank, flat))
    laid_out = f"{shape.row_length}x{shape.num_rows}" if name == "torus over gloo" else ""
    return Result(name, num_ranks, laid_out, 0.0, 4 * length, 0, 0, 1e3 * seconds)


def table_of(results: list[Result]) -> Table:
    """One row for each number of ranks, size and latency; ring beside torus."""
    table = Table(title="All-reduce: ring against 2D torus")
    columns = ("ranks", "grid", "bytes", "sent by a rank", "latency", "ring steps", "torus steps")
    for column in (*columns, "ring, ms", "torus, ms", "ring / torus"):
        table.add_column(column)
    for theirs, ours in zip(results[::2], results[1::2], strict=True):
        table.add_row(
            str(ours.ranks),
            ours.grid,
            _binary(ours.size_bytes),
            _binary(ours.bytes_per_rank) if ours.steps else "",
            f"{ours.latency_ms:g} ms" if ours.steps else "gloo, none",
            str(theirs.steps or ""),
            str(ours.steps or ""),
            f"{theirs.ms:.1f}",
            f"{ours.ms:.1f}",
            f"{theirs.ms / ours.ms:.2f}",
        )
    return table


def _binary(size: int) -> str:
    return f"{size / (1 << 20):.2f} MiB" if size >= 1 << 20 else f"{size / 1024:.1f} KiB"


def main(
    ranks: Annotated[list[int] | None, typer.Option(min=2, help="Numbers of ranks; may be repeated.")] = None,
    latency_ms: Annotated[list[float] | None, typer.Option(min=0, help="Of each message.")] = None,
    megabytes_per_s: Annotated[float, typer.Option(min=0.001, help="Of each simulated link.")] = 500.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each sum is timed.")] = 5,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Count and time all-reduces, and print a table.

    Example: python bench/allreduce.py --ranks 4 --ranks 16 --latency-ms 5 --json allreduce.json
    """
    torch.set_num_threads(1)
    sizes = (64 << 10, 8 << 20)
    cases = [(n, size) for n in ranks or [4, 6, 8, 16] for size in sizes]
    links = [Link(ms / 1e3, 1e6 * megabytes_per_s) for ms in latency_ms or [0.5, 5.0]]
    results: list[Result] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("all-reduce", total=2 * len(cases) * (len(links) + 1))
        for num_ranks, size in cases:
            shape = grid(num_ranks)
            length = size // 4 // num_ranks * num_ranks  # parts of equal length: nothing is padded
            for link in links:
                for name in ("ring", "torus"):
                    progress.update(task, description=f"{name}, {num_ranks} ranks")
                    results.append(simulate(name, shape, length, link, rounds))
                    progress.advance(task)
            for name in ("gloo's own", "torus over gloo"):
                results.append(over_gloo(name, shape, length, rounds))
                progress.advance(task)
    if json_file is not None:
        json_file.write_text(json.dumps([dataclasses.asdict(one) for one in results], indent=1), encoding="utf-8")
    output.console().print(table_of(results))


if __name__ == "__main__":
    try:
        typer.run(main)
    except ValueError as error:
        sys.exit(str(error))
