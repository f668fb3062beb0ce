"""Reads samples so that the random numbers drawn while reading a sample depend only on (seed, epoch, sample).

Seeding a generator for every sample often takes longer than reading the sample. So a generator is seeded for each
sample only after the data set has been seen to draw from it. To see that, the generator is seeded with a fixed
number before a chunk is read; if its next number afterwards is not the first one of that seed, the data set has
drawn from it. That chunk is then read again. The first chunk in which the data set asks for a sample's own
generator is read again, too.
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
from oakum_worker.generators import Reading, reading
from oakum_worker.randomness.counters import mix, signed
from oakum_worker.task import Task

_PROBE = 0x0A4B
_PATIENCE = 10
_ASKED = "asked"
"""Stands in place of a generator's name if the data set asks for generators that belong to samples."""


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
        """The samples at `indices`, in this order, as the task's `collate` takes them.

        A stream has no indices: it yields `len(indices)` samples, beginning with number `position` of the epoch.
        Raises `TaskError` for a stream that ends early or a data set that draws random numbers and has no
        `__getitem__`, and whatever the data set raises.
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
    """A global random generator: a function that seeds it and a function that draws a number from it."""

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
    """Reads samples, so that their random draws depend only on the seed, the epoch and the sample's number.

    Once a read is seen to draw from a random generator, it is repeated, and from then on the generators are
    seeded before each sample.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn_from: set[str] = set()
        self._first: dict[str, float] = {}

    def read(
        self,
        epoch: int,
        numbers: Sequence[int],
        read_all: Callable[[], Any] | None,
        read_one: Callable[[int], Any],
        begin: Callable[[], object] = lambda: None,
    ) -> Any:
        """The samples `numbers`: with one call of `read_all` while no draw has been seen, else one by one with
        generators seeded for each. `begin` is called before each attempt."""
        while True:
            unseen = [name for name in _GENERATORS if name not in self._drawn_from and name in sys.modules]
            self._probe(unseen)
            begin()
            with reading() as present:
                if read_all is not None and not self._drawn_from:
                    samples = read_all()
                else:
                    samples = [self._read_seeded(present, epoch, number, read_one) for number in numbers]
            drawn_from = [name for name in unseen if _GENERATORS[name].draw() != self._first[name]]
            if present.was_asked and _ASKED not in self._drawn_from:
                drawn_from.append(_ASKED)
            if not drawn_from:
                return samples
            self._drawn_from.update(drawn_from)

    def _probe(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._first:
                _GENERATORS[name].seed(_PROBE)
                self._first[name] = _GENERATORS[name].draw()
            _GENERATORS[name].seed(_PROBE)

    def _read_seeded(self, present: Reading, epoch: int, number: int, read_one: Callable[[int], Any]) -> Any:
        if self._drawn_from:
            seed = mix(self._seed, epoch, number)
            present.begin(seed)
            for name in self._drawn_from - {_ASKED}:
                _GENERATORS[name].seed(seed)
        return read_one(number)


class _OpenStream:
    """A stream and an iterator at some position in it.

    To move forward it skips samples or opens the stream again, whichever has taken less time so far. The last
    opening may have been unusually slow, so it opens the stream again once skipping has taken ten times as long.
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
        """Move to before the sample with number `position` in the epoch."""
        if self._at is None or self._at[0] != epoch or position < self._at[1] or self._opens_faster(position):
            self._open(epoch, position)
            return
        before = self._read_s
        while self._at[1] < position:
            self.next(self._at[1])
        self._skipped_s += self._read_s - before

    def next(self, number: int) -> Any:
        """The next sample, which has this number in the epoch. Raises `TaskError` if the stream has ended."""
        assert self._at is not None
        assert self._at[1] == number
        epoch, self._at = self._at[0], None  # If reading raises, the iterator's position is unknown.
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
