"""Shares of node-time by use over days, made from hours that are computed once."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from sqlalchemy.orm import Session

from oakum_service.node_history.bars import Window
from oakum_service.node_history.occupancy import (
    USES,
    Shares,
    band_shares,
    in_bands,
    in_columns,
    round_window,
    shares_of,
    times_by_use,
)

_HOUR_S = 3600.0
_STEP_S = 300.0
_STEPS = 12
"""Columns of an hour."""
_SETTLED_S = 600.0
"""Seconds after an hour's end from which on nothing of it changes any more."""
_DIRECT_S = 3 * _HOUR_S
"""Up to such a window the stretches themselves are read: that is quick, and exact to the second."""
_MOST_BYTES = 96 * 2**20
_DAY_HOURS = 24

_Hour = npt.NDArray[np.uint8]
"""Shares in 255ths, of shape (uses, nodes, columns of the hour)."""


class KeptHours:
    """The shares of the hours that were asked for, as long as memory lasts and the nodes stay the same."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._nodes: tuple[str, ...] = ()
        self._hours: OrderedDict[int, _Hour] = OrderedDict()

    def occupancy(
        self, session: Session, nodes: Sequence[str], window: Window, most: tuple[int, int], known: Window
    ) -> tuple[Window, Shares]:
        """The shares by use of at most `most` (bands, columns) in the window, shape (3, bands, columns), and the
        window that they are of: long windows begin and end at multiples of their columns. `known` is from when
        stretches are kept until now; shares before are 0."""
        num_bands, num_columns = most
        if window.to_at - window.from_at <= _DIRECT_S:
            return window, band_shares(session, nodes, window, most, known.to_at)
        window, num_columns = round_window(window, num_columns, _STEP_S)
        first, last = math.floor(window.from_at / _HOUR_S), math.ceil(window.to_at / _HOUR_S)
        with self._lock:
            hours = self._of(session, tuple(nodes), range(first, last), known)
            banded = [_banded(hours.get(hour), min(num_bands, len(nodes))) for hour in range(first, last)]
        steps = np.concatenate(banded, axis=2)
        skipped = round((window.from_at - first * _HOUR_S) / _STEP_S)
        wanted = round((window.to_at - window.from_at) / _STEP_S)
        return window, in_columns(steps[:, :, skipped : skipped + wanted], num_columns)

    def _of(self, session: Session, nodes: tuple[str, ...], hours: range, known: Window) -> dict[int, _Hour]:
        if nodes != self._nodes:
            self._nodes = nodes
            self._hours.clear()
        found: dict[int, _Hour] = {hour: self._hours[hour] for hour in hours if hour in self._hours}
        kept = range(math.floor(known.from_at / _HOUR_S), hours.stop)
        missing = [hour for hour in hours if hour not in found and hour in kept]
        if missing:
            found.update(_computed(session, nodes, range(missing[0], missing[-1] + 1), known.to_at))
        for hour, shares in found.items():
            if (hour + 1) * _HOUR_S + _SETTLED_S < known.to_at:
                self._hours[hour] = shares
                self._hours.move_to_end(hour)
        self._trim()
        return found

    def _trim(self) -> None:
        size = sum(shares.nbytes for shares in self._hours.values())
        while size > self._most_bytes:
            size -= self._hours.popitem(last=False)[1].nbytes


def _banded(hour: _Hour | None, num_bands: int) -> Shares:
    if hour is None:
        return np.zeros((len(USES), num_bands, _STEPS), np.float32)
    return in_bands(hour.astype(np.float32) / 255.0, num_bands)


def _computed(session: Session, nodes: Sequence[str], hours: range, now: float) -> dict[int, _Hour]:
    """The shares of each node in each of the hours. A day at a time, which bounds the memory."""
    whole = Window(hours.start * _HOUR_S, hours.stop * _HOUR_S)
    times = times_by_use(session, {node: row for row, node in enumerate(nodes)}, whole, now)
    sizes = np.ones(len(nodes), np.int64)
    computed = {}
    for first in range(hours.start, hours.stop, _DAY_HOURS):
        last = min(first + _DAY_HOURS, hours.stop)
        window = Window(first * _HOUR_S, last * _HOUR_S)
        shares = shares_of(times, sizes, window, (last - first) * _STEPS)
        levels = np.asarray((shares * 255.0).round(), np.uint8).reshape(len(USES), len(nodes), -1, _STEPS)
        computed.update({first + i: np.ascontiguousarray(levels[:, :, i]) for i in range(last - first)})
    return computed
