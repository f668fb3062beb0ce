"""What one hook of Slurm's tells, and the folded node lists in which it does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from oakum_service.schedulers.slurm.hook_event import HookKind

_MOST_NODES = 200_000
_FOLDED = re.compile(r"[A-Za-z0-9_.,\[\]-]*")
_TERM = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")


class Hook(StrEnum):
    """Which of Slurm's scripts has told."""

    PROLOG_SLURMCTLD = "prolog_slurmctld"
    EPILOG_SLURMCTLD = "epilog_slurmctld"
    PROLOG = "prolog"
    EPILOG = "epilog"

    @property
    def kind(self) -> HookKind:
        """What has happened to the job when it runs."""
        return HookKind.ALLOCATED if self in (Hook.PROLOG_SLURMCTLD, Hook.PROLOG) else HookKind.ENDED

    @property
    def on_nodes(self) -> bool:
        """Whether it runs on each node of the job, and not once on the head node."""
        return self in (Hook.PROLOG, Hook.EPILOG)


@dataclass(frozen=True)
class HookReport:
    """What one hook tells, once. Node lists are folded and well-formed; times are Unix seconds."""

    hook: Hook
    cluster: str
    """Empty where Slurm does not tell the hook."""
    job: int
    restart: int | None
    """None where Slurm does not tell the hook."""
    node: str
    """Where the hook ran; empty on the head node."""
    nodes: str
    uid: int
    partition: str
    start_at: float | None
    end_at: float | None
    at: float


def parse_nodes(folded: str) -> NodeSet:
    """The nodes of a folded list. Raises `ValueError` where it is none, or has more nodes than any cluster."""
    if not _FOLDED.fullmatch(folded):
        raise ValueError("expected a folded node list such as n[001-003,007],gpu1")
    if _size(folded) > _MOST_NODES:
        raise ValueError(f"a node list of more than {_MOST_NODES:,} nodes")
    try:
        return NodeSet(folded or None, resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        raise ValueError(f"expected a folded node list such as n[001-003,007],gpu1: {error}") from error


@lru_cache(maxsize=64)
def check_nodes(folded: str) -> str:
    """The list itself. Raises the errors of `parse_nodes`. Every hook of a large job sends the same long one."""
    parse_nodes(folded)
    return folded


def _size(folded: str) -> int:
    """At least how many nodes it has, without making them."""
    size = 0
    for term in _TERM.findall(folded):
        in_term = 1
        for ranges in _BRACKETS.findall(term):
            in_term *= sum(_range_size(part) for part in ranges.split(","))
        size += in_term
    return size


def _range_size(part: str) -> int:
    if (ends := _RANGE.fullmatch(part)) is not None:
        return max(1, int(ends[2]) - int(ends[1]) + 1)
    # A number too long to be one of a node counts as too many.
    return 1 if len(part) <= 9 else _MOST_NODES + 1
