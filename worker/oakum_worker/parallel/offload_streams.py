"""Three streams on which a GPU copies in, computes and copies out at the same time; a CPU works sequentially."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import torch


class WorkStream:
    """A CUDA stream, or sequential work on a CPU: work is done in the order in which it is given."""

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        """`stream` None: `do` runs the work at once and returns when it is done."""
        self._stream = stream

    def do(self, work: Callable[[], object]) -> None:
        """Run `work` on this stream. On a GPU it may be unfinished when this returns."""
        with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            work()

    def mark(self) -> torch.cuda.Event | None:
        """Event at the end of the work given so far; None where that work is done already."""
        return None if self._stream is None else self._stream.record_event()

    def wait(self, mark: torch.cuda.Event | None) -> None:
        """Let work that is given from now on start only after `mark`, an event of another stream."""
        if self._stream is not None and mark is not None:
            self._stream.wait_event(mark)

    def finish(self) -> None:
        """Wait until all work is done."""
        if self._stream is not None:
            self._stream.synchronize()


class WorkStreams(NamedTuple):
    """The three streams of one device, for copies to it, computing, and copies from it."""

    inward: WorkStream
    """Copies from the host."""
    compute: WorkStream
    """Computations; on a GPU the stream that torch uses at present."""
    outward: WorkStream
    """Copies to the host."""


def work_streams_of(device: torch.device) -> WorkStreams:
    """Streams for one step on `device`."""
    if device.type != "cuda":
        return WorkStreams(WorkStream(), WorkStream(), WorkStream())
    compute = torch.cuda.current_stream(device)
    return WorkStreams(
        WorkStream(torch.cuda.Stream(device)), WorkStream(compute), WorkStream(torch.cuda.Stream(device))
    )
