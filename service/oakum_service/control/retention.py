"""Deletes old rows and files, so that a year of holes does not fill the disk.

Everything is kept for a time and then deleted, in transactions of a thousand rows or so, since agents and hooks
wait for each of them. Sums of what fragments trained are made when they end (`fragment_ends`) and kept for ever.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, CursorResult, delete, func, select, tuple_, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from oakum_service.control import node_uses
from oakum_service.control.thinning import POINTS, Point, crowded, groups, together
from oakum_service.db.models.cluster import (
    ForegroundStart,
    HookEventRecord,
    NodeInterval,
    NodeSetback,
    SnapshotRecord,
)
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.fragments import Fragment, Report
from oakum_service.db.models.node_uses import NodeUseSample
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.progress import EvaluationRecord, MeasuredRate, ProgressSample
from oakum_service.db.models.trainers import GenerationRecord, Trainer, TrainerTag
from oakum_service.db.models.usage import OccupancyHour, WeekUse
from oakum_service.identity import audit, tokens
from oakum_service.notices import outbox as notices
from oakum_worker.fragment.config_files import ARRAY_NAME, FragmentArray

EVERY_S = 300.0
HISTORY_S = 7 * 24 * 3600.0
"""Seconds for which the service remembers what nodes, fragments and plans did; sums in the API go back no
further, but for the node-time harvested in all."""
ENDED_TRAINERS_S = 90 * 24 * 3600.0
"""Seconds for which an ended trainer is remembered."""
_DAY_S = 24 * 3600.0
_FOLDERS_S = _DAY_S
"""Seconds after a fragment's end for which its report and its folder, with its log, are kept."""
_HOOK_EVENTS_S = _DAY_S
_BATCH = 1000
"""Rows of one table that one transaction deletes."""
_KEPT_ROWS: dict[InstrumentedAttribute[int], int] = {
    EventRecord.id: 20_000,
    PlanRecord.id: 5_000,
    SnapshotRecord.number: 500,
}
_KEPT_SAMPLES, _RECENT_SAMPLES, _OLD_SAMPLES = 5_000, 1_000, 2_000
"""Chart points of a trainer: from one more on, all but the newest so many are put together with their neighbours,
until there are so many or fewer."""
_MOST_SAMPLES = 12_000
"""Beyond these, about 2 MB, sizes and pauses are put together, too."""
_KEPT_EVALUATIONS = 4_000
"""From one more on, every second evaluation of a trainer is deleted: the rest still spans the whole training."""
_KEPT_GENERATIONS = 50
"""Newest generations of each trainer that are kept however old they are."""


@dataclass(frozen=True)
class Forgotten:
    """What one step has deleted."""

    fragments: Sequence[str]
    """Ended fragments whose folders may be deleted as well."""
    folders_to: float
    """Fragments that ended up to this time, in Unix seconds, have been given in `fragments`."""
    is_all: bool
    """Whether nothing else is old enough."""


def forget(session: Session, now: float, folders_from: float = 0.0) -> Forgotten:
    """Delete some of the rows that are too old: one step of many. The caller repeats it, each time in a
    transaction of its own, until the result's `is_all`, and removes the folders of the result's fragments.
    `folders_from` is `folders_to` of the previous step."""
    begin = now - HISTORY_S
    steps = [_delete(session, column, _beyond(session, column, kept)) for column, kept in _KEPT_ROWS.items()]
    newest_plan = session.scalar(select(func.max(PlanRecord.id))) or 0
    steps += [
        _delete(session, PlanRecord.id, (PlanRecord.made_at < begin) & (PlanRecord.id < newest_plan)),
        _delete(session, NodeInterval.id, NodeInterval.end_at < begin),
        _delete(session, ForegroundStart.job, ForegroundStart.started_at < begin),
        _forget_generations(session, begin),
    ]
    session.execute(delete(OccupancyHour).where(OccupancyHour.hour < begin // 3600))
    session.execute(delete(WeekUse).where(WeekUse.week_at < begin - HISTORY_S))
    session.execute(delete(NodeSetback).where(NodeSetback.at < begin))
    session.execute(delete(HookEventRecord).where(HookEventRecord.received_at < now - _HOOK_EVENTS_S))
    notices.forget(session, now)
    tokens.forget_expired(session, begin)
    audit.forget(session, now)
    for trainer in session.scalars(select(Trainer.id).where(_changed_since(now - _DAY_S))):
        _thin_out_samples(session, trainer)
        _thin_out_evaluations(session, trainer)
        node_uses.thin_out(session, trainer)
    ended, folders_to = _ended_between(session, folders_from, now - _FOLDERS_S)
    session.execute(delete(Report).where(Report.fragment_id.in_(ended)))
    steps += [len(ended) < _BATCH, _forget_fragments(session, begin), _forget_trainers(session, now)]
    return Forgotten(ended, folders_to, all(steps))


def _delete(session: Session, column: InstrumentedAttribute[Any], condition: ColumnElement[bool]) -> bool:
    """Delete rows by their key `column`; returns whether these were all that the condition holds for."""
    some = select(column).where(condition).limit(_BATCH)
    result = session.execute(delete(column.class_).where(column.in_(some.scalar_subquery())))
    assert isinstance(result, CursorResult)
    return result.rowcount < _BATCH


def _beyond(session: Session, column: InstrumentedAttribute[int], kept: int) -> ColumnElement[bool]:
    newest = session.scalar(select(func.max(column))) or 0
    return column <= newest - kept


def _changed_since(at: float) -> ColumnElement[bool]:
    return Trainer.ended_at.is_(None) | (Trainer.ended_at > at)


def _forget_generations(session: Session, begin: float) -> bool:
    old = (
        select(GenerationRecord.trainer_id, GenerationRecord.number)
        .join(Trainer, Trainer.id == GenerationRecord.trainer_id)
        .where(
            GenerationRecord.published_at < begin,
            GenerationRecord.number <= Trainer.generation - _KEPT_GENERATIONS,
        )
        .limit(_BATCH)
    )
    key = tuple_(GenerationRecord.trainer_id, GenerationRecord.number)
    rows = [tuple(row) for row in session.execute(old)]
    session.execute(delete(GenerationRecord).where(key.in_(rows)))
    return len(rows) < _BATCH


def _ended_between(session: Session, after: float, until: float) -> tuple[list[str], float]:
    """Ids of the fragments that ended after `after` and until `until`, from the earliest on and about `_BATCH` of
    them at most. Also the time until which none is missing."""
    ended = select(Fragment.ended_at).where(Fragment.ended_at > after, Fragment.ended_at <= until)
    last = session.scalar(ended.order_by(Fragment.ended_at).offset(_BATCH - 1).limit(1)) or until
    rows = session.scalars(select(Fragment.id).where(Fragment.ended_at > after, Fragment.ended_at <= last))
    return list(rows), max(after, last)


def _forget_fragments(session: Session, begin: float) -> bool:
    oldest = select(Fragment.id).where(Fragment.ended_at < begin).order_by(Fragment.ended_at).limit(_BATCH)
    ids = list(session.scalars(oldest))
    session.execute(delete(Report).where(Report.fragment_id.in_(ids)))
    session.execute(delete(Fragment).where(Fragment.id.in_(ids)))
    return len(ids) < _BATCH


def _forget_trainers(session: Session, now: float) -> bool:
    """Delete one trainer that ended long ago, with what is left of it; its checkpoints stay on the disk. Returns
    True if there was none to delete."""
    old = select(Trainer.id).where(Trainer.ended_at < now - ENDED_TRAINERS_S).limit(1)
    trainer_id = session.scalar(old.where(~select(Fragment.id).where(Fragment.trainer_id == Trainer.id).exists()))
    if trainer_id is None:
        return True
    for table in (GenerationRecord, ProgressSample, EvaluationRecord, MeasuredRate, NodeUseSample, TrainerTag):
        session.execute(delete(table).where(table.trainer_id == trainer_id))
    session.execute(delete(Trainer).where(Trainer.id == trainer_id))
    return False


def _thin_out_samples(session: Session, trainer_id: str) -> None:
    mine = ProgressSample.trainer_id == trainer_id
    count = session.scalar(select(func.count()).where(mine)) or 0
    if count <= _KEPT_SAMPLES:
        return
    query = POINTS.add_columns(ProgressSample.id).where(mine).order_by(ProgressSample.id)
    rows = session.execute(query.limit(count - _RECENT_SAMPLES)).all()
    points, ids = [Point(*row[:-1]) for row in rows], [row.id for row in rows]
    all_groups = groups(points, _OLD_SAMPLES)
    if len(all_groups) > _MOST_SAMPLES - _RECENT_SAMPLES:
        all_groups = crowded(len(points), _OLD_SAMPLES)
    merged = [group for group in all_groups if len(group) > 1]
    changed = [{"id": ids[group[-1]], **together([points[n] for n in group])._asdict()} for group in merged]
    doomed = [ids[number] for group in merged for number in group[:-1]]
    for begin in range(0, len(doomed), _BATCH):
        session.execute(delete(ProgressSample).where(ProgressSample.id.in_(doomed[begin : begin + _BATCH])))
    if changed:
        session.execute(update(ProgressSample), changed)


def _thin_out_evaluations(session: Session, trainer_id: str) -> None:
    mine = EvaluationRecord.trainer_id == trainer_id
    count = session.scalar(select(func.count()).where(mine)) or 0
    if count <= _KEPT_EVALUATIONS:
        return
    steps = session.scalars(select(EvaluationRecord.step).where(mine).order_by(EvaluationRecord.step)).all()
    # The first and the last one stay.
    doomed = steps[1:-1:2]
    for begin in range(0, len(doomed), _BATCH):
        batch = doomed[begin : begin + _BATCH]
        session.execute(delete(EvaluationRecord).where(mine, EvaluationRecord.step.in_(batch)))


def remove_folders(fragments_dir: Path, fragments: Sequence[str]) -> None:
    """Remove the configs and logs of these ended fragments, and of job arrays none of whose fragments is left.

    A folder that is gone already is not an error.
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
        return (array.parent.name,)  # an unreadable file: keep the folder
