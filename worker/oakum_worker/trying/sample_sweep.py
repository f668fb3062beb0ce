"""Reads samples for a few seconds, as a rank of the trainer would, to find some that cannot be read.

Where the spec has `workers`, they are read in processes of their own: a data set may work in the process that
built it and in no other.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from oakum_worker.data_sets import is_stream
from oakum_worker.errors import TaskError
from oakum_worker.profiling.sample_errors import collate, ended_early, few, read
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.read_ahead import Collated, ReadAhead
from oakum_worker.step.reading_order import Read
from oakum_worker.task import Task
from oakum_worker.task_checks import describe

_SWEEP_S = 3.0
"""Seconds spent on reading samples to find unreadable ones."""
_MOST_INDICES = 100_000
_LARGEST_CHUNK = 256


@dataclass(frozen=True)
class Swept:
    """What a sweep has read."""

    samples: int
    read_s: float
    """Seconds from one sample to the next."""


class SampleSweep:
    """Reads and collates samples of a task, in growing chunks. Leaving its context ends its processes."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        """Starts no process yet. Raises `TaskError` for several processes and a stream."""
        self._task, self._spec = task, spec
        self._readers = ReadAhead(task, spec.seed, spec.workers) if spec.workers else None
        self._size = 2

    def __enter__(self) -> SampleSweep:
        return self

    def __exit__(self, *_: object) -> None:
        if self._readers is not None:
            self._readers.abandon()

    @property
    def readers(self) -> str:
        """Text with the number of processes that read; empty where this process reads itself."""
        count = self._spec.workers
        return f"{count} process{'' if count == 1 else 'es'}" if count else ""

    def start_readers(self) -> None:
        """Fork the processes that read, where the spec has any."""
        if self._readers is not None:
            self._readers.start()

    def run(self) -> Swept:
        """Read samples for about 3 s, or all of them if that takes less. Raises `TaskError`, which names what
        cannot be read or collated."""
        begin_s = began_s = time.perf_counter()
        done = 0
        chunks = self._chunks()
        batches = self._by_processes(chunks, self._readers) if self._readers is not None else self._here(chunks)
        # Time is looked at before a chunk is read: a sweep without any reads none.
        while time.perf_counter() - begin_s < _SWEEP_S and (count := next(batches, 0)):
            done += count
            now_s = time.perf_counter()
            if now_s - began_s < _SWEEP_S / 10:
                self._size = min(2 * self._size, self._largest_share, _LARGEST_CHUNK)
            began_s = now_s
        return Swept(done, (time.perf_counter() - begin_s) / max(done, 1))

    @property
    def _largest_share(self) -> int:
        spec = self._spec
        share = -(-spec.global_batch // (spec.min_nodes * spec.ranks_per_node))
        return min(spec.micro_batch or share, share)

    def _chunks(self) -> Iterator[tuple[int, ...]]:
        """The indices of samples in the order in which they are read: the first, the last, then others at random.
        Of a stream, the indices in order."""
        total = len(self._task.dataset)
        order: Sequence[int] = range(min(total, _MOST_INDICES))
        if not is_stream(self._task.dataset):
            ends = list(dict.fromkeys([0, total - 1]))
            some = random.Random(self._spec.seed).sample(range(total), min(total, _MOST_INDICES))
            order = list(dict.fromkeys([*ends, *some]))
        left = iter(order)
        while chunk := tuple(itertools.islice(left, self._size)):
            yield chunk

    def _here(self, chunks: Iterator[tuple[int, ...]]) -> Iterator[int]:
        """Read chunks in this process. Yields the number of samples of each."""
        stream = self._open_stream()
        for chunk in chunks:
            collate(self._task, self._read_here(chunk, stream), f"the samples {few(chunk)}")
            yield len(chunk)

    def _by_processes(self, chunks: Iterator[tuple[int, ...]], readers: ReadAhead) -> Iterator[int]:
        """Read chunks in other processes, ahead of those that are wanted. Yields the number of samples of each."""
        is_in_order = is_stream(self._task.dataset)
        reads = (Read(0, chunk[0] if is_in_order else 0, chunk) for chunk in chunks)
        wanted, following = itertools.tee(reads)
        next(following, None)
        for wish in wanted:
            self._read_by_processes(wish, following, readers)
            yield len(wish.indices)

    def _read_by_processes(self, wish: Read, following: Iterator[Read], readers: ReadAhead) -> None:
        task, which = self._task, f"the samples {few(wish.indices)}"
        try:
            found = readers.read(wish, following)
        except TaskError:
            raise
        except Exception as error:
            self._blame(wish.indices, which)
            raise TaskError(
                f"reading {which} raised {type(error).__name__}: {error} in a process that reads samples "
                f"(workers: {self._spec.workers}), and nothing in the process that built the task: have the data "
                "set open connections, files and GPUs in __getitem__, anew in each process, or leave workers out"
            ) from error
        if not isinstance(found, Collated):
            collate(task, found, which)

    def _blame(self, indices: tuple[int, ...], which: str) -> None:
        """Read and collate the samples in this process. Raises `TaskError`, which names the sample, where that
        fails here, too."""
        if is_stream(self._task.dataset):
            indices = tuple(range(indices[-1] + 1))
        collate(self._task, self._read_here(indices, self._open_stream()), which)

    def _open_stream(self) -> Iterator[Any] | None:
        return iter(self._task.dataset.samples(0, 0)) if is_stream(self._task.dataset) else None

    def _read_here(self, indices: Sequence[int], stream: Iterator[Any] | None) -> Any:
        if stream is None:
            return read(self._task, indices)
        return [self._next_of(stream, number) for number in indices]

    def _next_of(self, stream: Iterator[Any], number: int) -> Any:
        try:
            return next(stream)
        except StopIteration:
            raise TaskError(ended_early(self._task, number)) from None
        except (Exception, SystemExit) as error:
            raise TaskError(
                f"reading sample {number} of the stream ({type(self._task.dataset).__name__}) raised "
                f"{describe(error)}: correct the data set"
            ) from error
