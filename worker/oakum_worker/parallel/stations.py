"""What follows from where the ranks of a generation stand: which of them share a node, or a fragment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from oakum_worker.protocol import Station


def node_sizes(stations: Sequence[Station]) -> tuple[int, ...]:
    """How many ranks each node has, in the order of ranks, those of a node being consecutive."""
    return tuple(Counter(station.node for station in stations).values())


def other_end(stations: Sequence[Station]) -> int | None:
    """The lowest rank on another node than rank 0; None where all are on one node."""
    return next((rank for rank, station in enumerate(stations) if station.node != stations[0].node), None)


def num_together(stations: Sequence[Station]) -> int:
    """How many ranks rank 0's fragment has, which come first: the GPUs of these reach each other directly."""
    return sum(station.fragment == stations[0].fragment for station in stations)


def copy_distance(stations: Sequence[Station]) -> int:
    """How far from a rank, in numbers of ranks and around the end, its copy is kept.

    As few copies as can be are kept on the node of their rank, and of these as few as can be in its fragment: a
    scheduler takes back a fragment, and a node fails as a whole. Each rank keeps one other rank's copy, so a node
    with more than half of the ranks cannot have all of its copies elsewhere. Raises `ValueError` for a rank alone.
    """
    if len(stations) < 2:
        raise ValueError("a rank alone has nobody to keep its copy")
    distances: dict[tuple[int, int], int] = {}
    for distance in range(1, len(stations) // 2 + 1):  # beyond, the same pairs come again
        kept_close = _kept_close(stations, distance)
        distances.setdefault(kept_close, distance)
        if kept_close == (0, 0):
            break
    return distances[min(distances)]


def _kept_close(stations: Sequence[Station], distance: int) -> tuple[int, int]:
    """How many copies are kept on their rank's node, and how many of them in its fragment."""
    pairs = [(one, stations[(rank + distance) % len(stations)]) for rank, one in enumerate(stations)]
    return sum(one.node == other.node for one, other in pairs), sum(one == other for one, other in pairs)
