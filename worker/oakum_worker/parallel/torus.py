"""2D-torus all-reduce (Mikami et al., arXiv:1811.05233): fewer steps than a ring over many ranks.

The N ranks form a grid of Y rows of X ranks each; those of a node are in one row. A flat tensor of G bytes is

1. reduce-scattered along the rows: each rank has the row's sum of G / X bytes,
2. all-reduced along the columns: each rank has everybody's sum of its G / X bytes,
3. all-gathered along the rows: each rank has all of the sum.

With rings for each phase these are 2(X-1) + 2(Y-1) steps instead of the 2(N-1) of one ring over all ranks, and
every rank sends the same 2G(N-1)/N bytes: steps cost latency, so the torus wins where messages are short. Only
G / X bytes leave a row, which is what counts where rows are nodes and links within one are faster.

All ranks end with the same bits: each part of the sum is added up in one column, whose all-reduce gives its ranks
the same bits, and is only copied from there.

gloo's own reduce-scatter is an all-reduce of which most is thrown away: 2G(X-1)/X bytes. On the CPU the ranks of a
row therefore exchange their parts in one all-to-all, G(X-1)/X bytes, and each adds up its own.
"""

# Annotations are evaluated here: torch compares those of a communication hook with its types.

import functools
import math
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist

from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.waiting import all_reduce


class Grid(NamedTuple):
    """How N = `row_length` * `num_rows` ranks are laid out: row by row, in the order of their numbers."""

    row_length: int
    """X of the paper: ranks of a row, and how many columns there are."""
    num_rows: int
    """Y of the paper: rows, and ranks of a column."""

    @property
    def is_plain(self) -> bool:
        """Whether all ranks are in one line, for which a plain all-reduce does the same in one phase."""
        return 1 in self

    def row_of(self, rank: int) -> list[int]:
        """The ranks of its row."""
        first = rank - rank % self.row_length
        return list(range(first, first + self.row_length))

    def column_of(self, rank: int) -> list[int]:
        """The ranks of its column."""
        return list(range(rank % self.row_length, self.row_length * self.num_rows, self.row_length))


def grid(num_ranks: int, ranks_per_node: int = 1) -> Grid:
    """A row for each node where nodes have several ranks and all are full; else about as many rows as columns.

    A prime number of ranks, and a single node, make one line of ranks.
    """
    if ranks_per_node > 1 and num_ranks % ranks_per_node == 0:
        return Grid(ranks_per_node, num_ranks // ranks_per_node)
    divisors = [number for number in range(1, num_ranks + 1) if num_ranks % number == 0]
    nearest = min(divisors, key=lambda number: abs(number - math.sqrt(num_ranks)))
    return Grid(nearest, num_ranks // nearest)


class TorusAllReduce:
    """Sums flat tensors over the ranks of a grid, one after the other, while the caller goes on.

    Every rank starts the same tensors in the same order. On the CPU a thread takes each through its phases, since
    gloo's works cannot be chained; on CUDA they are queued on a stream of their own.

    When a collective has failed, so does everything that is started or waits behind it: the groups are then of no
    more use. What is in flight is never waited for.
    """

    def __init__(self, row: dist.ProcessGroup, column: dist.ProcessGroup) -> None:
        """This rank's groups, of two or more ranks each."""
        self._row, self._column = row, column
        self._failure: Exception | None = None
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stream: torch.cuda.Stream | None = None
        self.close = weakref.finalize(self, self._jobs.put, None)
        """Ends the thread, once it has done what was started. Also done when the object is forgotten."""

    @classmethod
    def form(cls, grid: Grid, rank: int, subgroups: Subgroups) -> Self:
        """Form this rank's row and column. Collective; raises `GroupError` when a rank is gone.

        The grid has to have several rows and several columns.
        """
        ranks = grid.row_of(rank)
        row = subgroups.form(f"torus-row-{ranks[0] // grid.row_length}", ranks)
        column = subgroups.form(f"torus-column-{rank % grid.row_length}", grid.column_of(rank))
        assert row is not None
        assert column is not None
        return cls(row, column)

    @property
    def row_length(self) -> int:
        """Tensors whose length this divides are summed in place, without a copy."""
        return self._row.size()

    @property
    def num_ranks(self) -> int:
        """Over which tensors are summed."""
        return self._row.size() * self._column.size()

    def start(self, flat: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Begin to sum `flat`, shape (length,), in place; it is to be left alone until the future has it.

        The future raises `RuntimeError` when a rank is gone.
        """
        if flat.is_cuda:
            return self._start_on_stream(flat)
        if self._thread is None:
            self._thread = threading.Thread(target=_work_off, args=(self._jobs,), name="torus", daemon=True)
            self._thread.start()
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._jobs.put(functools.partial(self._settle, future, flat))
        return future

    def _settle(self, future: torch.futures.Future[torch.Tensor], flat: torch.Tensor) -> None:
        try:
            if self._failure is not None:
                raise RuntimeError(f"an earlier collective has failed: {self._failure}")
            self._sum(flat)
        except Exception as error:
            self._failure = self._failure or error
            future.set_exception(error)  # type: ignore[arg-type]  # torch's stub asks for a type variable
        else:
            future.set_result(flat)

    def _start_on_stream(self, flat: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        if self._stream is None:
            self._stream = torch.cuda.Stream(flat.device)
        self._stream.wait_stream(torch.cuda.current_stream(flat.device))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[flat.device])
        with torch.cuda.stream(self._stream):
            # Waiting for a work of NCCL's only lets the stream wait, and so does waiting for the future.
            flat.record_stream(self._stream)
            self._settle(future, flat)
        return future

    def _sum(self, flat: torch.Tensor) -> None:
        missing = -len(flat) % self.row_length
        padded = torch.nn.functional.pad(flat, (0, missing)) if missing else flat
        own = _reduce_scatter(padded, self._row)
        all_reduce(own, self._column)
        group: Any = self._row
        group._allgather_base(padded, own).wait()
        if missing:
            flat.copy_(padded[: len(flat)])


def _reduce_scatter(flat: torch.Tensor, row: dist.ProcessGroup) -> torch.Tensor:
    """This rank's part of the row's sum, shape (length / X,)."""
    group: Any = row
    if flat.is_cuda:
        own = flat.new_empty(len(flat) // row.size())
        group._reduce_scatter_base(own, flat).wait()
        return own
    parts = torch.empty_like(flat)
    group.alltoall_base(parts, flat, [], []).wait()
    return parts.view(row.size(), -1).sum(0)


def _work_off(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # or it would keep alive what ends this thread


def torus_hook(torus: TorusAllReduce, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For torch's own data parallelism: `DistributedDataParallel(...).register_comm_hook(torus, torus_hook)`.

    Averages over the ranks, as the default does.
    """
    return torus.start(bucket.buffer().div_(torus.num_ranks))
