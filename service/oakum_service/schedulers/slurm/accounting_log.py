"""Reads from Slurm's accounting which nodes were idle, and when: the idle log of `oakum replay slurm`."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from oakum_service.config import SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.slurm.commands import SlurmCommands
from oakum_solver.errors import LogError
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.idle import HEADER, read_idle_log
from oakum_solver.logs.node_lists import unfold

_LONGEST_S = 1800.0
"""Time limit for a command: a month of a busy cluster takes slurmdbd minutes."""
_TIME = "%Y-%m-%dT%H:%M:%S"
_NO_NODES = frozenset({"", "(null)", "None assigned", "None"})

Span = tuple[float, float]
"""Begin and end in Unix seconds."""


def read_accounting(settings: SlurmSettings, since: float, until: float) -> HoleLog:
    """The holes of the partition's nodes, or of all nodes where no partition is set, from `since` to `until` in
    Unix seconds. A node is idle while no job had it and it was neither down nor drained.

    Raises `LogError` where Slurm or its accounting does not answer, or no node was ever idle.
    """
    commands = SlurmCommands(settings.model_copy(update={"command_timeout_s": _LONGEST_S}))
    try:
        nodes = _nodes(commands, settings.partition)
        jobs = _rows(commands, "sacct", *_SACCT, *_window("--starttime=", "--endtime=", since, until))
        events = _rows(commands, "sacctmgr", *_SACCTMGR, *_window("start=", "end=", since, until))
    except SchedulerError as error:
        raise LogError(f"Slurm's accounting cannot be read: {error}") from error
    odd = Counter[str]()
    busy: dict[str, list[Span]] = {node: [] for node in nodes}
    for folded, spans in _spans([*jobs, *events], until, odd).items():
        for node in _unfolded(folded, odd):
            if node in busy:
                busy[node] += spans
    notes = (
        f"read from Slurm's accounting: {len(jobs):,} jobs, {len(events):,} events of nodes, {len(busy):,} nodes",
        *(f"{what}: {count:,}" for what, count in odd.items()),
    )
    log = _hole_log(busy, since, until)
    return replace(log, name="slurm", notes=(*notes, *log.notes))


_SACCT = (
    *("--allusers", "--allocations", "--duplicates", "--noheader", "--parsable2"),
    "--format=NodeList,Start,End",
)
_SACCTMGR = ("--noheader", "--parsable2", "show", "event", "format=NodeName,TimeStart,TimeEnd")


def _nodes(commands: SlurmCommands, partition: str) -> list[str]:
    # sinfo takes one of the two only.
    chosen = f"--partition={partition}" if partition else "--all"
    output = commands.run("sinfo", "--noheader", "--Node", "--format=%N", chosen)
    nodes = sorted({line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()})
    if not nodes:
        raise LogError(f"sinfo shows no node of partition {partition!r}: is OAKUM_SLURM_PARTITION right?")
    return nodes


def _window(start: str, end: str, since: float, until: float) -> tuple[str, str]:
    # Commands that are asked for Unix seconds run in UTC.
    return start + time.strftime(_TIME, time.gmtime(since)), end + time.strftime(_TIME, time.gmtime(until))


def _rows(commands: SlurmCommands, name: str, *arguments: str) -> list[list[str]]:
    output = commands.run(name, *arguments, epoch_times=True).decode(errors="replace")
    return [line.split("|")[:3] for line in output.splitlines() if line.count("|") >= 2]


def _spans(rows: Iterable[list[str]], until: float, odd: Counter[str]) -> Mapping[str, list[Span]]:
    """Folded node list -> when its nodes were busy. What has not ended is busy until the end; `odd` counts what
    cannot be used."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for folded, began, ended in rows:
        if folded.strip() in _NO_NODES or not began.isdecimal():
            continue  # it has not begun, or never did
        end = float(ended) if ended.isdecimal() else until
        if end < float(began):
            odd["jobs and events left out that end before they begin"] += 1
        else:
            spans[folded].append((float(began), end))
    return spans


def _unfolded(folded: str, odd: Counter[str]) -> tuple[str, ...]:
    try:
        return unfold(folded)
    except ValueError:
        odd["lists of nodes left out that cannot be read"] += 1
        return ()


def _hole_log(busy: Mapping[str, list[Span]], since: float, until: float) -> HoleLog:
    """The holes between the spans; they are written as an idle log and read again, so that one reader has all
    rules."""
    with TemporaryDirectory(prefix="oakum-replay-") as folder:
        path = Path(folder) / "slurm.csv"
        with path.open("w", encoding="utf-8") as file:
            file.write(",".join(HEADER) + "\n")
            for node, spans in busy.items():
                file.writelines(f"{node},{begin:.0f},{end:.0f}\n" for begin, end in _gaps(spans, since, until))
        return read_idle_log(path)


def _gaps(spans: Iterable[Span], since: float, until: float) -> Iterator[Span]:
    free_from = since
    for began, ended in sorted([*spans, (until, until)]):
        if min(began, until) > free_from:
            yield free_from, min(began, until)
        free_from = max(free_from, ended)
