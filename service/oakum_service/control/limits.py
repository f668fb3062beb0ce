"""The limits that administrators set on what Oakum promises, and whether they are kept: how long foreground jobs
wait for fragments, and how much of the lent node-time brings nothing. Beside them, what becomes of idle
node-time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sqlalchemy.orm import Session

from oakum_service import instruments
from oakum_service.config import Settings
from oakum_service.control.delays import WeekOfDelays, quantile
from oakum_service.control.idle_time import USES, idle_time
from oakum_service.control.ledger import ledger, month_of
from oakum_service.control.retention import HISTORY_S
from oakum_service.control.usage import usage_since

_EVERY_S = 30.0
"""Seconds between two looks: a week of delays and a month of the ledger change slowly."""


@dataclass(frozen=True)
class Kept:
    """A figure with its limit; None where there is no figure yet, or no limit."""

    figure: float | None
    limit: float | None

    @property
    def is_exceeded(self) -> bool:
        """Whether the figure is above its limit."""
        return self.figure is not None and self.limit is not None and self.figure > self.limit


def lost_share(session: Session, now: float) -> float | None:
    """Share of the node-time lent in this month (UTC) that brought nothing; None where none was lent."""
    month = month_of(now)
    sums = ledger(session, month, month, None, now).values()
    lent_node_s = sum(each.lent_node_s for each in sums)
    return sum(each.lost_node_s for each in sums) / lent_node_s if lent_node_s > 0 else None


class LimitWatch:
    """Tells the metrics whether limits are kept, looking every half minute."""

    def __init__(self) -> None:
        self._delays = WeekOfDelays()
        self._looked_at = -math.inf

    def read(self, session: Session, settings: Settings, now: float) -> None:
        """Look again, if the last look was long enough ago; `now` is in Unix seconds."""
        if 0 <= now - self._looked_at < _EVERY_S:
            return
        self._looked_at = now
        delays, _ = self._delays.ordered(session, now)
        kept = {
            "delay_p99": Kept(quantile(delays, 0.99), settings.limit_delay_p99_s),
            "lost_share": Kept(lost_share(session, now), settings.limit_lost_share),
        }
        instruments.LIMIT_DELAY_P99_S.set(_or_nan(settings.limit_delay_p99_s))
        instruments.LIMIT_LOST_SHARE.set(_or_nan(settings.limit_lost_share))
        instruments.LOST_SHARE.set(_or_nan(kept["lost_share"].figure))
        for of, each in kept.items():
            instruments.LIMIT_EXCEEDED.labels(of).set(each.is_exceeded)
        begin = now - HISTORY_S
        went = idle_time(session, usage_since(session, begin, now), begin, now)
        for use in USES:
            seconds: float = getattr(went, f"{use}_node_s")
            share = seconds / went.idle_node_s if went.idle_node_s > 0 else math.nan
            instruments.IDLE_TIME_SHARE.labels(use).set(share)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
