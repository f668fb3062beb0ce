"""Reads the Standard Workload Format (SWF) of the Parallel Workloads Archive.

Each line is one job with 18 numbers, -1 for unknown values; header lines read `; Key: value`. Definition:
Feitelson, "The Standard Workload Format", Parallel Workloads Archive, version 2.2; Chapin et al., JSSPP
1999.

Logs that sites make stray from it. What has one plausible meaning is read, and counted in the log's notes; a line
that has none is left out and counted, unless there are so many that the file is no such log.
"""

from __future__ import annotations

import codecs
import io
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from oakum_solver.errors import LogError
from oakum_solver.logs.files import FURTHEST_S, open_log

_NUM_FIELDS = 18
_MARK = codecs.BOM_UTF8.decode("latin-1")
"""UTF-8's byte-order mark, read as Latin-1."""
_MOST_ODD = 0.1
"""Largest share of lines left out: a log that lacks more would show too many idle nodes."""
_SIZE = re.compile(r"([1-9]\d{0,2}(?:[,'_]\d{3}){1,2}|[1-9]\d{0,8})(?:\.0+)?(?![\w.,'])", re.ASCII)


class SwfStatus(IntEnum):
    """A job's status: SWF field 11."""

    UNKNOWN = -1
    FAILED = 0
    COMPLETED = 1
    PARTIAL = 2
    """A partial run of a checkpointed job that continues later."""
    PARTIAL_COMPLETED = 3
    """The last partial run of a checkpointed job, which completed."""
    PARTIAL_FAILED = 4
    CANCELLED = 5


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a log. None stands for an unknown value."""

    id: int
    submit_s: float
    """Seconds since the log's start, as are all points in time."""
    wait_s: float | None
    run_s: float | None
    procs: int | None
    """Processors allocated; processors requested where the log does not tell."""
    requested_s: float | None
    """The user's run-time estimate."""
    status: SwfStatus
    user: int | None
    queue: int | None
    partition: int | None

    @property
    def start_s(self) -> float | None:
        """Start of the job in seconds since the log's start; None where unknown."""
        return None if self.wait_s is None else self.submit_s + self.wait_s

    @property
    def end_s(self) -> float | None:
        """End of the job in seconds since the log's start; None where unknown."""
        return None if self.start_s is None or self.run_s is None else self.start_s + self.run_s


@dataclass(frozen=True)
class SwfLog:
    """A log: its header and its jobs in the file's order."""

    header: dict[str, str]
    """Header fields by name; repeated ones, such as `Note`, joined by newlines."""
    jobs: tuple[Job, ...]
    notes: tuple[str, ...] = ()
    """What strays from the format, and how it was read, with the number of lines."""

    @property
    def max_nodes(self) -> int | None:
        """Number of nodes of the machine; None where the header does not tell."""
        return _size(self.header, "MaxNodes")

    @property
    def max_procs(self) -> int | None:
        """Number of processors of the machine; None where the header does not tell."""
        return _size(self.header, "MaxProcs")


def read_swf(path: Path) -> SwfLog:
    """Read a `.swf` or `.swf.gz` file.

    Raises `LogError` where it cannot be read, or more than a tenth of its lines describe no job; the message has
    the file, the first such line and what is odd about it.
    """
    header: dict[str, str] = {}
    jobs: list[Job] = []
    strays = Counter[str]()
    odd: list[tuple[int, ValueError]] = []
    for number, line in enumerate(_lines(path), start=1):
        if number == 1 and line.startswith(_MARK):
            line = line.removeprefix(_MARK)
            strays["a byte-order mark before the first line, left out"] += 1
        text = line.strip()
        try:
            if text.startswith(";"):
                _add_header_field(header, text)
            elif text:
                jobs.append(_job(text, strays))
        except ValueError as error:
            odd.append((number, error))
    _check_share(path, len(jobs), odd)
    return SwfLog(
        header, tuple(jobs), (*_describe_odd(odd), *(f"{what}: {count:,}" for what, count in strays.items()))
    )


def _check_share(path: Path, num_jobs: int, odd: list[tuple[int, ValueError]]) -> None:
    """Raise `LogError` with the first odd line where there are too many of them."""
    if len(odd) <= _MOST_ODD * (num_jobs + len(odd)):
        return
    number, error = odd[0]
    others = f"; {len(odd):,} of {num_jobs + len(odd):,} lines describe no job" if len(odd) > 1 else ""
    raise LogError(f"{path}, line {number}: {error}{others}: expected the Standard Workload Format") from error


def _describe_odd(odd: list[tuple[int, ValueError]]) -> list[str]:
    if not odd:
        return []
    number, error = odd[0]
    return [f"lines that describe no job, left out: {len(odd):,}; the first is line {number}: {error}"]


def _lines(path: Path) -> Iterator[str]:
    # Names in headers come in many encodings; in this one every byte is a character.
    with open_log(path) as file, io.TextIOWrapper(file, encoding="latin-1") as text:
        yield from text


def _add_header_field(header: dict[str, str], comment: str) -> None:
    key, colon, value = comment.lstrip("; ").partition(":")
    if colon and key.strip():
        earlier = header.get(key.strip())
        header[key.strip()] = value.strip() if earlier is None else f"{earlier}\n{value.strip()}"


def _job(line: str, strays: Counter[str]) -> Job:
    """The job in a line; `strays` counts what strays from the format. Raises `ValueError` for what is no job."""
    fields = line.split()
    if len(fields) < _NUM_FIELDS:
        raise ValueError(f"{len(fields)} fields: expected {_NUM_FIELDS}")
    number, procs, requested = (_whole(fields[at]) for at in (0, 4, 7))
    submit_s, wait_s, run_s, requested_s = (_seconds(fields[at], _TIMES[at]) for at in _TIMES)
    if submit_s is None or submit_s < 0:
        raise ValueError(f"submit time {fields[1]}: expected seconds since the log's start")
    status, user, queue, partition = (_whole(fields[at]) for at in (10, 11, 14, 15))
    if len(fields) > _NUM_FIELDS:
        strays[f"lines with more than {_NUM_FIELDS} fields, of which the others are not read"] += 1
    if "." in fields[0] or "." in fields[4] or "." in fields[10]:
        strays["lines with whole numbers as decimals, read as whole"] += 1
    if status not in _STATUSES:
        strays["jobs of a status that the format does not list, read as unknown"] += 1
        status = SwfStatus.UNKNOWN
    if wait_s is not None and wait_s < 0:
        # The job ran: leaving it out would make its nodes idle.
        strays["negative wait times, read as 0"] += 1
        wait_s = 0.0
    if run_s is not None and run_s < 0:
        strays["negative run times, read as unknown"] += 1
        run_s = None
    return Job(
        id=number,
        submit_s=submit_s,
        wait_s=wait_s,
        run_s=run_s,
        procs=_positive(procs) or _positive(requested),
        requested_s=None if requested_s is None or requested_s < 0 else requested_s,
        status=SwfStatus(status),
        user=_known(user),
        queue=_known(queue),
        partition=_known(partition),
    )


_TIMES = {1: "submit time", 2: "wait time", 3: "run time", 8: "requested time"}
"""Field, counted from 0 -> what it tells."""
_STATUSES = frozenset(SwfStatus)


def _seconds(text: str, what: str) -> float | None:
    """The number of seconds in `text`; None for -1, which stands for unknown. Raises `ValueError`, which names
    `what`, for what is no time."""
    seconds = float(text)
    if seconds == -1:
        return None
    if not -FURTHEST_S <= seconds <= FURTHEST_S:
        raise ValueError(f"{what} {text}: expected seconds, up to {FURTHEST_S:g}, or -1 for unknown")
    return seconds


def _whole(text: str) -> int:
    """The whole number in `text`, also of the form `32.0`. Raises `ValueError` for anything else."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not (math.isfinite(number) and number.is_integer()):
        raise ValueError(f"{text}: expected a whole number")
    return int(number)


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _positive(number: int) -> int | None:
    return number if number > 0 else None


def _size(header: dict[str, str], key: str) -> int | None:
    """The number with which a header field begins, thousands marked or not (sites append remarks); None where
    there is none, or it could be another."""
    number = _SIZE.match(header.get(key, ""))
    return int(re.sub(r"\D", "", number[1])) if number else None
