"""Shows how far `oakum replay` has got."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.progress import Progress


class ReplayProgress:
    """Shows how far a replay has got: as a bar where standard error is a terminal, and as a sentence if it is
    interrupted."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._task = None if bar is None else bar.add_task("Reading the log", total=1.0)
        self._shown = 0.0
        self._sentence = "while reading the log"

    @classmethod
    @contextmanager
    def display(cls) -> Iterator[ReplayProgress]:
        """Context of the work whose progress is shown; yields what the work reports to. Ctrl-C ends the command
        with status 130 and a sentence on how far it got."""
        bar = _progress_bar() if sys.stderr.isatty() else None
        progress = cls(bar)
        try:
            if bar is None:
                yield progress
            else:
                with bar:
                    yield progress
        except KeyboardInterrupt:
            typer.echo(f"oakum: interrupted {progress._sentence}; nothing is written", err=True)
            raise typer.Exit(130) from None

    def show_reading(self, done: float) -> None:
        """Show that the share `done`, from 0 to 1, of the log has been read."""
        self._show(done, "Reading the log")

    def show_replaying(self, done: float, events: int, total: int) -> None:
        """Show that the share `done`, from 0 to 1, of the log has been replayed: `events` of `total`."""
        self._sentence = f"after {done:.1%} of the log ({events:,} of {total:,} events)"
        self._show(done, "Replaying")

    def _show(self, done: float, name: str) -> None:
        # Some ten thousand events a second must not each move the bar.
        if self._bar is None or self._task is None or 0 <= done - self._shown < 0.001:
            return
        if done < self._shown:
            self._bar.reset(self._task)
        self._shown = done
        self._bar.update(self._task, completed=done, description=name)


def _progress_bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("ready in"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
