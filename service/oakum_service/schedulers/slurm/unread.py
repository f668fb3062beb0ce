"""Tells of nodes, jobs and reservations that could not be understood: each once in the log, all in a metric."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from oakum_service.instruments import UNREAD
from oakum_service.schedulers.slurm.reading.state import Unread

_COST = {
    "node": "it counts as unavailable",
    "job": "it counts as running on the nodes that it names",
    "reservation": "its nodes count as unavailable",
}
_MOST_LOGGED = 10
"""Most lines at once: a new version of Slurm may make every job unreadable."""
_log = logging.getLogger("oakum.slurm")


class UnreadLog:
    """Remembers what could not be understood in the newest state, and logs what is new."""

    def __init__(self) -> None:
        self._known: frozenset[tuple[str, str]] = frozenset()

    def note_reading(self, unread: Sequence[Unread]) -> None:
        """Log what no reading before this one has shown, and set the metric."""
        new = [one for one in unread if (one.kind, one.name) not in self._known]
        for one in new[:_MOST_LOGGED]:
            _log.warning("%s; %s", one.why, _COST[one.kind])
        if len(new) > _MOST_LOGGED:
            _log.warning("%d more could not be understood either: %s", len(new) - _MOST_LOGGED, counted(unread))
        self._known = frozenset((one.kind, one.name) for one in unread)
        counts = Counter(one.kind for one in unread)
        for kind in _COST:
            UNREAD.labels(kind).set(counts[kind])


def counted(unread: Sequence[Unread]) -> str:
    """A text that says how many nodes, jobs and reservations are among these, such as `2 jobs, 1 node`."""
    counts = Counter(one.kind for one in unread).most_common()
    return ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in counts)
