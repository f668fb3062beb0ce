"""Measures, on the embedded cluster, the stages from the launch of a fragment to a rank that is ready.

    python bench/start_up.py [--starts 10] [--spec FILE] [--imports] [--json FILE]

Starts a service with one node twice: with forked fragments, and with fresh processes as on a node of a real
cluster. A foreground job takes the node again and again, so that fragments follow each other.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import httpx
import psutil
import typer
from rich.progress import track
from rich.table import Table

from oakum_client.cli import output
from oakum_client.rest.client import OakumClient
from oakum_service.schedulers.fragment_processes import find
from oakum_worker.spec import TrainerSpec, read_spec
from peers.contestants import connect, end_all, wait_until

_SPEC = Path(__file__).resolve().parent.parent / "examples" / "digits-classifier.yaml"
_PATIENCE_S = 240.0
_READY = re.compile(r"ready after ([0-9.]+) s, ([0-9.]+) CPU-s: (.*)")
_IMPORTED = re.compile(r"import time:\s+\d+ \|\s+(\d+) \| ( *)(\S+)")


@dataclass
class Start:
    """The start of one fragment: times in seconds, and CPU seconds of all its processes."""

    launch_to_ready_s: float
    """Seconds from the intent to launch to the report that the rank is ready, by the service's clock."""
    cpu_s: float
    until_rank_s: float
    """Seconds until the rank's process began: submission, the agent's interpreter and imports."""
    stages: dict[str, float] = field(default_factory=dict)
    """Stage of the rank's start -> seconds; the last stage ends when the service knows that the rank is ready."""


@contextmanager
def running(data_dir: Path, spec: TrainerSpec, *, forks: bool) -> Iterator[OakumClient]:
    """A service with one node that trains `spec`."""
    command = [sys.executable, "-m", "oakum", "serve", "--data-dir", str(data_dir), "--port", "0"]
    command += ["--load", "0", "--nodes", "1", "--verbose"]
    log = data_dir.with_suffix(".log")
    with log.open("wb") as output:
        service = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | {"OAKUM_LOCAL_FORK_SERVER": str(forks)}
        )
    try:
        client = wait_until("the service answers", lambda: connect(data_dir), _PATIENCE_S)
        client.submit(spec)
        yield client
    except TimeoutError:
        print(log.read_text(encoding="utf-8")[-4000:], file=sys.stderr)
        raise
    finally:
        service.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            service.wait(timeout=30.0)
        end_all(service.pid, data_dir)


def times_of(client: OakumClient, kind: str) -> list[float]:
    """Times of the events of one kind."""
    return [event.at for event in client.recent_events(1000).events if event.kind == kind]


def _has_more(client: OakumClient, starts: int) -> bool:
    return len(times_of(client, "fragment.ready")) > starts


def _is_taken(client: OakumClient, times: int) -> bool:
    return client.cluster().foreground_jobs_started > times


def measure(client: OakumClient, data_dir: Path, starts: int, what: str) -> list[Start]:
    """Measure `starts` starts, one after the other."""
    found = []
    for done in track(range(starts + 1), description=what):
        wait_until(
            "a fragment is ready",
            partial(_has_more, client, done),
            _PATIENCE_S,
        )
        [(fragment, processes)] = find(data_dir.resolve() / "fragments").items()
        ready = times_of(client, "fragment.ready")[done]
        launched = times_of(client, "fragment.launched")[done]
        if done:  # The first start is left out: it has waited for the fork server to load.
            found.append(_start(data_dir / "fragments" / fragment, processes, launched, ready))
        _take_node(client, data_dir)
        wait_until("the node is taken", partial(_is_taken, client, done), _PATIENCE_S)
    return found


def _start(folder: Path, processes: list[psutil.Process], launched: float, ready: float) -> Start:
    cpu_s = began = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if "oakum_worker.rank.process" in process.cmdline():
                began = process.create_time()
            else:
                cpu_s += sum(process.cpu_times()[:2])
    said = next(match for log in folder.glob("*_log.out") if (match := _READY.search(log.read_text())))
    stages = {name: float(took) for name, took in (stage.split() for stage in said[3].split(", "))}
    stages["told"] = ready - began - float(said[1])
    return Start(ready - launched, cpu_s + float(said[2]), began - launched, stages)


def _take_node(client: OakumClient, data_dir: Path) -> None:
    found = json.loads((data_dir / "client.json").read_text(encoding="utf-8"))
    headers = {"Authorization": f"Bearer {found['token']}"}
    job = {"nodes": 1, "run_s": 0.2}
    httpx.post(f"{found['url']}/v1/cluster/foreground-jobs", json=job, headers=headers).raise_for_status()


def tabled(measured: dict[str, list[Start]]) -> Table:
    """The table of medians, with a column for each way of starting."""
    table = Table("median", *measured)
    rows = {
        "launch to READY, s": [[start.launch_to_ready_s for start in starts] for starts in measured.values()],
        "CPU-seconds of all processes": [[start.cpu_s for start in starts] for starts in measured.values()],
        "until the rank's process begins, s": [[start.until_rank_s for start in s] for s in measured.values()],
    }
    names = dict.fromkeys(name for starts in measured.values() for start in starts for name in start.stages)
    for name in names:
        rows[f"- {name}, s"] = [[start.stages.get(name, 0.0) for start in s] for s in measured.values()]
    for name, columns in rows.items():
        table.add_row(name, *(f"{statistics.median(column):.2f}" for column in columns))
    return table


def imports(module: str, least_ms: float) -> Table:
    """Times of imports in a fresh process; a module's time includes modules that it is the first to import."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    table = Table(f"import {module}", "ms")
    found = [(int(took) / 1000, len(depth) // 2, name) for took, depth, name in _IMPORTED.findall(done.stderr)]
    for took_ms, depth, name in reversed(found):
        if took_ms >= least_ms and depth <= 3:
            table.add_row("  " * depth + name, f"{took_ms:.0f}")
    return table


def main(
    starts: Annotated[int, typer.Option(help="Fragments to start, each way.")] = 10,
    spec: Annotated[Path, typer.Option(help="The trainer.")] = _SPEC,
    show_imports: Annotated[bool, typer.Option("--imports", help="Show what a fresh rank imports.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Measure and print."""
    measured = {}
    # It outlasts the measurement.
    trainer = read_spec(spec).model_copy(update={"max_nodes": 1, "epochs": 1_000_000})
    with tempfile.TemporaryDirectory() as folder:
        for what, forks in (("forked", True), ("fresh", False)):
            data_dir = Path(folder) / what
            with running(data_dir, trainer, forks=forks) as client:
                measured[what] = measure(client, data_dir, starts, what)
    output.console().print(tabled(measured))
    if show_imports:
        output.console().print(imports("oakum_worker.rank.process", least_ms=20.0))
    if json_file is not None:
        document = {what: [asdict(start) for start in found] for what, found in measured.items()}
        json_file.write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
