"""Reads the log of jobs of Microsoft's Philly clusters, which names GPUs (github.com/msr-fiddle/philly-traces).

The file `cluster_job_log` is a JSON list of jobs. A job has attempts to run it, each with its start, its end, and
for each server the GPUs that it had:

    {"jobid": ..., "attempts": [{"start_time": "2017-10-07 01:12:09", "end_time": "2017-10-07 01:13:23",
                                 "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1"]}]}], ...}

How many GPUs a server has is in the file `cluster_machine_list` beside it, a line `m31,8, 24GB` for each.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from oakum_solver.errors import LogError
from oakum_solver.logs.files import open_log
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.maintenance import maintenance_stretches, without_maintenance
from oakum_solver.logs.parts import Parts

MACHINES = "cluster_machine_list"
"""Name of the file with the servers, with or without `.csv`."""
_GPU = re.compile(r"gpu([0-9]{1,3})")
_MOST_SKIPPED = 0.1
"""Share of attempts that may be odd: with more of them the file is another one."""
_NO_TIME = frozenset({None, "", "None"})


class _Attempt(NamedTuple):
    start_s: float
    end_s: float | None
    """None while it ran as the log was taken."""
    slots: tuple[tuple[str, int], ...]
    """(server, number of a GPU there)."""


@dataclass
class _Jobs:
    attempts: list[_Attempt] = field(default_factory=list)
    odd: Counter[str] = field(default_factory=Counter)
    """What was skipped or assumed, and how often."""


def is_philly(beginning: bytes) -> bool:
    """Whether a file that begins so may be such a log."""
    return beginning.lstrip()[:1] == b"["


def read_philly(path: Path, turnover_s: float = 0.0, maintenance: bool = True) -> HoleLog:
    """The holes of the GPUs that jobs had at some time, from the first start to the last end. A server's GPUs are
    its slots. The first `turnover_s` seconds after each attempt belong to no hole. With `maintenance` long
    stretches in which hardly anything ran are cut out.

    Raises `LogError` where the file, or the list of servers beside it, is something else.
    """
    jobs = _jobs(path)
    start_s = min(attempt.start_s for attempt in jobs.attempts)
    ends_s = [attempt.end_s for attempt in jobs.attempts if attempt.end_s is not None]
    end_s = max(ends_s, default=start_s)
    if end_s <= start_s:
        raise LogError(f"{path}: no attempt in it ends: expected some with a start_time and an end_time")
    slots, notes = _slots_of_servers(path, jobs)
    log = _hole_log(path.name, jobs.attempts, slots, (start_s, end_s), turnover_s)
    if maintenance:
        spans = [
            (a.start_s - start_s, (end_s if a.end_s is None else a.end_s) - start_s, len(a.slots))
            for a in jobs.attempts
        ]
        begins, ends, sizes = (np.array(column) for column in zip(*spans, strict=True))
        log, cuts = without_maintenance(log, maintenance_stretches(begins, ends, sizes, len(log.nodes)))
        notes += cuts
    servers = f"{len(slots):,} servers with {sum(slots.values()):,} GPUs"
    read = f"Philly's log: {len(jobs.attempts):,} attempts on {servers}"
    odd = [f"{what}: {count:,}" for what, count in jobs.odd.items()]
    told = "what the log does not tell counts as idle: servers that were down, and jobs from before its first one"
    return log.noted(read, told, *odd, *notes)


def _jobs(path: Path) -> _Jobs:
    with open_log(path) as file:
        try:
            document = json.load(file)
        except (ValueError, RecursionError) as error:
            raise LogError(f"{path}: {error}: expected Philly's cluster_job_log, a JSON list of jobs") from error
    if not isinstance(document, list) or not all(isinstance(job, dict) for job in document):
        raise LogError(f"{path}: expected Philly's cluster_job_log, a JSON list of jobs, each an object")
    jobs, total = _Jobs(), 0
    for number, job in enumerate(document, start=1):
        attempts = job.get("attempts")
        if not isinstance(attempts, list):
            raise LogError(
                f"{path}, job {number}: no list of attempts: expected one, as Philly's cluster_job_log has"
            )
        total += len(attempts)
        for attempt, later in itertools.zip_longest(attempts, attempts[1:]):
            _add(jobs, attempt, later)
    skipped = total - len(jobs.attempts)
    if not jobs.attempts or jobs.odd[_UNREADABLE] > _MOST_SKIPPED * total:
        raise LogError(
            f"{path}: {skipped:,} of {total:,} attempts cannot be used: expected start_time, end_time and detail, "
            "as Philly's cluster_job_log has"
        )
    return jobs


_UNREADABLE = "attempts skipped that cannot be read"


def _add(jobs: _Jobs, attempt: Any, later: Any) -> None:
    """Add an attempt; `later` is the job's next one, None for its last."""
    try:
        start_s, end_s = _seconds(attempt["start_time"]), _seconds(attempt["end_time"])
        slots = tuple(_slots(attempt["detail"]))
        following_s = None if later is None else _seconds(later["start_time"])
    except (KeyError, TypeError, ValueError):
        jobs.odd[_UNREADABLE] += 1
        return
    if start_s is None or not slots:
        jobs.odd["attempts skipped without a start or without GPUs"] += 1
        return
    if end_s is None and later is not None:
        jobs.odd["attempts without an end, read as ended when the next one of the job started"] += 1
        end_s = start_s if following_s is None else following_s
    if end_s is not None and end_s < start_s:
        jobs.odd["attempts skipped that end before they start"] += 1
        return
    jobs.attempts.append(_Attempt(start_s, end_s, slots))


def _seconds(text: str | None) -> float | None:
    # The log's clock has no zone: an hour is missing or twice where the clock was changed.
    return None if text in _NO_TIME else datetime.fromisoformat(str(text)).replace(tzinfo=UTC).timestamp()


def _slots(detail: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    for of_server in detail:
        for gpu in of_server["gpus"]:
            if (match := _GPU.fullmatch(gpu)) is None or not isinstance(of_server["ip"], str):
                raise ValueError
            yield of_server["ip"], int(match[1])


def _slots_of_servers(path: Path, jobs: _Jobs) -> tuple[dict[str, int], list[str]]:
    """The servers on which a job ran, each with the number of its GPUs, and notes on the list of servers."""
    seen: dict[str, int] = {}
    for attempt in jobs.attempts:
        for server, number in attempt.slots:
            seen[server] = max(seen.get(server, 0), number + 1)
    listed = _machines(path)
    if listed is None:
        return seen, [f"no {MACHINES} beside the log: a server has the GPUs that jobs had there at some time"]
    more = sum(seen[server] > listed.get(server, 0) for server in seen)
    slots = {server: max(number, listed.get(server, 0)) for server, number in seen.items()}
    notes = {
        f"servers of {MACHINES} left out, on which no job ran": len(listed.keys() - seen.keys()),
        f"servers on which jobs had more GPUs than {MACHINES} says, read as having so many": more,
    }
    return slots, [f"{what}: {count:,}" for what, count in notes.items() if count]


def _machines(path: Path) -> dict[str, int] | None:
    """Server -> number of its GPUs, by the list beside the log; None where there is none."""
    beside = (path.with_name(name) for name in (MACHINES, f"{MACHINES}.csv"))
    if (listed := next((other for other in beside if other.exists()), None)) is None:
        return None
    with open_log(listed) as file:
        rows = [*csv.reader(io.TextIOWrapper(file, encoding="utf-8", errors="replace"))]
    try:
        return {row[0].strip(): int(row[1]) for row in rows if row and row[0].strip() != "machineId"}
    except (IndexError, ValueError) as error:
        raise LogError(f"{listed}: {error}: expected lines machineId,number of GPUs,single GPU mem") from error


def _hole_log(
    name: str,
    attempts: Sequence[_Attempt],
    slots: Mapping[str, int],
    span_s: tuple[float, float],
    turnover_s: float,
) -> HoleLog:
    start_s, end_s = span_s
    busy: dict[tuple[str, int], list[tuple[float, float]]] = {
        (server, slot): [] for server in sorted(slots) for slot in range(slots[server])
    }
    for attempt in attempts:
        until_s = end_s if attempt.end_s is None else attempt.end_s + turnover_s
        for slot in attempt.slots:
            busy[slot].append((attempt.start_s, until_s))
    holes = sorted(
        (begin_s - start_s, stop_s - start_s, number)
        for number, spans in enumerate(busy.values())
        for begin_s, stop_s in _gaps(spans, start_s, end_s)
    )
    hosts = {server: number for number, server in enumerate(sorted(slots))}
    return HoleLog(
        name=name,
        nodes=tuple(f"{server}:{slot}" for server, slot in busy),
        node=np.array([number for _, _, number in holes], dtype=np.int32),
        start_s=np.array([begin_s for begin_s, _, _ in holes], dtype=np.float64),
        end_s=np.array([stop_s for _, stop_s, _ in holes], dtype=np.float64),
        duration_s=end_s - start_s,
        parts=Parts(
            host=np.array([hosts[server] for server, _ in busy], dtype=np.int32),
            names=tuple(hosts),
            slots=np.array([slots[server] for server in hosts], dtype=np.int32),
            slot=np.array([slot for _, slot in busy], dtype=np.int32),
        ),
    )


def _gaps(spans: Sequence[tuple[float, float]], start_s: float, end_s: float) -> Iterator[tuple[float, float]]:
    free_s = start_s
    for begin_s, stop_s in sorted([*spans, (end_s, end_s)]):
        if begin_s > free_s:
            yield free_s, begin_s
        free_s = max(free_s, stop_s)
