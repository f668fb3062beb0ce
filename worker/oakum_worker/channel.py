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

from oakum_worker.protocol import Directive, Endpoint, Failure, Pace, Phase, Switch, TrainingProgress


class Command(BaseModel):
    """What an agent tells a rank. A new command replaces the previous one."""

    model_config = ConfigDict(frozen=True)

    directive: Directive | None = None
    leave: bool = False
    """Whether the scheduler wants the node back: a rank that is no member of the next generation has to end."""
    close: bool = False
    """Whether to leave without waiting for the service: at once where the state is safe, else at the next step
    boundary."""
    save: bool = False
    """Whether to write a durable checkpoint before leaving, because no other rank writes one."""


class News(BaseModel):
    """What a rank tells its agent. Only fields that have changed are set; a line without fields says that the rank
    is alive."""

    model_config = ConfigDict(frozen=True)

    phase: Phase | None = None
    endpoint: Endpoint | None = None
    generation: int | None = None
    broken: int | None = None
    holds: bool | None = None
    """Whether this process has the trainer's state, or this rank's part of the state."""
    progress: TrainingProgress | None = None
    pace: Pace | None = None
    switch: Switch | None = None
    failure: Failure | None = None
    warning: str | None = None
    hangs: bool | None = None
    """Whether the task's code has exceeded `step_timeout_s` in one step: the agent then kills the rank."""


class NewsWriter:
    """The rank's end of the pipe to its agent. Any thread may write."""

    def __init__(self, descriptor: int) -> None:
        self._pipe = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8")
        self._lock = threading.Lock()

    def send(self, **news: object) -> None:
        """Write one line of news. A closed pipe raises nothing: the end of standard input tells that the agent has
        ended."""
        line = News.model_validate(news).model_dump_json(exclude_none=True)
        try:
            with self._lock:
                self._pipe.write(line + "\n")
        except (BrokenPipeError, ValueError):
            return


def write_command(pipe: IO[bytes], command: Command) -> None:
    """Write one command to a rank's standard input. A closed pipe raises nothing: the agent hears of the rank's
    exit."""
    try:
        pipe.write(command.model_dump_json().encode() + b"\n")
        pipe.flush()
    except (BrokenPipeError, ValueError):
        return
