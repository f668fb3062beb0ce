"""What a rescale costs at this site, over all trainers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.config import Settings
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.durations import START_UP, Measured, duration
from oakum_service.states import TimeUse

_NEWEST = 50


@dataclass(frozen=True)
class RescaleSeconds:
    """Medians over trainers, in seconds."""

    stall_s: float
    start_up_s: float


def rescale_costs(session: Session, settings: Settings) -> RescaleSeconds:
    """Medians of the stalls and start-ups that the 50 newest trainers have measured; what the settings assume
    where none of them has."""
    rows = session.execute(select(Trainer.durations).order_by(Trainer.submitted_at.desc()).limit(_NEWEST))
    measured = list(rows.scalars())
    return RescaleSeconds(
        stall_s=_median_s(measured, (TimeUse.GROW, TimeUse.SHRINK), settings.stall_s),
        start_up_s=_median_s(measured, (START_UP,), settings.start_up_s),
    )


def _median_s(measured: Iterable[Measured], kinds: tuple[str, ...], otherwise_s: float) -> float:
    durations = [duration(each, kind) for each in measured for kind in kinds]
    seconds = [each.median_s for each in durations if each is not None]
    return median(seconds) if seconds else otherwise_s
