"""Launches that come to nothing: when the next one is due, and which nodes are left out meanwhile.

The only place that decides about this. A launch *comes to nothing* if the scheduler refuses its submission or
never begins its job, or if the fragment ends before its agent has reported for the first time. None of these is an
attempt of the trainer, whose code has not run.

- Where one node was tried, the node may be at fault: another one is tried at once, and that node is left out
  until the next launch is due.
- Where two were tried, nothing more is launched for the trainer until the next launch is due. That is a few
  seconds at first, twice as long after each further setback, and at most some minutes.
- A node where fragments end before they report is left out for everybody: a minute at first, twice as long each
  time, at most an hour, until a fragment is ready there or the node comes back from an administrator.
- What a trainer's own code raised there, and raises the same way once more, is the trainer's own error.
- When the trainer's spec, the nodes that were tried or the partition have changed, or fewer of our jobs are
  there, the next launch is due at once.

Pure: times are Unix seconds, and whoever calls reads the clock.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from oakum_service.documents.setback import Setback, SetbackKind
from oakum_service.scheduler_table import ending_lines
from oakum_service.schedulers.port import Snapshot
from oakum_worker.spec import TrainerSpec

_FIRST_S = {SetbackKind.REFUSED: 5.0, SetbackKind.PENDING: 5.0, SetbackKind.UNREPORTED: 2.0}
"""Nodes that are bad are left out one by one; what refuses a submission is the same for all of them."""
LONGEST_S = 300.0
_NODES_KEPT = 4
_LONGEST_TEXT = 500


NODE_FIRST_S = 60.0
NODE_LONGEST_S = 3600.0
_OF_NODES = ("ImportError", "ModuleNotFoundError", "OSError", "FileNotFoundError", "PermissionError")
"""What an interpreter raises where its files are missing or not readable."""
_RAISED = "Submitted job triggered an exception"
"""submitit's words for an exception of what it was to run: interpreter and packages have begun."""


@dataclass(frozen=True)
class LastWords:
    """What the log of a fragment says that ended before it reported."""

    text: str
    is_own: bool
    """Whether the code that was started raised it, rather than the node failed to start it."""


def last_words(lines: Iterable[str]) -> LastWords:
    """The line of a log that tells why its fragment ended."""
    texts = [line.strip() for line in lines if line.strip()]
    noise = ending_lines()
    text = next((line for line in reversed(texts) if not line.startswith(noise)), texts[-1] if texts else "")
    is_own = any(_RAISED in line for line in texts) and not text.startswith(_OF_NODES)
    return LastWords(text[:_LONGEST_TEXT] or "its log is empty", is_own)


def looks_the_same(one: str, other: str, nodes: Iterable[str]) -> bool:
    """Whether two errors differ in nothing but numbers, ids and the names of these nodes."""
    names = "|".join(re.escape(node) for node in sorted(nodes, key=len, reverse=True))
    changing = re.compile(rf"(?:{names})|[0-9a-f]{{8}}-[0-9a-f-]{{27}}|0x[0-9a-f]+|\d+")
    return changing.sub("#", one) == changing.sub("#", other)


@dataclass(frozen=True)
class Surroundings:
    """What a trainer's launches depend on, apart from time."""

    spec: TrainerSpec
    snapshot: Snapshot
    own_jobs: int
    """Number of our fragments, of all trainers, whose jobs the scheduler has taken."""


def after(
    last: Setback | None,
    kind: SetbackKind,
    what: str,
    nodes: Iterable[str],
    surroundings: Surroundings,
    now: float,
    *,
    begun_at: float | None = None,
) -> Setback:
    """The setback of a trainer whose launch on `nodes` has come to nothing just now; `what` says why. `begun_at`:
    when the launch began, if not just now."""
    tried = tuple(dict.fromkeys((*nodes, *(() if last is None else last.nodes))))[:_NODES_KEPT]
    is_same_try = last is not None and begun_at is not None and begun_at <= last.at
    times = 1 if last is None else last.times + (not is_same_try)
    return Setback(
        kind=kind,
        what=" ".join(what.split())[:_LONGEST_TEXT],
        since=now if last is None else last.since,
        at=now,
        times=times,
        next_at=now + delay_s(times, _FIRST_S[kind]),
        nodes=tried,
        basis=_basis(surroundings, tried),
        own_jobs=surroundings.own_jobs,
    )


def delay_s(times: int, first_s: float, longest_s: float = LONGEST_S) -> float:
    """Seconds from the last of so many setbacks in a row to the next try."""
    return min(first_s * 2.0 ** min(times - 1, 30), longest_s)


def may_launch(last: Setback | None, nodes: Collection[str], surroundings: Surroundings, now: float) -> bool:
    """Whether a trainer with this setback may be launched on `nodes` now."""
    if last is None or _is_due(last, surroundings, now):
        return True
    return len(last.nodes) == 1 and last.nodes[0] not in nodes


def suspected_node(last: Setback | None, surroundings: Surroundings, now: float) -> str | None:
    """The node that is left out of plans because the only launches that came to nothing were to run there; None if
    there is none."""
    if last is None or len(last.nodes) > 1 or _is_due(last, surroundings, now):
        return None
    return last.nodes[0]


def after_acceptance(last: Setback | None, nodes: Collection[str]) -> Setback | None:
    """The setback that is left once the scheduler has taken a submission for `nodes`. A refusal is over, unless
    only another node was refused. Whether jobs begin and fragments report is not known yet."""
    if last is None or last.kind is not SetbackKind.REFUSED:
        return last
    return last if len(last.nodes) == 1 and last.nodes[0] not in nodes else None


def _is_due(last: Setback, surroundings: Surroundings, now: float) -> bool:
    has_room = last.kind is not SetbackKind.UNREPORTED and surroundings.own_jobs < last.own_jobs
    return now >= last.next_at or has_room or _basis(surroundings, last.nodes) != last.basis


def _basis(surroundings: Surroundings, nodes: Iterable[str]) -> str:
    """Identifies what a launch on these nodes depends on."""
    nodes_now = ((name, surroundings.snapshot.node(name)) for name in nodes)
    states = [(name, node and (node.state, node.node_type, node.address)) for name, node in nodes_now]
    text = f"{surroundings.spec.model_dump_json()} {states} {surroundings.snapshot.closed}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
