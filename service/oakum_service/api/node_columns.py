"""Columns of the documents of nodes over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oakum_service.api.schemas.node_history import AnnouncedColumns, FragmentColumns, StretchColumns
from oakum_service.node_history.bars import AnnouncedBar, FragmentBar, Stretch


def stretch_columns(rows: Sequence[Stretch], places: dict[str, int], from_at: float) -> StretchColumns:
    """The stretches of nodes, whose place in the answer `places` has, with times after `from_at`."""
    return StretchColumns(
        node=[places[row.node] for row in rows],
        start_s=_after([row.start_at for row in rows], from_at),
        end_s=_after([row.end_at for row in rows], from_at),
        state=[row.state for row in rows],
        job=[row.job for row in rows],
        name=[row.name for row in rows],
        count=[row.count for row in rows],
    )


def fragment_columns(
    rows: Sequence[FragmentBar], places: dict[str, int], trainers: Sequence[str], from_at: float
) -> FragmentColumns:
    """The fragments, with the places of their nodes and of their trainers in the answer."""
    index = {name: place for place, name in enumerate(trainers)}
    return FragmentColumns(
        node=[places[row.node] for row in rows],
        start_s=_after([row.start_at for row in rows], from_at),
        training_s=_after([row.training_at for row in rows], from_at),
        end_s=_after([row.end_at for row in rows], from_at),
        trainer=[index[row.trainer] for row in rows],
        cause=[row.cause for row in rows],
        count=[row.count for row in rows],
    )


def announced_columns(rows: Sequence[AnnouncedBar], places: dict[str, int], from_at: float) -> AnnouncedColumns:
    """What is announced, with the places of the nodes in the answer."""
    return AnnouncedColumns(
        node=[places[row.node] for row in rows],
        start_s=_after([row.what.start_at for row in rows], from_at),
        end_s=_after([row.what.end_at for row in rows], from_at),
        kind=[row.what.kind for row in rows],
        name=[row.what.name for row in rows],
        title=[row.what.title for row in rows],
    )


def _after(times: Sequence[float | None], from_at: float) -> list[Any]:
    """Seconds after `from_at` to the hundredth; None stays None."""
    seconds = np.round(np.array(times, np.float64) - from_at, 2)  # None becomes NaN
    return [None if second != second else second for second in seconds.tolist()]
