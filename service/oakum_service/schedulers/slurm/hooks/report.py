"""The report of one hook, and the folded node lists in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from oakum_service.schedulers.port import HookKind
from oakum_solver.logs.node_lists import MOST_NODES

# Possessive, and one alternative for each character: users may write what they like, and the event loop waits.
_FOLDED = re.compile(r"(?:[A-Za-z0-9_.,-]|\[[0-9,-]*+\])*+")
_TERM = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")


class Hook(StrEnum):
    """Which of Slurm's four scripts sends a report."""

    PROLOG_SLURMCTLD = "prolog_slurmctld"
    EPILOG_SLURMCTLD = "epilog_slurmctld"
    PROLOG = "prolog"
    EPILOG = "epilog"

    @property
    def kind(self) -> HookKind:
        """What has happened to the job when this hook runs."""
        return HookKind.ALLOCATED if self in (Hook.PROLOG_SLURMCTLD, Hook.PROLOG) else HookKind.ENDED

    @property
    def on_nodes(self) -> bool:
        """Whether the hook runs on each node of the job, rather than once on the head node."""
        return self in (Hook.PROLOG, Hook.EPILOG)


@dataclass(frozen=True)
class HookReport:
    """What one run of a hook reports. Node lists are folded and well-formed; times are Unix seconds."""

    hook: Hook
    cluster: str
    """Empty if Slurm does not tell the hook."""
    job: int
    restart: int | None
    """How often the job was requeued; None if Slurm does not tell the hook."""
    node: str
    """Where the hook ran; empty for the head node."""
    nodes: str
    uid: int
    partition: str
    start_at: float | None
    end_at: float | None
    at: float


def parse_nodes(folded: str) -> NodeSet:
    """The nodes of a folded list such as `n[001-003,007],gpu1`. Raises `ValueError` if it is invalid or has more
    nodes than any cluster."""
    check_form(folded)
    try:
        return NodeSet(folded or None, resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        raise ValueError(f"expected a folded node list such as n[001-003,007],gpu1: {error}") from error


@lru_cache(maxsize=64)
def check_form(folded: str) -> str:
    """Return the folded list unchanged if it looks like one and names no more nodes than a cluster has; otherwise
    raise `ValueError`. Takes a time proportional to the text, since nothing is expanded. Results are cached: every
    hook of a large job sends the same list."""
    if not _FOLDED.fullmatch(folded):
        raise ValueError("expected a folded node list such as n[001-003,007],gpu1")
    if num_nodes(folded) > MOST_NODES:
        raise ValueError(f"a node list of more than {MOST_NODES:,} nodes")
    return folded


@lru_cache(maxsize=64)
def check_nodes(folded: str) -> None:
    """Raise as `parse_nodes` does if the list is not valid. Expands the list: call it in a thread."""
    parse_nodes(folded)


def num_nodes(folded: str) -> int:
    """Number of nodes that the list spells out, without expanding it; duplicates count each time."""
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
    # A number too long for a node's counts as too many nodes.
    return 1 if len(part) <= 9 else MOST_NODES + 1
