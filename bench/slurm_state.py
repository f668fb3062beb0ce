"""Measures the CPU seconds and the memory that reading and storing the state of a large Slurm cluster takes.

    python bench/slurm_state.py [--nodes 10000] [--jobs 20000] [--kinds 25.11,22.05,text] [--json FILE]

Stand-ins for Slurm's commands give the answers; only Oakum's own CPU time counts. Each of three readings is
parsed, turned into a snapshot and stored in SQLite: a first one, one without changes, and one in which every
hundredth job has moved. Exits with status 1 if a reading takes more than 2 s of CPU time, or the process more than
1 GB of memory.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from sqlalchemy.orm import Session

from oakum_client.cli import output
from oakum_service.config import SlurmSettings
from oakum_service.control.observe import Observation, write_snapshot
from oakum_service.db.engine import open_engine, upgrade
from oakum_service.schedulers.slurm.hole_policy import HolePolicy
from oakum_service.schedulers.slurm.reading.cli_source import CliSource
from oakum_service.schedulers.slurm.snapshot import OakumInstance, own_tasks, to_snapshot
from oakum_service.states import NodeState
from slurm_answers import ClusterSize

KINDS = ("25.11", "22.05", "text")
READINGS = ("first", "unchanged", "1 % moved")
MOST_CPU_S = 2.0
MOST_BYTES = 10**9


@dataclass(frozen=True)
class Reading:
    """CPU seconds of the phases of one reading."""

    name: str
    take_in_s: float
    picture_s: float
    store_s: float
    wall_s: float
    holes: int

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all phases."""
        return self.take_in_s + self.picture_s + self.store_s


@dataclass(frozen=True)
class Measured:
    """The readings of one kind of answers."""

    kind: str
    answer_bytes: int
    peak_bytes: int
    before_bytes: int
    """Memory of the process with everything imported, before the first reading."""
    readings: list[Reading]


def measure(kind: str, size: ClusterSize, folder: Path) -> Measured:
    """Read, convert and store three times, in this process."""
    folders = []
    answer_bytes = 0
    for turn in (0, 1):
        folders.append(folder / str(turn))
        folders[-1].mkdir()
        answer_bytes = _write_apart(folders[-1], ClusterSize(size.nodes, size.jobs, turn), kind)
    url = f"sqlite:///{folder / 'oakum.db'}"
    engine = open_engine(url)
    upgrade(engine)
    before = _peak_bytes()
    last: Observation | None = None
    readings = []
    for name, place in zip(READINGS, (folders[0], folders[0], folders[1]), strict=True):
        wanted = "text" if kind == "text" else "json"
        source = CliSource(SlurmSettings.model_validate({"bin_dir": place, "format": wanted, "partition": "fill"}))
        with Session(engine) as session:
            reading, last = _read_once(name, source, session, last)
        readings.append(reading)
    return Measured(kind, answer_bytes, _peak_bytes(), before, readings)


def _write_apart(folder: Path, size: ClusterSize, kind: str) -> int:
    """Write the answers in a separate process, whose memory does not count."""
    code = (
        "import sys; from pathlib import Path; from slurm_answers import *; "
        "print(write_answers(Path(sys.argv[1]), ClusterSize(*map(int, sys.argv[3:])), sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(folder), kind, *map(str, (size.nodes, size.jobs, size.turn))]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    return int(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def _read_once(
    name: str, source: CliSource, session: Session, last: Observation | None
) -> tuple[Reading, Observation]:
    wall_s, began = time.monotonic(), time.process_time()
    state = source.read()
    taken_in = time.process_time()
    instance = OakumInstance("oakum", "bench")
    snapshot = to_snapshot(state, instance, HolePolicy("fill"), own_tasks(state.jobs, instance))
    pictured = time.process_time()
    observed = write_snapshot(session, snapshot, last)
    session.commit()
    stored = time.process_time()
    holes = sum(node.state is NodeState.HOLE for node in snapshot.nodes)
    times = (taken_in - began, pictured - taken_in, stored - pictured, time.monotonic() - wall_s)
    return Reading(name, *times, holes), observed


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def complaints(measured: Measured) -> list[str]:
    """A sentence for each limit that is exceeded."""
    found = [
        f"{measured.kind}, {reading.name}: {reading.cpu_s:.2f} s of CPU, more than {MOST_CPU_S:g} s"
        for reading in measured.readings
        if reading.cpu_s > MOST_CPU_S
    ]
    if measured.peak_bytes > MOST_BYTES:
        found.append(f"{measured.kind}: {measured.peak_bytes / 1e6:.0f} MB, more than {MOST_BYTES / 1e6:.0f} MB")
    return found


def table(results: list[Measured], size: ClusterSize) -> Table:
    """One row for each reading."""
    shown = Table(title=f"{size.nodes} nodes, {size.jobs} jobs: CPU seconds", title_justify="left")
    for column in (
        "Slurm's answer",
        "MB",
        "reading",
        "take in",
        "picture",
        "store",
        "all",
        "wall",
        "holes",
        "peak MB",
    ):
        shown.add_column(column, justify="left" if column in ("Slurm's answer", "reading") else "right")
    for result in results:
        for index, reading in enumerate(result.readings):
            whose = (result.kind, f"{result.answer_bytes / 1e6:.0f}") if index == 0 else ("", "")
            times = (reading.take_in_s, reading.picture_s, reading.store_s, reading.cpu_s, reading.wall_s)
            peak = f"{result.peak_bytes / 1e6:.0f}" if index == 0 else ""
            shown.add_row(*whose, reading.name, *(f"{value:.2f}" for value in times), str(reading.holes), peak)
    return shown


def main(
    nodes: Annotated[int, typer.Option(min=10)] = 10_000,
    jobs: Annotated[int, typer.Option(min=10)] = 20_000,
    kinds: Annotated[str, typer.Option(help="Which answers, with commas between.")] = ",".join(KINDS),
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures here, too.")] = None,
    alone: Annotated[str | None, typer.Option(hidden=True, help="Measure one kind in this process.")] = None,
) -> None:
    """Measure and print."""
    size = ClusterSize(nodes, jobs)
    if alone is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asdict(measure(alone, size, Path(folder)))))
        return
    results = [_measure_apart(kind, size) for kind in kinds.split(",")]
    console = output.console()
    console.print(table(results, size))
    found = [complaint for result in results for complaint in complaints(result)]
    for complaint in found:
        console.print(complaint, style="red")
    if json_file is not None:
        document = {
            "cores": os.cpu_count(),
            "nodes": nodes,
            "jobs": jobs,
            "kinds": [asdict(one) for one in results],
        }
        json_file.write_text(json.dumps(document), encoding="utf-8")
    raise typer.Exit(bool(found))


def _measure_apart(kind: str, size: ClusterSize) -> Measured:
    """`measure` in a separate process, so that each kind has its own peak of memory."""
    options = [f"--nodes={size.nodes}", f"--jobs={size.jobs}", f"--alone={kind}"]
    done = subprocess.run([sys.executable, __file__, *options], stdout=subprocess.PIPE, check=True)
    told = json.loads(done.stdout)
    return Measured(**told | {"readings": [Reading(**reading) for reading in told["readings"]]})


if __name__ == "__main__":
    typer.run(main)
