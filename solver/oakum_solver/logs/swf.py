"""Reads the Standard Workload Format (SWF) of the Parallel Workloads Archive.

Each line is one job with 18 numbers, -1 for unknown values; header lines read `; Key: value`. Definition:
Feitelson, "The Standard Workload Format", Parallel Workloads Archive, version 2.2; Chapin et al., JSSPP
1999.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from oakum_solver.errors import LogError
from oakum_solver.logs.files import FURTHEST_S, open_log

_NUM_FIELDS = 18


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

    Raises `LogError` with file, line and cause where it cannot be read or a line is malformed.
    """
    header: dict[str, str] = {}
    jobs: list[Job] = []
    for number, line in enumerate(_lines(path), start=1):
        text = line.strip()
        try:
            if text.startswith(";"):
                _add_header_field(header, text)
            elif text:
                jobs.append(_job(text))
        except ValueError as error:
            raise LogError(f"{path}, line {number}: {error}") from error
    return SwfLog(header, tuple(jobs))


def _lines(path: Path) -> Iterator[str]:
    # Names in headers come in many encodings; in this one every byte is a character.
    with open_log(path) as file, io.TextIOWrapper(file, encoding="latin-1") as text:
        yield from text


def _add_header_field(header: dict[str, str], comment: str) -> None:
    key, colon, value = comment.lstrip("; ").partition(":")
    if colon and key.strip():
        known = header.get(key.strip())
        header[key.strip()] = value.strip() if known is None else f"{known}\n{value.strip()}"


def _job(line: str) -> Job:
    fields = line.split()
    if len(fields) != _NUM_FIELDS:
        raise ValueError(f"{len(fields)} fields: expected {_NUM_FIELDS}")
    submit_s = _seconds(fields[1], "submit time")
    if submit_s is None:
        raise ValueError("the submit time is unknown: expected seconds since the log's start")
    return Job(
        id=int(fields[0]),
        submit_s=submit_s,
        wait_s=_seconds(fields[2], "wait time"),
        run_s=_seconds(fields[3], "run time"),
        procs=_positive(fields[4]) or _positive(fields[7]),
        requested_s=_seconds(fields[8], "requested time"),
        status=SwfStatus(int(fields[10])),
        user=_known(fields[11]),
        queue=_known(fields[14]),
        partition=_known(fields[15]),
    )


def _seconds(text: str, what: str) -> float | None:
    """The number of seconds in `text`; None for -1, which stands for unknown. Raises `ValueError`, which names
    `what`, for anything else."""
    seconds = float(text)
    if seconds == -1:
        return None
    if not 0 <= seconds <= FURTHEST_S:
        raise ValueError(f"{what} {text}: expected seconds >= 0, up to {FURTHEST_S:g}, or -1 for unknown")
    return seconds


def _known(text: str) -> int | None:
    number = int(text)
    return None if number < 0 else number


def _positive(text: str) -> int | None:
    number = int(text)
    return number if number > 0 else None


def _size(header: dict[str, str], key: str) -> int | None:
    """The number with which a header field begins (sites append remarks); None where there is none."""
    number = re.match(r"[1-9]\d{0,8}\b", header.get(key, ""), re.ASCII)
    return int(number[0]) if number else None
