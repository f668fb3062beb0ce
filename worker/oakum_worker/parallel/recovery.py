"""From which step the ranks of a new generation go on, given what each of them still has: a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oakum_worker.parallel.layout import Part, Rows
from oakum_worker.parallel.shards import Snapshot

Announcement = Mapping[str, Any]
"""What one rank tells the others, as JSON."""


@dataclass(frozen=True)
class Source:
    """A step boundary's state of which the ranks have every row among them."""

    step: int
    generation: int
    holders: Mapping[Part, int]
    """Who sends which part; each row is in one of them."""
    speaker: int
    """The rank whose document and unsplit tensors count."""

    def rows(self, snapshots: Iterable[Snapshot], rank: int) -> dict[Part, Rows]:
        """This rank's rows of the parts that it sends."""
        own = [snapshot for snapshot in snapshots if self.is_of(snapshot)]
        mine = {part for part, holder in self.holders.items() if holder == rank}
        return {part: rows for snapshot in own for part, rows in snapshot.parts.items() if part in mine}

    def is_of(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot is of this state."""
        return (snapshot.step, snapshot.generation) == (self.step, self.generation)


def announce(snapshots: Iterable[Snapshot], finished: int | None) -> Announcement:
    """What this rank has, and how many steps it had finished; None for one that has never trained."""
    return {
        "finished": finished,
        "snapshots": [
            {
                "step": snapshot.step,
                "generation": snapshot.generation,
                "parts": [part.to_numbers() for part in snapshot.parts],
            }
            for snapshot in snapshots
        ],
    }


def choose(announcements: Sequence[Announcement]) -> Source | None:
    """The highest step that is there in full, or None. The same on every rank, as the announcements are."""
    found: dict[tuple[int, int], dict[Part, list[int]]] = {}
    for rank, announcement in enumerate(announcements):
        for snapshot in announcement["snapshots"]:
            parts = found.setdefault((snapshot["step"], snapshot["generation"]), {})
            for numbers in snapshot["parts"]:
                holders = parts.setdefault(Part(*numbers), [])
                if rank not in holders:
                    holders.append(rank)
    for (step, generation), parts in sorted(found.items(), reverse=True):
        cover = _cover(parts)
        if cover is not None:
            speaker = min(rank for holders in parts.values() for rank in holders)
            return Source(step, generation, _deal({part: parts[part] for part in cover}), speaker)
    return None


def most_finished(announcements: Sequence[Announcement]) -> int:
    """The highest step that any rank had finished, 0 where none ever trained."""
    return max(announcement["finished"] or 0 for announcement in announcements)


def _cover(parts: Iterable[Part]) -> list[Part] | None:
    """Parts that hold every row once, as few as possible; None where a row is missing."""
    found = set(parts)
    num_parts = next(iter(found)).num_parts
    cover: list[Part] = []
    for number in range(num_parts):
        counts = sorted({part.count for part in found if part.number == number})
        whole = Part(num_parts, number)
        shares = next((whole.shares(count) for count in counts if found.issuperset(whole.shares(count))), None)
        if shares is None:
            return None
        cover += shares
    return cover


def _deal(parts: Mapping[Part, Sequence[int]]) -> dict[Part, int]:
    """One holder for each part, so that none sends much more than another."""
    loads: dict[int, float] = {}
    dealt = {}
    for part, holders in sorted(parts.items()):
        rank = min(holders, key=lambda holder: (loads.get(holder, 0), holder))
        loads[rank] = loads.get(rank, 0) + 1 / part.count
        dealt[part] = rank
    return dealt
