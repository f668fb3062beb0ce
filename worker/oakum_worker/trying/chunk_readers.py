"""Read chunks of a task's samples: in this process, or in processes of their own where the spec has `workers`.

A data set may work in the process that built it and in no other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from oakum_worker.data_sets import is_stream
from oakum_worker.errors import TaskError
from oakum_worker.profiling.sample_errors import collate, ended_early, read, some_indices
from oakum_worker.step.read_ahead import Collated, ReadAhead
from oakum_worker.step.reading_order import Read
from oakum_worker.task import Task
from oakum_worker.task_checks import describe

Chunks = Iterator[tuple[int, ...]]
"""The indices of samples that are read together; of a stream, the indices in order."""


class ChunkReader(Protocol):
    """Reads and collates chunks of samples."""

    def start(self) -> None:
        """Start the processes that read, if there are any."""

    def read(self, chunks: Chunks) -> Iterator[int]:
        """Read the chunks. Yields the number of samples of each. Raises `TaskError`, which names what cannot be
        read or collated."""

    def abandon(self) -> None:
        """End the processes that read, whatever they are at."""


class OwnReader:
    """Reads in this process."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def start(self) -> None:
        """Nothing has to be started."""

    def abandon(self) -> None:
        """Nothing has to be ended."""

    def read(self, chunks: Chunks) -> Iterator[int]:
        """Read the chunks, of a stream from its beginning. Yields the number of samples of each."""
        stream = self._open_stream()
        for chunk in chunks:
            collate(self._task, self._samples(chunk, stream), f"the samples {some_indices(chunk)}")
            yield len(chunk)

    def read_once(self, indices: Sequence[int], which: str) -> None:
        """Read and collate these samples, of a stream the first ones. Raises `TaskError`, which names the sample
        that cannot be read, or calls those that cannot be collated `which`."""
        collate(self._task, self._samples(indices, self._open_stream()), which)

    def _open_stream(self) -> Iterator[Any] | None:
        return iter(self._task.dataset.samples(0, 0)) if is_stream(self._task.dataset) else None

    def _samples(self, indices: Sequence[int], stream: Iterator[Any] | None) -> Any:
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


class ReaderProcesses:
    """Reads in other processes, ahead of what is wanted."""

    def __init__(self, task: Task, seed: int, workers: int) -> None:
        """Starts no process yet. Raises `TaskError` for several processes and a stream."""
        self._task, self._workers = task, workers
        self._processes = ReadAhead(task, seed, workers)

    def start(self) -> None:
        """Fork the processes."""
        self._processes.start()

    def abandon(self) -> None:
        """End the processes."""
        self._processes.abandon()

    def read(self, chunks: Chunks) -> Iterator[int]:
        """Read the chunks. Yields the number of samples of each."""
        is_in_order = is_stream(self._task.dataset)
        reads = (Read(0, chunk[0] if is_in_order else 0, chunk) for chunk in chunks)
        wanted, following = itertools.tee(reads)
        next(following, None)
        for wish in wanted:
            self._read_one(wish, following)
            yield len(wish.indices)

    def _read_one(self, wish: Read, following: Iterator[Read]) -> None:
        which = f"the samples {some_indices(wish.indices)}"
        try:
            samples = self._processes.read(wish, following)
        except TaskError:
            raise
        except Exception as error:
            self._blame(wish.indices, which)
            raise TaskError(
                f"reading {which} raised {type(error).__name__}: {error} in a process that reads samples "
                f"(workers: {self._workers}), and nothing in the process that built the task: have the data "
                "set open connections, files and GPUs in __getitem__, anew in each process, or leave workers out"
            ) from error
        if not isinstance(samples, Collated):
            collate(self._task, samples, which)

    def _blame(self, indices: tuple[int, ...], which: str) -> None:
        """Read and collate the samples in this process. Raises `TaskError`, which names the sample, where that
        fails here, too."""
        if is_stream(self._task.dataset):
            indices = tuple(range(indices[-1] + 1))
        OwnReader(self._task).read_once(indices, which)
