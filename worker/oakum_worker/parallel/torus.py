"""2D-torus all-reduce (Mikami et al., arXiv:1811.05233): fewer steps than a ring over many ranks.

The N ranks form a grid of Y rows of X ranks each; where nodes have several ranks, a row lies within a node, if
all nodes can be cut into such rows. A flat tensor of G bytes is

1. reduce-scattered along the rows: each rank has the row's sum of G / X bytes,
2. all-reduced along the columns: each rank has the sum over all ranks of its G / X bytes,
3. all-gathered along the rows: each rank has all of the sum.

With rings in each phase this takes 2(X-1) + 2(Y-1) steps instead of the 2(N-1) of one ring over all ranks, while
every rank sends 2G(N-1)/N bytes in both cases. Each step costs latency, so the torus wins where messages are
short. Only G / X bytes of a rank leave its row, which helps where rows are nodes with faster links inside.

All ranks get the same bits: each part of the sum is computed in one column, whose all-reduce gives equal bits to
its ranks, and is copied from there.

gloo's reduce-scatter is an all-reduce that discards most of its result and sends 2G(X-1)/X bytes. On the CPU the
ranks of a row therefore exchange their parts in one all-to-all of G(X-1)/X bytes, and each sums its own part.
"""

# No `from __future__ import annotations`: torch compares a hook's annotations with its types.

import functools
import math
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist

from oakum_worker.parallel import nccl
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.waiting import all_gather_flat, all_reduce, reduce_scatter_flat, wait_for


class TorusShape(NamedTuple):
    """A grid of N = `row_length` * `num_rows` ranks, numbered row by row."""

    row_length: int
    """X of the paper: number of ranks in a row, which is the number of columns."""
    num_rows: int
    """Y of the paper: number of rows, which is the number of ranks in a column."""

    @property
    def is_plain(self) -> bool:
        """Whether the grid is a single row or column, in which one plain all-reduce sums as well."""
        return 1 in self

    def row_of(self, rank: int) -> list[int]:
        """The ranks in the row of `rank`."""
        first = rank - rank % self.row_length
        return list(range(first, first + self.row_length))

    def column_of(self, rank: int) -> list[int]:
        """The ranks in the column of `rank`."""
        return list(range(rank % self.row_length, self.row_length * self.num_rows, self.row_length))


def grid(num_ranks: int, node_sizes: Sequence[int] = ()) -> TorusShape:
    """The grid for `num_ranks` ranks, of which those of a node are consecutive: `node_sizes` has how many each
    node has, in their order.

    A row lies within a node, and is as long as rows of one length can be on all nodes: where nodes are equal, it
    is a node. Where that would be rows of one rank, or nothing is known of nodes, the grid is as square as
    possible. A prime number of ranks, or a single node, gives one row or column.
    """
    if (row_length := math.gcd(*node_sizes)) > 1:
        return TorusShape(row_length, num_ranks // row_length)
    divisors = [number for number in range(1, num_ranks + 1) if num_ranks % number == 0]
    nearest = min(divisors, key=lambda number: abs(number - math.sqrt(num_ranks)))
    return TorusShape(nearest, num_ranks // nearest)


class TorusAllReduce:
    """Sums flat tensors over the ranks of a grid, one after the other, in the background.

    Every rank has to start the same tensors in the same order. On the CPU a thread runs the three phases of each
    tensor, because gloo's operations cannot be chained; on CUDA the phases are queued on a separate stream.

    After a failed collective every later one fails, too, because the groups are unusable. Closing does not wait
    for collectives in progress.
    """

    def __init__(self, row: dist.ProcessGroup, column: dist.ProcessGroup) -> None:
        """`row` and `column` are this rank's groups, of at least two ranks each."""
        self._row, self._column = row, column
        self._failure: Exception | None = None
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stream: Any = None
        """On a GPU: the stream of the phases."""
        self.close = weakref.finalize(self, self._jobs.put, None)
        """Ends the thread after the work already started. Runs by itself when the object is garbage-collected."""

    @classmethod
    def form(cls, grid: TorusShape, rank: int, subgroups: Subgroups) -> Self:
        """Collective: form the groups of this rank's row and column. Raises `GroupError` when a rank is gone.

        The grid must have several rows and several columns.
        """
        ranks = grid.row_of(rank)
        row = subgroups.form(f"torus-row-{ranks[0] // grid.row_length}", ranks)
        column = subgroups.form(f"torus-column-{rank % grid.row_length}", grid.column_of(rank))
        assert row is not None
        assert column is not None
        return cls(row, column)

    @property
    def row_length(self) -> int:
        """X, the number of ranks in a row. A tensor whose length is a multiple of X is summed without a copy."""
        return self._row.size()

    @property
    def num_ranks(self) -> int:
        """Number of ranks over which tensors are summed."""
        return self._row.size() * self._column.size()

    def start(self, flat: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Begin to sum `flat`, of shape (length,), in place. Do not touch it before the returned future is done.

        The future raises `RuntimeError` when a rank is gone.
        """
        if nccl.orders(flat.device):
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
        device: Any = torch.get_device_module(flat.device)
        if self._stream is None:
            self._stream = device.Stream(flat.device)
        self._stream.wait_stream(device.current_stream(flat.device))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[flat.device])
        with device.stream(self._stream):
            # With NCCL, waiting for an operation or for the future makes only the stream wait.
            flat.record_stream(self._stream)
            self._settle(future, flat)
        return future

    def _sum(self, flat: torch.Tensor) -> None:
        missing = -len(flat) % self.row_length
        padded = torch.nn.functional.pad(flat, (0, missing)) if missing else flat
        own = _reduce_scatter(padded, self._row)
        all_reduce(own, self._column)
        all_gather_flat(padded, own, self._row)
        if missing:
            flat.copy_(padded[: len(flat)])


def _reduce_scatter(flat: torch.Tensor, row: dist.ProcessGroup) -> torch.Tensor:
    """Reduce-scatter over the row: returns this rank's part of the sum, shape (length / X,)."""
    group: Any = row
    if nccl.orders(flat.device):
        own = flat.new_empty(len(flat) // row.size())
        reduce_scatter_flat(own, flat, row)
        return own
    parts = torch.empty_like(flat)
    wait_for(group.alltoall_base(parts, flat, [], []), flat)
    return parts.view(row.size(), -1).sum(0)


def _work_off(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # The last job would otherwise keep the object alive whose finalizer ends this thread.


def torus_hook(torus: TorusAllReduce, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Communication hook for torch's DistributedDataParallel that averages over the ranks, as the default does.

    Use it by `DistributedDataParallel(...).register_comm_hook(torus, torus_hook)`.
    """
    return torus.start(bucket.buffer().div_(torus.num_ranks))
