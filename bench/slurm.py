"""Measures how long foreground jobs wait on a real Slurm whose holes are filled, compared with an unfilled one.

    python bench/slurm.py                                       # 30 jobs on 8 nodes, each condition; as root
    python bench/slurm.py --jobs 10 --only alone --only filled --json slurm.json
    python bench/slurm.py --only submissions                    # what 500 fragments cost slurmctld to take
    python bench/slurm.py --gpus 4 --jobs 40                    # nodes of 4 counted GPUs, which jobs share

The benchmark makes a cluster and removes it again (`tools/slurm_cluster`). Sizes, lengths and arrivals of the
foreground jobs are drawn from the seed and equal in all conditions: alone, with plain `sleep` jobs on all idle
nodes, with two trainers there, with the service killed, and with the service hung. Each job records its start. A
wait longer than the same job's wait alone is caused by the fill jobs. The condition with `sleep`, which ends at
once when signalled, shows what preemption costs on this cluster whatever fills it.

Trainers' steps sleep, because the nodes share the cores of one machine.

With `--gpus` jobs share nodes: they take some GPUs of one to three nodes. Conditions are jobs that sleep on the
other GPUs, two trainers there, and these with the service killed three times (`bench/shared_nodes`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from oakum_client.cli import output

_ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT / "tests" / "support"), str(_ROOT / "tools")]

from running_service import small_spec, train_side_by_side  # noqa: E402
from shared_nodes import conditions  # noqa: E402
from shared_nodes import jobs as shared_jobs  # noqa: E402
from slurm_service import SlurmService  # noqa: E402
from slurm_site import SlurmSite  # noqa: E402

_CONDITIONS = ("alone", "sleepers", "filled", "killed", "hung")
_TRAINERS = ("first", "second")
_START_TIMEOUT_S = 120.0
_SLEEP = "#!/bin/sh\nexec srun sleep 300\n"
"""Slurm tells job steps to go, and lets the script itself run on until the grace is over."""


@dataclass(frozen=True)
class Arrival:
    """A foreground job to be submitted."""

    gap_s: float
    """Seconds after the job before."""
    nodes: int
    run_s: float


@dataclass
class Outcome:
    """Waits of the foreground jobs in one condition, and how Oakum's jobs ended."""

    condition: str
    waits_s: list[float] = field(default_factory=list)
    """Seconds from submission to the job's first line, for each job."""
    fill_jobs: int = 0
    orphans: int = 0
    steps: int = 0


@dataclass(frozen=True)
class Submissions:
    """Cost of submitting many fragments in one way."""

    how: str
    count: int
    submit_s: float
    submit_cpu_s: float
    """slurmctld's CPU seconds until all are submitted."""
    run_cpu_s: float
    """slurmctld's CPU seconds until all have run."""


def draw(seed: int, count: int, nodes: int) -> list[Arrival]:
    """Draw foreground jobs: of one to three quarters of the nodes, for 1 to 4 s, one every 3.5 s on average."""
    chance = random.Random(seed)
    return [
        Arrival(chance.uniform(1.0, 6.0), chance.randint(1, max(1, 3 * nodes // 4)), chance.uniform(1.0, 4.0))
        for _ in range(count)
    ]


class Foreground:
    """Submits the foreground jobs and reads when they started."""

    def __init__(self, site: SlurmSite, folder: Path) -> None:
        self._site = site
        self._folder = folder
        self._submitted: list[tuple[Path, float]] = []

    def submit(self, arrival: Arrival) -> None:
        """Submit one job of whole nodes."""
        note = self._folder / f"start-{len(self._submitted)}"
        script = f"#!/bin/sh\ndate +%s.%N > {note}\nexec sleep {arrival.run_s:.2f}\n"
        options = ("--partition=main", "--exclusive", f"--nodes={arrival.nodes}", "--time=5", "--output=/dev/null")
        at = time.time()
        self._site.run("sbatch", "--parsable", "--chdir=/", *options, given=script)
        self._submitted.append((note, at))

    def waits_s(self) -> list[float]:
        """Waits of all jobs in order; waits until the last one has started."""
        self._site.wait_until("every job has started", self._all_started, _START_TIMEOUT_S)
        return [float(note.read_text(encoding="utf-8")) - at for note, at in self._submitted]

    def _all_started(self) -> bool:
        return all(note.exists() and note.stat().st_size for note, _ in self._submitted)


def measure(
    site: SlurmSite, condition: str, arrivals: list[Arrival], grace_s: float, logs: Path | None, console: Console
) -> Outcome:
    """Run the foreground jobs in one condition; `grace_s` is the longest time of a last replica's checkpoint."""
    outcome = Outcome(condition)
    site.clean()
    began_at = time.time()
    with (
        _folder(logs, condition) as name,
        _service(site, Path(name), condition, grace_s) as service,
        _sleepers(site) if condition == "sleepers" else nullcontext(),
    ):
        jobs = Foreground(site, Path(name))
        for number, arrival in enumerate(track(arrivals, condition, console=console, transient=True)):
            if service is not None and number == len(arrivals) // 3:
                _disturb(service, condition)
            time.sleep(arrival.gap_s)
            jobs.submit(arrival)
        outcome.waits_s = jobs.waits_s()
        if service is not None:
            _settle(service, condition)
            outcome.steps = sum(service.client().trainer(name).step for name in _TRAINERS)
            service.client().hold("the bench is over")
            site.wait_until("our jobs leave", lambda: not service.running())
            rows = [row for row in service.jobs() if (row.submit or 0.0) >= began_at - 1.0]
            outcome.fill_jobs = len(rows)
            outcome.orphans = sum(row.partition != "fill" for row in rows)
    return outcome


def _folder(logs: Path | None, condition: str) -> AbstractContextManager[str]:
    if logs is None:
        return tempfile.TemporaryDirectory(prefix="bench-slurm-")
    folder = logs / condition
    folder.mkdir(parents=True)
    return nullcontext(str(folder.resolve()))


@contextmanager
def _service(site: SlurmSite, folder: Path, condition: str, grace_s: float) -> Iterator[SlurmService | None]:
    """A service with two trainers on all nodes; nothing in the conditions `alone` and `sleepers`."""
    if condition in ("alone", "sleepers"):
        yield None
        return
    service = SlurmService(folder, site, OAKUM_SLURM_GRACE_S=str(grace_s))
    try:
        client = service.start()
        half = site.num_nodes // 2
        specs = [
            small_spec(name, epochs=1_000_000, arguments={"step_s": 0.1}, max_nodes=half) for name in _TRAINERS
        ]
        train_side_by_side(client, specs, half, _START_TIMEOUT_S)
        yield service
    finally:
        site.cancel_all()
        service.end()


@contextmanager
def _sleepers(site: SlurmSite) -> Iterator[None]:
    """Keeps a `sleep` job of one node on each idle node that no foreground job waits for."""
    over = threading.Event()

    def fill() -> None:
        options = ("--partition=fill", "--exclusive", "--nodes=1", "--time=5", "--output=/dev/null", "--chdir=/")
        while not over.wait(0.5):
            if site.run("squeue", "--noheader", "--states=PENDING"):
                continue
            idle = ("--partition=fill", "--Node", "--states=idle", "--format=%N")
            for node in site.run("sinfo", "--noheader", *idle).split():
                site.attempt("sbatch", *options, f"--nodelist={node}", given=_SLEEP)

    thread = threading.Thread(target=fill, name="sleepers")
    thread.start()
    try:
        site.wait_until("all nodes are taken", lambda: len(site.jobs()) == site.num_nodes)
        yield
    finally:
        over.set()
        thread.join()
        site.cancel_all()


def _disturb(service: SlurmService, condition: str) -> None:
    assert service.process is not None
    if condition == "killed":
        service.kill()
    elif condition == "hung":
        os.kill(service.process.pid, signal.SIGSTOP)


def _settle(service: SlurmService, condition: str) -> None:
    assert service.process is not None
    if condition == "killed":
        service.start()
    elif condition == "hung":
        os.kill(service.process.pid, signal.SIGCONT)


def measure_submissions(site: SlurmSite, how: str, count: int) -> Submissions:
    """Submit `count` one-node jobs that end at once, singly with a node each or as one array."""
    site.clean()
    site.run("scontrol", "update", "PartitionName=fill", "State=DOWN")
    controller = _slurmctld(site)
    options = ("--partition=fill", "--exclusive", "--nodes=1", "--time=1", "--output=/dev/null", "--chdir=/")
    script = "#!/bin/sh\nexec true\n"
    before_s, began_s = _cpu_s(controller), time.monotonic()
    if how == "array":
        site.run("sbatch", *options, f"--array=0-{count - 1}", given=script)
    else:
        for number in range(count):
            node = f"n{number % site.num_nodes + 1:03}"
            site.run("sbatch", *options, f"--nodelist={node}", given=script)
    submit_s, submitted_s = time.monotonic() - began_s, _cpu_s(controller)
    site.run("scontrol", "update", "PartitionName=fill", "State=UP")
    site.wait_until("all have run: {}", lambda: not site.jobs(), 600.0, lambda: len(site.jobs()))
    return Submissions(how, count, submit_s, submitted_s - before_s, _cpu_s(controller) - submitted_s)


def _slurmctld(site: SlurmSite) -> psutil.Process:
    return next(psutil.Process(pid) for pid, name in site.processes().items() if name == "slurmctld")


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def waits_table(outcomes: list[Outcome]) -> Table:
    """Waits, and how much longer they are than the same jobs' waits alone."""
    table = Table(
        "condition", "jobs", "wait p50, s", "p99", "max", "longer p50, s", "p99", "max", "fill jobs", "steps"
    )
    alone = next((outcome.waits_s for outcome in outcomes if outcome.condition == "alone"), None)
    for outcome in outcomes:
        longer = [wait - other for wait, other in zip(outcome.waits_s, alone or [], strict=False)]
        cells = [*_quantiles(outcome.waits_s), *(_quantiles(longer) if longer else ["-"] * 3)]
        table.add_row(
            outcome.condition, str(len(outcome.waits_s)), *cells, str(outcome.fill_jobs), str(outcome.steps)
        )
    return table


def _quantiles(values: list[float]) -> list[str]:
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return [f"{statistics.median(ordered):.2f}", f"{p99:.2f}", f"{ordered[-1]:.2f}"]


def submissions_table(rows: list[Submissions]) -> Table:
    """Seconds, and slurmctld's CPU seconds."""
    table = Table(
        "500 fragments", "handed in after, s", "slurmctld until then, CPU s", "until all have run, CPU s"
    )
    for row in rows:
        table.add_row(
            f"{row.how}, {row.count}", f"{row.submit_s:.1f}", f"{row.submit_cpu_s:.2f}", f"{row.run_cpu_s:.2f}"
        )
    return table


def share_nodes(
    nodes: int,
    gpus: int,
    arrivals: list[shared_jobs.Arrival],
    times_s: tuple[float, float],
    only: list[str] | None,
    logs: Path | None,
    json_file: Path | None,
) -> None:
    """Run the conditions on nodes that jobs share, and print what came of them; `times_s`: of a step, and of a
    last replica's checkpoint."""
    wanted = only or list(conditions.CONDITIONS)
    if unknown := set(wanted) - set(conditions.CONDITIONS):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: expected {', '.join(conditions.CONDITIONS)}")
    site = SlurmSite.make(nodes=nodes, gpus=gpus, cpus=2 * gpus, schedule_every_s=1)
    outcomes = []
    try:
        setting = conditions.Setting(site, arrivals, nodes * gpus, *times_s)
        for condition in (name for name in conditions.CONDITIONS if name in wanted):
            with _folder(logs, condition) as folder:
                outcomes.append(conditions.measure(setting, condition, Path(folder)))
            for table in conditions.tables(outcomes):
                output.console().print(table)
            if json_file is not None:
                figures = list(map(dataclasses.asdict, outcomes))
                json_file.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    finally:
        site.down()


def main(
    jobs: Annotated[int, typer.Option(min=1, help="Foreground jobs in each condition.")] = 30,
    nodes: Annotated[int, typer.Option(min=2, max=32, help="Virtual nodes.")] = 8,
    seed: Annotated[int, typer.Option(help="Repeats the same jobs.")] = 1,
    fragments: Annotated[int, typer.Option(min=2, help="Jobs to hand in for the cost of submitting.")] = 500,
    grace_s: Annotated[float, typer.Option(help="Most seconds for a last replica's checkpoint.")] = 30.0,
    only: Annotated[list[str] | None, typer.Option(help="Conditions, or submissions.")] = None,
    logs: Annotated[Path | None, typer.Option(help="Keep the service's and the fragments' logs here.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything here, too.")] = None,
    gpus: Annotated[int, typer.Option(min=0, help="Counted GPUs of each node, which jobs share.")] = 0,
    gap_s: Annotated[float, typer.Option(help="With --gpus: mean seconds between two jobs.")] = 15.0,
    run_s: Annotated[float, typer.Option(help="With --gpus: mean seconds of a job.")] = 30.0,
    step_s: Annotated[float, typer.Option(help="With --gpus: seconds that a step sleeps.")] = 0.5,
) -> None:
    """Measure what our jobs cost others on a real Slurm.

    Example: python bench/slurm.py --jobs 10 --only alone --only filled
    """
    if gpus:
        drawn = shared_jobs.draw(seed, jobs, nodes, gpus, gap_s, run_s)
        share_nodes(nodes, gpus, drawn, (step_s, grace_s), only, logs, json_file)
        return
    wanted = only or [*_CONDITIONS, "submissions"]
    if unknown := set(wanted) - {*_CONDITIONS, "submissions"}:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: expected {', '.join(_CONDITIONS)}, submissions")
    console = output.console()
    site = SlurmSite.make(nodes=nodes, schedule_every_s=1)
    try:
        arrivals = draw(seed, jobs, nodes)
        outcomes = [
            measure(site, name, arrivals, grace_s, logs, console) for name in _CONDITIONS if name in wanted
        ]
        rows = (
            [measure_submissions(site, how, fragments) for how in ("each to its node", "array")]
            if "submissions" in wanted
            else []
        )
    finally:
        site.down()
    if outcomes:
        console.print(waits_table(outcomes))
    if rows:
        console.print(submissions_table(rows))
    if json_file is not None:
        document = {
            "waits": list(map(dataclasses.asdict, outcomes)),
            "submissions": list(map(dataclasses.asdict, rows)),
        }
        json_file.write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
