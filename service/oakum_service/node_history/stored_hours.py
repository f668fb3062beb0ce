"""Shares of node-time in hours that are over, kept in the database: a picture of a week is made from these rows
and not from a million stretches."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models.usage import OccupancyHour
from oakum_service.node_history.hours import HOUR_S, SETTLED_S, STEPS, Hour, computed, runs
from oakum_service.node_history.occupancy import USES
from oakum_solver.logs.node_lists import fold, unfold

_MOST_AT_ONCE = 24
_FAST = 1
"""zlib's level."""


def hours_to_store(session: Session, nodes: Sequence[str], known_from: float, now: float) -> list[OccupancyHour]:
    """New rows of some hours that are over at `now` and have none yet, the newest first: one step of several until
    there are none. `known_from` is from when stretches are kept, in Unix seconds. Writes nothing."""
    first, end = math.ceil(known_from / HOUR_S), math.floor((now - SETTLED_S) / HOUR_S)
    if not nodes or first >= end:
        return []
    stored = set(session.scalars(select(OccupancyHour.hour).where(OccupancyHour.hour >= first)))
    missing = [hour for hour in range(first, end) if hour not in stored][-_MOST_AT_ONCE:]
    folded = fold(nodes)
    named = unfold(folded, len(nodes))
    return [
        OccupancyHour(hour=hour, nodes=folded, body=zlib.compress(shares.tobytes(), _FAST))
        for run in runs(missing)
        for hour, shares in computed(session, named, run, now).items()
    ]


def stored(session: Session, nodes: Sequence[str], hours: range) -> dict[int, Hour]:
    """Those of the hours that are in the database, with a row for each of the nodes; one that the cluster did not
    have then has zeros."""
    columns = (OccupancyHour.hour, OccupancyHour.nodes, OccupancyHour.body)
    within = OccupancyHour.hour >= hours.start, OccupancyHour.hour < hours.stop
    places: dict[str, npt.NDArray[np.int64]] = {}
    by_hour = {}
    for hour, folded, body in session.execute(select(*columns).where(*within)):
        if folded not in places:
            places[folded] = _places(folded, nodes)
        shares = np.frombuffer(zlib.decompress(body), np.uint8).reshape(len(USES), -1, STEPS)
        by_hour[hour] = np.pad(shares, ((0, 0), (0, 1), (0, 0)))[:, places[folded]]
    return by_hour


def _places(folded: str, nodes: Sequence[str]) -> npt.NDArray[np.int64]:
    """For each of the nodes its row in hours that are stored for a folded list; the one behind the last for a node
    that is not in the list."""
    known = {node: row for row, node in enumerate(unfold(folded))}
    return np.array([known.get(node, len(known)) for node in nodes], np.int64)
