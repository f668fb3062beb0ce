"""What a GPU does at the same time: copies to it, computing, copies from it. A CPU does one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import torch


class Lane:
    """Work that a device does in the order in which it is given."""

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        """Without a stream all work is done at once."""
        self._stream = stream

    def do(self, work: Callable[[], object]) -> None:
        """Give the device some work. A GPU may still have to do it when this returns."""
        with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            work()

    def mark(self) -> torch.cuda.Event | None:
        """The end of what has been given so far; None where that is done."""
        return None if self._stream is None else self._stream.record_event()

    def wait(self, mark: torch.cuda.Event | None) -> None:
        """What is given from now on is done after another lane's mark."""
        if self._stream is not None and mark is not None:
            self._stream.wait_event(mark)

    def finish(self) -> None:
        """Return when everything is done."""
        if self._stream is not None:
            self._stream.synchronize()


class Lanes(NamedTuple):
    """A device's."""

    inward: Lane
    """Copies from the host."""
    compute: Lane
    """Where everything else is computed, too."""
    outward: Lane
    """Copies to the host."""


def lanes_of(device: torch.device) -> Lanes:
    """Lanes for a step."""
    if device.type != "cuda":
        return Lanes(Lane(), Lane(), Lane())
    compute = torch.cuda.current_stream(device)
    return Lanes(Lane(torch.cuda.Stream(device)), Lane(compute), Lane(torch.cuda.Stream(device)))
