"""Reads samples in processes of their own, ahead of the steps that need them.

torch's `DataLoader` has the processes, the shared memory and the pinning. Its indices are the reads that are
expected next, without end. Where a rank asks for other samples, because nodes have come or gone or a step is
repeated, a new sequence of reads begins with what was asked for. What was read for the sequence before is dropped,
and what was not yet read is skipped. So nothing that was read ahead is ever part of the trainer's state.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from oakum_worker.data_sets import is_stream
from oakum_worker.errors import TaskError
from oakum_worker.forked import begin_forked
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.reading import SampleReader
from oakum_worker.step.reading_order import Read, ReadingOrder
from oakum_worker.step.sample_packs import Pack, pack, unpack
from oakum_worker.task import Task
from oakum_worker.torch_internals import end_loading, hear_of_ended_loaders_in_reads_alone

_READS_AHEAD = 2
"""Reads that each process has been given, the one under way included."""


class Collated(NamedTuple):
    """A batch that was collated in the process that read it."""

    batch: Any


class ReadAhead:
    """Reads a task's samples in processes of their own. What they read does not depend on their number."""

    def __init__(self, task: Task, seed: int, processes: int) -> None:
        """Starts no process yet. Raises `TaskError` for several processes and a stream, which is read in order."""
        if is_stream(task.dataset) and processes > 1:
            raise TaskError(
                f"the data set ({type(task.dataset).__name__}) is a stream, which is read in its own order, and "
                f"workers is {processes}: set workers to 1, or give the data set a __getitem__"
            )
        self._task, self._seed, self._processes = task, seed, processes
        self._answers: Iterator[_Answer] | None = None
        self._own: Sequence[BaseProcess] = ()
        self._wanted: Any = multiprocessing.get_context("fork").RawValue(ctypes.c_uint64, 0)
        """Number of the present sequence, which the processes see."""
        self._expected: deque[Read] = deque()
        """The present sequence's reads that were dealt to the processes and not yet used."""
        self._first: Read | None = None
        self._following: Iterator[Read] = iter(())
        """With `_first`, the present sequence's reads that were not yet dealt to the processes."""

    def start(self) -> None:
        """Fork the processes, unless that is done. To be called before this process opens connections to others:
        a forked process would keep them open."""
        if self._answers is not None:
            return
        answers = _Answers(self._task, self._seed, self._wanted)
        others = multiprocessing.active_children()
        with _forking():
            loader = DataLoader(
                answers,
                batch_size=None,
                sampler=_Orders(weakref.ref(self)),
                num_workers=self._processes,
                collate_fn=_unchanged,
                pin_memory=next(self._task.model.parameters()).device.type == "cuda",
                worker_init_fn=partial(_begin_process, os.getpid()),
                prefetch_factor=_READS_AHEAD,
                multiprocessing_context="fork",
            )
            self._answers = iter(loader)
            hear_of_ended_loaders_in_reads_alone(self._answers)
        answers.forget()
        self._own = [process for process in multiprocessing.active_children() if process not in others]
        weakref.finalize(self, _end, self._answers, self._own)

    def abandon(self) -> None:
        """Kill the processes, whatever they are reading. Nothing can be read afterwards."""
        for process in self._own:
            process.kill()

    def read(self, wanted: Read, following: Iterator[Read]) -> Any:
        """The samples of `wanted`, as the task's `collate` takes them, or `Collated` where torch's
        `default_collate` collates them. `following` are the reads that are expected after it; they are taken only
        if `wanted` was not expected itself.

        Raises whatever the data set raises, and `TaskError` if a process has ended.
        """
        self.start()
        if not self._expected or self._expected[0] != wanted:
            self._wanted.value += 1
            self._expected.clear()
            self._first, self._following = wanted, following
        answer = self._next_answer()
        while answer.sequence != self._wanted.value or answer.read != wanted:
            answer = self._next_answer()
        self._expected.popleft()
        if answer.error is not None:
            raise answer.error
        samples = answer.samples
        return unpack(samples) if isinstance(samples, Pack) else samples

    def next_order(self) -> _Order:
        """The next order for a process."""
        read, self._first = self._first or next(self._following, None), None
        if read is not None:
            self._expected.append(read)
        return _Order(self._wanted.value, read)

    def _next_answer(self) -> _Answer:
        assert self._answers is not None
        try:
            return next(self._answers)
        except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
            raise TaskError(
                f"a process that reads samples has ended: {error}; if memory ran out, lower workers "
                f"({self._processes})"
            ) from error


def read_in_order(
    readers: ReadAhead, order: ReadingOrder, cursor: Cursor, positions: range, indices: Sequence[int]
) -> Any:
    """What `ReadAhead.read` returns for the samples `indices`, at `positions` of the global batch at the
    cursor."""
    wanted = Read(cursor.epoch, cursor.consumed + positions.start, tuple(indices))
    return readers.read(wanted, order.following(cursor, positions))


class _Order(NamedTuple):
    """What a process is to read; None: nothing."""

    sequence: int
    read: Read | None


class _Answer(NamedTuple):
    """What a process has read."""

    sequence: int
    read: Read | None
    """None: nothing was read, because it was not wanted any more."""
    samples: Any = None
    error: Exception | None = None


class _Orders(Sampler[_Order]):
    """The orders that the data loader deals to its processes, one whenever it has returned an answer; without end.

    Keeps no `ReadAhead` alive, and so nothing that the trainer's state is made of.
    """

    def __init__(self, readers: Callable[[], ReadAhead | None]) -> None:
        self._readers = readers

    def __iter__(self) -> Iterator[_Order]:
        while True:
            yield self._next()

    def _next(self) -> _Order:
        readers = self._readers()
        return _Order(0, None) if readers is None else readers.next_order()


class _Answers(Dataset[_Answer]):
    """The loader's data set, in the processes that read: its indices are orders and its elements answers."""

    def __init__(self, task: Task, seed: int, wanted: Any) -> None:
        """`wanted.value` is the number of the present sequence, which all processes share."""
        self._wanted = wanted
        self._collates = task.collate is default_collate
        self._watched = None
        if not is_stream(task.dataset) and not hasattr(task.dataset, "__getitems__"):
            self._watched = _Watched(task.dataset, wanted)
            task = dataclasses.replace(task, dataset=self._watched)
        self._reader = SampleReader(task, seed)

    def forget(self) -> None:
        """Drop the task, in the process that does not read."""
        del self._reader, self._watched

    def __getitem__(self, order: _Order) -> _Answer:
        sequence, read = order
        if read is None or sequence != self._wanted.value:
            return _Answer(sequence, None)
        if self._watched is not None:
            self._watched.sequence = sequence
        try:
            return _Answer(sequence, read, self._read(read))
        except _NotWantedError:
            return _Answer(sequence, None)
        except Exception as error:
            return _Answer(sequence, read, error=_sendable(error))

    def _read(self, read: Read) -> Any:
        samples = self._reader.read(read.epoch, read.position, read.indices)
        if self._collates:
            return Collated(default_collate(samples))
        return pack(samples) if type(samples) is list else samples


class _NotWantedError(Exception):
    """The read under way belongs to a sequence of the past."""


class _Watched:
    """A map-style data set of which no further sample is read once the sequence is one of the past."""

    def __init__(self, dataset: Any, wanted: Any) -> None:
        self._dataset, self._wanted = dataset, wanted
        self.sequence = 0

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        if self.sequence != self._wanted.value:
            raise _NotWantedError
        return self._dataset[index]


def _end(answers: Iterator[_Answer], processes: Sequence[BaseProcess]) -> None:
    """End the processes of a reader that is no longer used, also one that hangs."""
    end_loading(answers)
    for process in processes:
        if process.is_alive():
            process.kill()


def _unchanged(answer: Any) -> Any:
    return answer


@contextlib.contextmanager
def _forking() -> Iterator[None]:
    """Context in which processes can be forked while another thread waits for a line of standard input: a child
    closes `sys.stdin`, and would wait for that thread's lock for ever."""
    stdin, sys.stdin = sys.stdin, None  # as where a process has none
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of more processes than cores, and of threads
            yield
    finally:
        sys.stdin = stdin


def _begin_process(parent: int, _: int) -> None:
    """Prepare a process that reads: it ends with its parent, and heeds no signal that is sent to a whole job."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    begin_forked(parent)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _sendable(error: Exception) -> Exception:
    """The error, or a `TaskError` of its text if the error cannot be pickled, with a note of where it was
    raised."""
    where = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  its own bytes
    except Exception:
        error = TaskError(f"{type(error).__name__}: {error}")
    error.add_note(f"raised in a process that reads samples:\n{where}")
    return error
