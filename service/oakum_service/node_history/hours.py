"""Shares of node-time by use in whole hours, node by node: what pictures of days are made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
from sqlalchemy.orm import Session

from oakum_service.node_history.bars import Window
from oakum_service.node_history.occupancy import USES, shares_of, times_by_use

HOUR_S = 3600.0
STEP_S = 300.0
STEPS = 12
"""Columns of an hour."""
SETTLED_S = 600.0
"""Seconds after an hour's end from which on nothing of it changes any more."""
_DAY_HOURS = 24

Hour = npt.NDArray[np.uint8]
"""Shares in 255ths, of shape (uses, nodes, columns of the hour)."""


def computed(session: Session, nodes: Sequence[str], hours: range, now: float) -> dict[int, Hour]:
    """The shares of each node in each of the hours, from the stretches themselves. A day at a time, which bounds
    the memory."""
    whole = Window(hours.start * HOUR_S, hours.stop * HOUR_S)
    times = times_by_use(session, {node: row for row, node in enumerate(nodes)}, whole, now)
    sizes = np.ones(len(nodes), np.int64)
    by_hour = {}
    for first in range(hours.start, hours.stop, _DAY_HOURS):
        last = min(first + _DAY_HOURS, hours.stop)
        window = Window(first * HOUR_S, last * HOUR_S)
        shares = shares_of(times, sizes, window, (last - first) * STEPS)
        levels = np.asarray((shares * 255.0).round(), np.uint8).reshape(len(USES), len(nodes), -1, STEPS)
        by_hour.update({first + i: np.ascontiguousarray(levels[:, :, i]) for i in range(last - first)})
    return by_hour


def runs(hours: Iterable[int]) -> Iterator[range]:
    """The hours, which rise, as ranges of those that follow one another: 3, 4, 7 are 3 to 4 and 7 to 7."""
    for _, group in groupby(enumerate(hours), key=lambda pair: pair[1] - pair[0]):
        together = [hour for _, hour in group]
        yield range(together[0], together[-1] + 1)
