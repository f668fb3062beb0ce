"""Shares of node-time by use, for bands of neighbouring nodes and columns of time.

The picture of thousands of nodes over days is made of these: no band has more than a row of pixels, no column more
than a column of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import Select, literal, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment
from oakum_service.documents.slots import JOINT, slots_in
from oakum_service.node_history.bars import Window
from oakum_service.states import NodeState

Shares = npt.NDArray[np.float32]
"""Shares of time from 0 to 1, of shape (uses, rows, columns); `USES` names the uses in their order."""
USES = ("foreground", "hole", "training")
_STATES = (NodeState.FOREGROUND.value, NodeState.HOLE.value)
_AT_ONCE = 1_000


class Times(NamedTuple):
    """Stretches of one use as arrays of shape (stretches,)."""

    row: npt.NDArray[np.int64]
    """The band of the node."""
    start_at: npt.NDArray[np.float64]
    """Unix seconds."""
    end_at: npt.NDArray[np.float64]


def times_by_use(
    session: Session, row_of: Mapping[str, int], window: Window, now: float
) -> tuple[Times, Times, Times]:
    """The stretches of the nodes in `row_of` that overlap the window, for each of `USES`. What lasts ends at
    `now`, in Unix seconds."""
    intervals = select(
        NodeInterval.node, NodeInterval.start_at, NodeInterval.end_at, NodeInterval.state == NodeState.HOLE.value
    ).where(NodeInterval.state.in_(_STATES))
    times, is_hole = _arrays(
        _within(session, intervals, NodeInterval.start_at, NodeInterval.end_at, window), row_of, now
    )
    fragments = select(Fragment.node, Fragment.training_at, Fragment.ended_at, literal(False))
    trained, _ = _arrays(_within(session, fragments, Fragment.training_at, Fragment.ended_at, window), row_of, now)
    return _of(times, ~is_hole), _of(times, is_hole), trained


def _within(
    session: Session,
    query: Select[*tuple[Any, ...]],
    begun: InstrumentedAttribute[Any],
    ended: InstrumentedAttribute[float | None],
    window: Window,
) -> Iterator[Sequence[Any]]:
    """The rows of the query that overlap the window, some thousands at a time: of a week there may be a million.
    Two queries: for an OR, SQLite reads the whole table."""
    for present in (ended.is_(None), ended > window.from_at):
        # Of the connection, since the session would look for entities in each row.
        yield from session.connection().execute(query.where(begun < window.to_at, present)).partitions(_AT_ONCE)


def _arrays(
    parts: Iterable[Sequence[Any]], row_of: Mapping[str, int], now: float
) -> tuple[Times, npt.NDArray[np.bool_]]:
    """Rows (node, begin, end, flag) of the nodes in `row_of` as arrays, and their flags. What lasts ends at
    `now`."""
    rows, begins, ends, flags = [np.empty(0, np.int64)], [np.empty(0)], [np.empty(0)], [np.empty(0, np.bool_)]
    for part in parts:
        each = [row for row in part if JOINT not in row[0]]
        each += [(slot, *row[1:]) for row in part if JOINT in row[0] for slot in slots_in(row[0])]
        rows.append(np.array([row_of.get(row[0], -1) for row in each], np.int64))
        begins.append(np.array([row[1] for row in each], np.float64))
        ends.append(np.array([row[2] for row in each], np.float64))  # None becomes NaN
        flags.append(np.array([row[3] for row in each], np.bool_))
    row, end_at = np.concatenate(rows), np.concatenate(ends)
    times = Times(row, np.concatenate(begins), np.where(np.isnan(end_at), now, end_at))
    is_wanted = row >= 0
    return _of(times, is_wanted), np.concatenate(flags)[is_wanted]


def _of(times: Times, which: npt.NDArray[np.bool_]) -> Times:
    return Times(times.row[which], times.start_at[which], times.end_at[which])


def shares_of(times: Sequence[Times], sizes: npt.NDArray[np.int64], window: Window, num_columns: int) -> Shares:
    """The shares by use in bands of `sizes` nodes, in `num_columns` equal parts of the window."""
    shares = np.zeros((len(times), len(sizes), num_columns), np.float32)
    for use, of_use in enumerate(times):
        within = (of_use.start_at < window.to_at) & (of_use.end_at > window.from_at)
        clipped = Times(of_use.row[within], of_use.start_at[within], of_use.end_at[within])
        _add(shares[use], clipped, window)
    shares /= sizes[None, :, None]
    # Two fragments of one node may overlap by the second in which one leaves; a node is no more than one node.
    return np.minimum(shares, 1.0, out=shares)


def band_shares(
    session: Session, nodes: Sequence[str], window: Window, most: tuple[int, int], now: float
) -> Shares:
    """The shares by use of `most` (bands, columns) in the window: bands of neighbouring nodes, as equal in size as
    can be and of a node at least. `now` is in Unix seconds."""
    sizes = np.diff(band_edges(len(nodes), most[0]))
    band_of = np.repeat(np.arange(len(sizes)), sizes).tolist()
    times = times_by_use(session, dict(zip(nodes, band_of, strict=True)), window, now)
    return shares_of(times, sizes, window, most[1])


def _add(shares: npt.NDArray[np.float32], times: Times, window: Window) -> None:
    """Add the stretches' shares of each column to `shares`, of shape (rows, columns)."""
    width_s = (window.to_at - window.from_at) / shares.shape[1]
    begin = np.clip((times.start_at - window.from_at) / width_s, 0.0, shares.shape[1])
    end = np.clip((times.end_at - window.from_at) / width_s, 0.0, shares.shape[1])
    shares += _before(times.row, np.maximum(begin, end), shares.shape) - _before(times.row, begin, shares.shape)


def _before(
    row: npt.NDArray[np.int64], at: npt.NDArray[np.float64], shape: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """How much of each column lies before the times `at` (in columns), summed by row."""
    num_rows, num_columns = shape
    whole = np.floor(at).astype(np.int64)
    place = row * (num_columns + 1) + whole
    size = num_rows * (num_columns + 1)
    complete = np.bincount(place, minlength=size).reshape(num_rows, num_columns + 1)
    partial = np.bincount(place, weights=at - whole, minlength=size).reshape(num_rows, num_columns + 1)
    later = complete[:, ::-1].cumsum(axis=1)[:, ::-1]
    return (later[:, 1:] + partial[:, :-1]).astype(np.float64)


def in_bands(shares: Shares, num_bands: int) -> Shares:
    """The mean shares of `num_bands` bands of neighbouring rows, as equal in size as can be."""
    edges = band_edges(shares.shape[1], num_bands)
    sizes = np.diff(edges).astype(np.float32)
    sums = np.add.reduceat(shares, edges[:-1], axis=1)
    return np.asarray(sums / sizes[None, :, None], np.float32)


def band_edges(num_rows: int, num_bands: int) -> npt.NDArray[np.int64]:
    """The first row of each band, and the number of rows."""
    return np.linspace(0, num_rows, min(num_bands, num_rows) + 1).round().astype(np.int64)


def in_columns(shares: Shares, num_columns: int) -> Shares:
    """The mean shares of fewer columns: `num_columns` has to divide the columns there are."""
    uses, rows, columns = shares.shape
    return np.asarray(shares.reshape(uses, rows, num_columns, columns // num_columns).mean(axis=3), np.float32)


def round_window(window: Window, most_columns: int, step_s: float) -> tuple[Window, int]:
    """A window with borders at multiples of a column, which is a multiple of `step_s`, and its number of columns,
    at most `most_columns`; it holds the given one."""
    for factor in _FACTORS:
        width_s = factor * step_s
        first, last = math.floor(window.from_at / width_s), math.ceil(window.to_at / width_s)
        if last - first <= most_columns or factor == _FACTORS[-1]:
            break
    return Window(first * width_s, last * width_s), last - first


_FACTORS = (1, 2, 3, 4, 6, 12, 24, 48, 72, 144, 288)
