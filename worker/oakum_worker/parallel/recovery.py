"""Decides from which step a new generation continues, given what each of its ranks still has in memory.

Pure: no communication here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oakum_worker.parallel.holdings import Part, Rows
from oakum_worker.parallel.split_state import RankSnapshot

Announcement = Mapping[str, Any]
"""JSON that one rank sends to all: its snapshots, the number of steps that it has finished, and the age of the
last durable checkpoint that it knows of."""


@dataclass(frozen=True)
class Source:
    """A trainer's state at one step boundary that ranks still have in memory, with the rank that sends each part.
    Every row is held by at least one rank."""

    step: int
    generation: int
    holders: Mapping[Part, int]
    """Part -> rank that sends it. The parts cover each row once."""
    speaker: int
    """The rank that sends the state's document and the tensors that are not split."""

    def rows(self, snapshots: Iterable[RankSnapshot], rank: int) -> dict[Part, Rows]:
        """The rows that `rank` has to send: part -> (path -> rows), taken from `snapshots`, the rank's own."""
        own = [snapshot for snapshot in snapshots if self.is_of(snapshot)]
        mine = {part for part, holder in self.holders.items() if holder == rank}
        return {part: rows for snapshot in own for part, rows in snapshot.parts.items() if part in mine}

    def is_of(self, snapshot: RankSnapshot) -> bool:
        """Whether the snapshot belongs to this state: same step and generation."""
        return (snapshot.step, snapshot.generation) == (self.step, self.generation)


def announce(snapshots: Iterable[RankSnapshot], finished: int | None, age_s: float) -> Announcement:
    """What this rank tells the others before they choose a state to go on from: its snapshots, without values;
    `finished`, its number of finished steps (None if it has never trained); and `age_s`, the seconds since the
    last durable checkpoint that it knows of."""
    return {
        "finished": finished,
        "age_s": age_s,
        "snapshots": [
            {
                "step": snapshot.step,
                "generation": snapshot.generation,
                "parts": [part.to_json() for part in snapshot.parts],
            }
            for snapshot in snapshots
        ],
    }


def choose_source(announcements: Sequence[Announcement]) -> Source | None:
    """The state of the latest step of which the ranks together hold every part; None if there is none.
    `announcements` has each rank's, by rank. Every rank computes the same choice."""
    states: dict[tuple[int, int], dict[Part, list[int]]] = {}
    for rank, announcement in enumerate(announcements):
        for snapshot in announcement["snapshots"]:
            parts = states.setdefault((snapshot["step"], snapshot["generation"]), {})
            for fields in snapshot["parts"]:
                holders = parts.setdefault(Part(*fields), [])
                if rank not in holders:
                    holders.append(rank)
    for (step, generation), parts in sorted(states.items(), reverse=True):
        cover = _cover(parts)
        if cover is not None:
            speaker = min(rank for holders in parts.values() for rank in holders)
            return Source(step, generation, _deal({part: parts[part] for part in cover}), speaker)
    return None


def most_finished(announcements: Sequence[Announcement]) -> int:
    """The largest number of steps that any rank has finished; 0 if none has trained."""
    return max(announcement["finished"] or 0 for announcement in announcements)


def has_anybody_trained(announcements: Sequence[Announcement]) -> bool:
    """Whether any rank has trained before."""
    return any(announcement["finished"] is not None for announcement in announcements)


def greatest_age_s(announcements: Sequence[Announcement]) -> float:
    """Seconds since the last durable checkpoint, as the ranks know that have trained; 0 if none has trained.

    The greatest: after a checkpoint that was not finished, only the older one counts.
    """
    trained = [announcement for announcement in announcements if announcement["finished"] is not None]
    return max((float(announcement["age_s"]) for announcement in trained), default=0.0)


def _cover(parts: Iterable[Part]) -> list[Part] | None:
    """A set of the parts that covers each row exactly once, with as few parts as possible; None where a row is
    missing."""
    held = set(parts)
    like = next(iter(held))
    cover: list[Part] = []
    for number in range(like.num_parts):
        counts = sorted({part.count for part in held if part.number == number})
        whole = Part(like.num_parts, number, grid=like.grid)
        shares = next((whole.shares(count) for count in counts if held.issuperset(whole.shares(count))), None)
        if shares is None:
            return None
        cover += shares
    return cover


def _deal(parts: Mapping[Part, Sequence[int]]) -> dict[Part, int]:
    """Part -> the rank that sends it, one of the part's holders in `parts`, chosen so that ranks send about
    equally much."""
    loads: dict[int, float] = {}
    dealt = {}
    for part, holders in sorted(parts.items()):
        rank = min(holders, key=lambda holder: (loads.get(holder, 0), holder))
        loads[rank] = loads.get(rank, 0) + 1 / part.count
        dealt[part] = rank
    return dealt
