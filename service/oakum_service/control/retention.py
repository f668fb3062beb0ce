"""What the service forgets, so that a year of holes does not fill the disk."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from oakum_service.db.models import (
    EventRecord,
    ForegroundStart,
    Fragment,
    FragmentState,
    HookEventRecord,
    NodeInterval,
    PlanRecord,
    ProgressSample,
    Report,
    SnapshotRecord,
    Trainer,
)
from oakum_worker.launch import ARRAY_NAME, FragmentArray

EVERY_S = 300.0
_KEPT_ROWS = {EventRecord.id: 20_000, PlanRecord.id: 5_000, SnapshotRecord.number: 500}
_KEPT_SAMPLES = 5_000
HISTORY_S = 7 * 24 * 3600.0
"""How far back the service knows what nodes did; sums over them go no further."""
_FRAGMENTS_S = 24 * 3600.0
_HOOK_EVENTS_S = 24 * 3600.0


def forget(session: Session) -> list[str]:
    """Delete the oldest rows; returns the ended fragments whose folders may go, too."""
    for column, kept in _KEPT_ROWS.items():
        newest = session.execute(select(func.max(column))).scalar_one_or_none()
        if newest is not None and newest > kept:
            session.execute(delete(column.class_).where(column <= newest - kept))
    for trainer in session.execute(select(Trainer.id)).scalars():
        _forget_samples(session, trainer)
    begin = time.time() - HISTORY_S
    session.execute(delete(NodeInterval).where(NodeInterval.end_at < begin))
    session.execute(delete(ForegroundStart).where(ForegroundStart.started_at < begin))
    session.execute(delete(HookEventRecord).where(HookEventRecord.received_at < time.time() - _HOOK_EVENTS_S))
    old = (Fragment.state == FragmentState.ENDED) & (Fragment.ended_at < time.time() - _FRAGMENTS_S)
    # A fragment whose report is gone has been forgotten already; its row stays as the trainer's history. One that
    # never reported is forgotten anew for another while.
    reported = Report.fragment_id.is_not(None) | (Fragment.ended_at > time.time() - 2 * _FRAGMENTS_S)
    ended = list(session.execute(select(Fragment.id).outerjoin(Report).where(old & reported)).scalars())
    session.execute(delete(Report).where(Report.fragment_id.in_(ended)))
    return ended


def _forget_samples(session: Session, trainer: str) -> None:
    oldest_kept = session.execute(
        select(ProgressSample.id)
        .where(ProgressSample.trainer_id == trainer)
        .order_by(ProgressSample.id.desc())
        .offset(_KEPT_SAMPLES)
        .limit(1)
    ).scalar_one_or_none()
    if oldest_kept is not None:
        session.execute(
            delete(ProgressSample).where(ProgressSample.trainer_id == trainer, ProgressSample.id <= oldest_kept)
        )


def remove_folders(fragments_dir: Path, fragments: list[str]) -> None:
    """Remove ended fragments' configs and logs, and those of job arrays of which none is left.

    What is gone already is not an error.
    """
    for fragment in fragments:
        shutil.rmtree(fragments_dir / fragment, ignore_errors=True)
    for array in fragments_dir.glob(f"*/{ARRAY_NAME}"):
        if not any((fragments_dir / fragment).exists() for fragment in _members(array)):
            shutil.rmtree(array.parent, ignore_errors=True)


def _members(array: Path) -> tuple[str, ...]:
    try:
        return FragmentArray.model_validate_json(array.read_bytes()).fragments
    except (OSError, ValidationError):
        return (array.parent.name,)  # keep what nobody knows
