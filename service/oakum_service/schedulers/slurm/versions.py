"""Which version of Slurm answers, and what that version can be asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from oakum_service.errors import PayloadError

PARSERS = tuple(f"v0.0.{number}" for number in range(44, 34, -1))
"""Data parsers that we read, newest first."""

POOR_PARSERS = frozenset(PARSERS[-4:])
"""Those of 22.05 and before, which leave out what commands tell as text; see `choose_dialect`."""

_NATIVE_PARSERS = {
    (23, 2): 39,
    (23, 11): 40,
    (24, 5): 41,
    (24, 11): 42,
    (25, 5): 43,
    (25, 11): 44,
}
"""Version -> the newest parser that it has."""

_FIRST_JSON = (21, 8)
_FIRST_WHOLE_JSON = (23, 2)
_FIRST_PINNED = (23, 11)
_VERSION = re.compile(r"(?:slurm\S*\s+)?(\d+)\.(\d+)(?:\.(\S+))?")


@dataclass(frozen=True, order=True)
class SlurmVersion:
    """A release of Slurm."""

    major: int
    minor: int
    patch: str = ""

    @classmethod
    def parse(cls, text: str, call: str) -> SlurmVersion:
        """From `slurm 23.02.7`, or Debian's `slurm-wlm 22.05.8`. Raises `PayloadError` naming the call."""
        match = _VERSION.match(text.strip())
        if match is None:
            raise PayloadError(f"{call} answered {text[:80]!r}, expected a version such as 'slurm 23.02.7'")
        return cls(int(match[1]), int(match[2]), match[3] or "")

    def __str__(self) -> str:
        return f"{self.major}.{self.minor:02}" + (f".{self.patch}" if self.patch else "")

    @property
    def release(self) -> tuple[int, int]:
        """Without the patch level, which changes no format."""
        return self.major, self.minor


@dataclass(frozen=True)
class Dialect:
    """How the commands of one version are asked."""

    version: SlurmVersion
    json: bool
    parser: str | None = None
    """What `--json=` pins; None: the version cannot, or has but one."""

    @property
    def whole_json(self) -> bool:
        """Whether `scontrol` speaks JSON, and not `squeue` and `sinfo` alone."""
        return self.json and self.version.release >= _FIRST_WHOLE_JSON

    @property
    def json_option(self) -> str:
        """`--json`, pinned where it can be."""
        return f"--json={self.parser}" if self.parser else "--json"

    @property
    def name(self) -> str:
        """For messages."""
        return f"Slurm {self.version}" + (f", parser {self.parser}" if self.parser else "")


def choose_dialect(
    version: SlurmVersion, wanted: Literal["auto", "json", "text"], parser: str | None = None
) -> Dialect:
    """How to ask this version.

    `auto` takes JSON from 23.02 on: that of 21.08 and 22.05 leaves out where pending jobs are planned to start,
    and that of 21.08 also that a node is PLANNED or POWERED_DOWN; their format strings have both.
    """
    release = version.release
    first = {"auto": _FIRST_WHOLE_JSON, "json": _FIRST_JSON}.get(wanted)
    json = first is not None and release >= first
    if not json or release < _FIRST_PINNED:
        return Dialect(version, json)
    return Dialect(version, json, parser or newest_parser(version))


def newest_parser(version: SlurmVersion) -> str | None:
    """The newest parser that this version and we know; None before there were any."""
    known = [number for release, number in _NATIVE_PARSERS.items() if release <= version.release]
    return f"v0.0.{max(known)}" if known else None
