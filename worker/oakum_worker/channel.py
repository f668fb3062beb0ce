"""The line between an agent and one of its rank processes: JSON lines over two pipes.

    agent -> rank   the rank's standard input    Command
    rank -> agent   an inherited pipe            News

Both pipes break when either process dies, whatever killed it, and the other side notices at once.
"""

from __future__ import annotations

import os
import threading
from typing import IO

from pydantic import BaseModel, ConfigDict

from oakum_worker.protocol import Directive, Endpoint, Failure, Phase, Progress, Switch


class Command(BaseModel):
    """What an agent tells a rank. The newest one holds."""

    model_config = ConfigDict(frozen=True)

    directive: Directive | None = None
    close: bool = False
    """Leave at the next step boundary without waiting for the service."""
    save: bool = False
    """Write a durable checkpoint before that: nobody else will."""


class News(BaseModel):
    """What a rank tells its agent; only what has changed is set. Without anything, it is a sign of life."""

    model_config = ConfigDict(frozen=True)

    phase: Phase | None = None
    endpoint: Endpoint | None = None
    generation: int | None = None
    broken: int | None = None
    progress: Progress | None = None
    switch: Switch | None = None
    failure: Failure | None = None
    warning: str | None = None
    hangs: bool | None = None
    """The task's code takes longer for one step than any step may: start the rank anew."""


class NewsWriter:
    """The rank's end of the pipe to its agent. Any thread may write."""

    def __init__(self, descriptor: int) -> None:
        self._pipe = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8")
        self._lock = threading.Lock()

    def send(self, **news: object) -> None:
        """Write one line of news; an agent that is gone is not an error here: standard input tells."""
        line = News.model_validate(news).model_dump_json(exclude_none=True)
        try:
            with self._lock:
                self._pipe.write(line + "\n")
        except (BrokenPipeError, ValueError):
            return


def write_command(pipe: IO[bytes], command: Command) -> None:
    """Write one command to a rank's standard input; a rank that is gone is noticed by its exit."""
    try:
        pipe.write(command.model_dump_json().encode() + b"\n")
        pipe.flush()
    except (BrokenPipeError, ValueError):
        return
