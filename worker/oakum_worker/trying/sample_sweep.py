"""Reads samples for a few seconds, as a rank of the trainer would, to find some that cannot be read."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from oakum_worker.data_sets import is_stream
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task
from oakum_worker.trying.chunk_readers import ChunkReader, OwnReader, ReaderProcesses

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
        self._reader: ChunkReader = OwnReader(task)
        if spec.workers:
            self._reader = ReaderProcesses(task, spec.seed, spec.workers)
        self._size = 2

    def __enter__(self) -> SampleSweep:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.abandon()

    @property
    def readers(self) -> str:
        """Text with the number of processes that read; empty where this process reads itself."""
        count = self._spec.workers
        return f"{count} process{'' if count == 1 else 'es'}" if count else ""

    def start_readers(self) -> None:
        """Fork the processes that read, where the spec has any."""
        self._reader.start()

    def run(self) -> Swept:
        """Read samples for about 3 s, or all of them if that takes less. Raises `TaskError`, which names what
        cannot be read or collated."""
        begin_s = began_s = time.perf_counter()
        done = 0
        batches = self._reader.read(self._chunks())
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
        indices = iter(order)
        while chunk := tuple(itertools.islice(indices, self._size)):
            yield chunk
