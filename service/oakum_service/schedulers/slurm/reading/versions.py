"""Parses versions of Slurm, and knows what each version can be asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from oakum_service.errors import PayloadError

PARSERS = tuple(f"v0.0.{number}" for number in range(44, 34, -1))
"""Data parsers that we can read, the newest first."""

POOR_PARSERS = frozenset(PARSERS[-4:])
"""Parsers of 22.05 and before, which leave out some of what the commands' text contains; see `choose_dialect`."""

_NATIVE_PARSERS = {
    (23, 2): 39,
    (23, 11): 40,
    (24, 5): 41,
    (24, 11): 42,
    (25, 5): 43,
    (25, 11): 44,
}
"""Version -> number of its newest parser."""

_FIRST_JSON = (21, 8)
_FIRST_WHOLE_JSON = (23, 2)
_FIRST_PINNED = (23, 11)
_VERSION = re.compile(r"(?:slurm\S*\s+)?(\d+)\.(\d+)(?:\.(\S+))?")


@dataclass(frozen=True, order=True)
class SlurmVersion:
    """A release of Slurm, such as 23.02.7."""

    major: int
    minor: int
    patch: str = ""

    @classmethod
    def parse(cls, text: str, call: str) -> SlurmVersion:
        """The version in `slurm 23.02.7`, or in Debian's `slurm-wlm 22.05.8`. Raises `PayloadError`, which
        names the call."""
        match = _VERSION.match(text.strip())
        if match is None:
            raise PayloadError(f"{call} answered {text[:80]!r}, expected a version such as 'slurm 23.02.7'")
        return cls(int(match[1]), int(match[2]), match[3] or "")

    def __str__(self) -> str:
        return f"{self.major}.{self.minor:02}" + (f".{self.patch}" if self.patch else "")

    @property
    def release(self) -> tuple[int, int]:
        """The version without its patch level, which changes no format."""
        return self.major, self.minor


@dataclass(frozen=True)
class Dialect:
    """The form of the commands of one version of Slurm: how each is called, and whether it prints JSON or text."""

    version: SlurmVersion
    json: bool
    parser: str | None = None
    """Parser to request with `--json=`; None if this version cannot choose or has only one."""

    @property
    def whole_json(self) -> bool:
        """Whether `scontrol` speaks JSON as well, not only `squeue` and `sinfo`."""
        return self.json and self.version.release >= _FIRST_WHOLE_JSON

    @property
    def json_option(self) -> str:
        """The option for JSON, with the parser if one can be chosen."""
        return f"--json={self.parser}" if self.parser else "--json"

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"Slurm {self.version}" + (f", parser {self.parser}" if self.parser else "")


def choose_dialect(
    version: SlurmVersion, wanted: Literal["auto", "json", "text"], parser: str | None = None
) -> Dialect:
    """The dialect for this version. `auto` means JSON from 23.02 on. The JSON of 21.08 and 22.05 leaves out
    where pending jobs are planned to start, and that of 21.08 also whether a node is PLANNED or POWERED_DOWN;
    their text contains both."""
    release = version.release
    first = {"auto": _FIRST_WHOLE_JSON, "json": _FIRST_JSON}.get(wanted)
    json = first is not None and release >= first
    if not json or release < _FIRST_PINNED:
        return Dialect(version, json)
    return Dialect(version, json, parser or newest_parser(version))


def newest_parser(version: SlurmVersion) -> str | None:
    """The newest parser that both this version and we know; None before there were parsers."""
    known = [number for release, number in _NATIVE_PARSERS.items() if release <= version.release]
    return f"v0.0.{max(known)}" if known else None
