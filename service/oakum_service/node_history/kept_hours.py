"""Shares of node-time by use over days, made from hours that are computed once."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from sqlalchemy.orm import Session

from oakum_service.node_history.bars import Window
from oakum_service.node_history.hours import HOUR_S, SETTLED_S, STEP_S, STEPS, Hour, computed, runs
from oakum_service.node_history.occupancy import USES, Shares, band_shares, in_bands, in_columns, round_window
from oakum_service.node_history.stored_hours import stored

_DIRECT_S = 3 * HOUR_S
"""Up to such a window the stretches themselves are read: that is quick, and exact to the second."""
_MOST_BYTES = 96 * 2**20


class KeptHours:
    """The shares of the hours that were asked for, as long as memory lasts and the nodes stay the same."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._nodes: tuple[str, ...] = ()
        self._hours: OrderedDict[int, Hour] = OrderedDict()

    def occupancy(
        self, session: Session, nodes: Sequence[str], window: Window, most: tuple[int, int], recorded: Window
    ) -> tuple[Window, Shares]:
        """The shares by use of at most `most` (bands, columns) in the window, shape (3, bands, columns), and the
        window that they are of: long windows begin and end at multiples of their columns. `recorded` is from when
        stretches are kept until now; shares before are 0."""
        num_bands, num_columns = most
        if window.to_at - window.from_at <= _DIRECT_S:
            return window, band_shares(session, nodes, window, most, recorded.to_at)
        window, num_columns = round_window(window, num_columns, STEP_S)
        first, last = math.floor(window.from_at / HOUR_S), math.ceil(window.to_at / HOUR_S)
        with self._lock:
            hours = self._of(session, tuple(nodes), range(first, last), recorded)
            banded = [_banded(hours.get(hour), min(num_bands, len(nodes))) for hour in range(first, last)]
        steps = np.concatenate(banded, axis=2)
        skipped = round((window.from_at - first * HOUR_S) / STEP_S)
        wanted = round((window.to_at - window.from_at) / STEP_S)
        return window, in_columns(steps[:, :, skipped : skipped + wanted], num_columns)

    def _of(self, session: Session, nodes: tuple[str, ...], hours: range, recorded: Window) -> dict[int, Hour]:
        if nodes != self._nodes:
            self._nodes = nodes
            self._hours.clear()
        shares_of: dict[int, Hour] = {hour: self._hours[hour] for hour in hours if hour in self._hours}
        kept = range(math.floor(recorded.from_at / HOUR_S), hours.stop)
        missing = [hour for hour in hours if hour not in shares_of and hour in kept]
        if missing:
            in_database = stored(session, nodes, range(missing[0], missing[-1] + 1))
            shares_of.update({hour: in_database[hour] for hour in missing if hour in in_database})
            for run in runs(hour for hour in missing if hour not in in_database):
                shares_of.update(computed(session, nodes, run, recorded.to_at))
        for hour, shares in shares_of.items():
            if (hour + 1) * HOUR_S + SETTLED_S < recorded.to_at:
                self._hours[hour] = shares
                self._hours.move_to_end(hour)
        self._trim()
        return shares_of

    def _trim(self) -> None:
        size = sum(shares.nbytes for shares in self._hours.values())
        while size > self._most_bytes:
            size -= self._hours.popitem(last=False)[1].nbytes


def _banded(hour: Hour | None, num_bands: int) -> Shares:
    if hour is None:
        return np.zeros((len(USES), num_bands, STEPS), np.float32)
    return in_bands(hour.astype(np.float32) / 255.0, num_bands)
