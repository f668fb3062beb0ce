"""Reads samples so that what is drawn while one is read depends on (seed, epoch, sample) alone.

Seeding the generators for every sample takes longer than reading many a sample, so a generator is seeded for each
only once the data set has been seen to draw from it: it is seeded with a fixed number before a chunk is read, and
when it then gives another number than its first, somebody drew. That chunk is read again.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from oakum_worker.data_sets import SampleStream, is_stream, read_samples
from oakum_worker.errors import TaskError
from oakum_worker.randomness import mix, signed
from oakum_worker.task import Task

_PROBE = 0x0A4B
_PATIENCE = 10


class SampleReader:
    """Reads a task's samples, from a map-style data set or a stream.

    Leaves the global generators in an arbitrary state.
    """

    def __init__(self, task: Task, seed: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` gives seconds."""
        self._dataset: Any = task.dataset
        self._draws = _Draws(seed)
        self._stream = _OpenStream(task.dataset, clock) if is_stream(task.dataset) else None

    def read(self, epoch: int, position: int, indices: Sequence[int]) -> Any:
        """What the task's `collate` takes: the samples at `indices`, in their order.

        Of a stream, as many samples as there are indices from number `position` of the epoch's order on.
        Raises `TaskError` for a stream that ends early, and whatever the data set raises.
        """
        if self._stream is not None:
            numbers = range(position, position + len(indices))
            go = partial(self._stream.go_to, epoch, position)
            return self._draws.read(epoch, numbers, None, self._stream.next, go)
        return self._draws.read(epoch, indices, partial(read_samples, self._dataset, indices), self._read_one)

    def _read_one(self, index: int) -> Any:
        if hasattr(self._dataset, "__getitem__"):
            return self._dataset[index]
        raise TaskError(
            f"the data set ({type(self._dataset).__name__}) draws random numbers and reads only many samples at "
            "once, which would make them depend on the number of nodes: give it a __getitem__"
        )


@dataclass(frozen=True)
class _Generator:
    """A global generator: how to seed it, and how to have a number of it."""

    seed: Callable[[int], object]
    draw: Callable[[], float]


def _numpy_random() -> Any:
    return sys.modules["numpy"].random


_GENERATORS = {
    "torch": _Generator(
        lambda seed: torch.default_generator.manual_seed(signed(seed)),
        lambda: torch.empty((), dtype=torch.int64).random_().item(),
    ),
    "random": _Generator(random.seed, random.random),
    "numpy": _Generator(
        lambda seed: _numpy_random().seed(seed & 0xFFFFFFFF), lambda: float(_numpy_random().random_sample())
    ),
}


class _Draws:
    """Which generators the data set draws from, as far as it has been seen."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._seen: set[str] = set()
        self._first: dict[str, float] = {}

    def read(
        self,
        epoch: int,
        numbers: Sequence[int],
        read_all: Callable[[], Any] | None,
        read_one: Callable[[int], Any],
        begin: Callable[[], object] = lambda: None,
    ) -> Any:
        """The samples, at once if nothing is drawn, or else one by one, with generators seeded for each."""
        while True:
            unseen = [name for name in _GENERATORS if name not in self._seen and name in sys.modules]
            self._probe(unseen)
            begin()
            if read_all is not None and not self._seen:
                samples = read_all()
            else:
                samples = [self._read_seeded(epoch, number, read_one) for number in numbers]
            drawn_from = [name for name in unseen if _GENERATORS[name].draw() != self._first[name]]
            if not drawn_from:
                return samples
            self._seen.update(drawn_from)

    def _probe(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._first:
                _GENERATORS[name].seed(_PROBE)
                self._first[name] = _GENERATORS[name].draw()
            _GENERATORS[name].seed(_PROBE)

    def _read_seeded(self, epoch: int, number: int, read_one: Callable[[int], Any]) -> Any:
        if self._seen:
            seed = mix(self._seed, epoch, number)
            for name in self._seen:
                _GENERATORS[name].seed(seed)
        return read_one(number)


class _OpenStream:
    """A stream, and the iterator that stands somewhere in it.

    To get ahead it skips samples or opens the stream anew, whichever has taken less time so far. Since the first
    opening may have been an unusually slow one, it tries again when skipping has taken ten times as long.
    """

    def __init__(self, stream: SampleStream, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._iterator: Iterator[Any] = iter(())
        self._at: tuple[int, int] | None = None
        self._opened = False
        self._open_s = self._skipped_s = 0.0
        self._read_s, self._num_read = 0.0, 0

    def go_to(self, epoch: int, position: int) -> None:
        """Stand before the sample with that number in the epoch."""
        if self._at is None or self._at[0] != epoch or position < self._at[1] or self._opens_faster(position):
            self._open(epoch, position)
            return
        before = self._read_s
        while self._at[1] < position:
            self.next(self._at[1])
        self._skipped_s += self._read_s - before

    def next(self, number: int) -> Any:
        """The next sample, which has that number in the epoch."""
        assert self._at is not None
        assert self._at[1] == number
        epoch, self._at = self._at[0], None  # Whatever is raised, the iterator is then worth nothing.
        began_s = self._clock()
        try:
            sample = next(self._iterator)
        except StopIteration:
            raise TaskError(
                f"the data set ({type(self._stream).__name__}) has {len(self._stream)} samples, but there is no "
                f"number {number} in epoch {epoch}: let samples(epoch, start) give those from `start` to the last"
            ) from None
        took_s = self._clock() - began_s
        if self._opened:
            # An iterator opens the stream when it is asked for its first sample.
            self._open_s += took_s
            self._opened = False
        else:
            self._read_s += took_s
            self._num_read += 1
        self._at = epoch, number + 1
        return sample

    def _opens_faster(self, position: int) -> bool:
        assert self._at is not None
        gap = position - self._at[1]
        if gap == 0:
            return False
        # Skipping also reads the sample at `position`, which is part of what opening took.
        return (
            gap + 1
        ) * self._read_s > self._open_s * self._num_read or self._skipped_s > _PATIENCE * self._open_s

    def _open(self, epoch: int, position: int) -> None:
        if (close := getattr(self._iterator, "close", None)) is not None:
            close()
        began_s = self._clock()
        self._iterator = iter(self._stream.samples(epoch, position))
        self._open_s = self._clock() - began_s
        self._opened, self._skipped_s = True, 0.0
        self._at = epoch, position
