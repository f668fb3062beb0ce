"""Measures what `make run` shows: the share of idle node-time used by trainers, and how soon they train again.

    python bench/demo.py [--minutes 10] [--starts 3] [--json FILE] [-- OPTIONS OF SERVE]

Each start runs `oakum serve` with the examples in a new data directory, under the foreground load of `make run`.
After the given minutes the service is interrupted by Ctrl-C and started again, and the time until training is
measured.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from oakum_client.cli import output
from oakum_client.rest.client import OakumClient
from oakum_service.api.schemas.intervals import Interval, Timeline
from peers.contestants import connect, end_all, wait_until

_EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
_SPECS = ("digits-classifier", "digits-autoencoder")
_PATIENCE_S = 240.0
_LOOK_EVERY_S = 5.0


@dataclass(frozen=True)
class Demo:
    """Figures of one start, its minutes and the restart; times in seconds."""

    idle_node_s: float
    used: float
    """Share of the idle node-time in which a trainer trained."""
    warming: float
    """Share of the idle node-time in which a launched fragment had not joined a generation yet."""
    fragments: int
    never_trained: int
    """Fragments that lost their node before they joined."""
    first_step_s: dict[str, float]
    """Trainer -> from the start of the service to its first finished step."""
    states: dict[str, str]
    """Trainer -> its state at the end of the minutes."""
    again_s: float
    """Seconds from the restart to the first step that a trainer finishes after it."""


class Life:
    """One run of the service."""

    def __init__(self, data_dir: Path, options: list[str]) -> None:
        (data_dir / "client.json").unlink(missing_ok=True)
        command = [sys.executable, "-m", "oakum", "serve", "--data-dir", str(data_dir), "--port", "0"]
        for name in _SPECS:
            command += ["--submit", str(_EXAMPLES / f"{name}.yaml")]
        self._data_dir = data_dir
        self.began = time.time()
        with data_dir.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--verbose", *options], stdout=log, stderr=log, start_new_session=True
            )
        self.client: OakumClient = wait_until("the service answers", lambda: connect(data_dir), _PATIENCE_S)

    def interrupt(self) -> None:
        """Send SIGINT to the service, as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(timeout=_PATIENCE_S)

    def end(self) -> None:
        """End all processes of the service."""
        end_all(self._process.pid, self._data_dir)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10.0)


def formed_after(client: OakumClient, since: float) -> dict[str, float]:
    """Trainer -> when it finished the first step of a generation that has formed since."""
    events = [e for e in client.recent_events(1000).events if e.kind == "generation.formed" and e.at >= since]
    return {event.subject: event.at for event in reversed(events) if event.subject is not None}


def overlap_s(interval: Interval, others: Iterable[tuple[float, float]], begin: float, end: float) -> float:
    """Seconds of `interval`, cut to the time from `begin` to `end`, that also lie in one of `others`, which are
    disjoint. An interval without an end lasts to `end`."""
    first, last = max(interval.start_at, begin), min(interval.end_at or end, end)
    return sum(max(0.0, min(last, other_end) - max(first, other_begin)) for other_begin, other_end in others)


def shares(timeline: Timeline, begin: float, end: float) -> tuple[float, float, float]:
    """Idle node-seconds between the two times, and the shares in which fragments trained and warmed up."""
    idle_s = trained_s = warmed_s = 0.0
    for hole in timeline.holes:
        own = [f for f in timeline.fragments if f.node == hole.node]
        trained = [(f.training_at, f.end_at or end) for f in own if f.training_at is not None]
        warmed = [(f.start_at, f.training_at or f.end_at or end) for f in own]
        idle_s += overlap_s(hole, [(begin, end)], begin, end)
        trained_s += overlap_s(hole, trained, begin, end)
        warmed_s += overlap_s(hole, warmed, begin, end)
    return idle_s, trained_s / idle_s, warmed_s / idle_s


def measure(data_dir: Path, minutes: float, options: list[str], console: Console) -> Demo:
    """Run one start and measure it."""
    life = Life(data_dir, options)
    try:
        first: dict[str, float] = {}
        end = life.began + 60 * minutes
        while time.time() < end:
            for name, at in formed_after(life.client, life.began).items():
                first.setdefault(name, at - life.began)
            time.sleep(min(_LOOK_EVERY_S, max(0.0, end - time.time())))
        timeline = life.client.timeline(60 * minutes + 60)
        idle_s, used, warming = shares(timeline, life.began, end)
        ended = [fragment for fragment in timeline.fragments if fragment.end_at is not None]
        states = {trainer.name: str(trainer.state) for trainer in life.client.trainers().trainers}
        console.print(f"  {used:.0%} used, {warming:.0%} warming up; states: {states}")
        life.interrupt()
        life = Life(data_dir, options)
        formed = wait_until(
            "a trainer trains again", lambda: formed_after(life.client, life.began), _PATIENCE_S, every_s=0.1
        )
        return Demo(
            idle_node_s=idle_s,
            used=used,
            warming=warming,
            fragments=len(timeline.fragments),
            never_trained=sum(fragment.training_at is None for fragment in ended),
            first_step_s=first,
            states=states,
            again_s=min(formed.values()) - life.began,
        )
    except TimeoutError:
        print(data_dir.with_suffix(".log").read_text(encoding="utf-8")[-4000:], file=sys.stderr)
        raise
    finally:
        life.end()


def tabled(demos: list[Demo]) -> Table:
    """A column for each start."""
    table = Table("start", *(str(number) for number in range(1, len(demos) + 1)))
    table.add_row("idle node-time, s", *(f"{demo.idle_node_s:.0f}" for demo in demos))
    table.add_row("used", *(f"{demo.used:.1%}" for demo in demos))
    table.add_row("warming up", *(f"{demo.warming:.1%}" for demo in demos))
    table.add_row("fragments (never trained)", *(f"{demo.fragments} ({demo.never_trained})" for demo in demos))
    for name in _SPECS:
        table.add_row(f"{name}: first step, s", *(f"{demo.first_step_s.get(name, -1):.1f}" for demo in demos))
        table.add_row(f"{name}: at the end", *(demo.states.get(name, "?") for demo in demos))
    table.add_row("trains again after Ctrl-C and a start, s", *(f"{demo.again_s:.1f}" for demo in demos))
    return table


def main(
    options: Annotated[list[str] | None, typer.Argument(help="Options of `oakum serve`, after --.")] = None,
    minutes: Annotated[float, typer.Option(help="Of each start.")] = 10.0,
    starts: Annotated[int, typer.Option(help="One after the other.")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Measure and print."""
    console = output.console()
    demos = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, starts + 1):
            console.print(f"start {number} of {starts}: {minutes:g} minutes")
            demos.append(measure(Path(folder) / f"start-{number}", minutes, options or [], console))
    console.print(tabled(demos))
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(demo) for demo in demos]), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
