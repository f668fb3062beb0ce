"""Reads the last lines that a trainer's fragments wrote."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models.fragments import Fragment
from oakum_service.fragments.logs import last_lines

_NEWEST_FRAGMENTS = 8


def read_log(session: Session, fragments_dir: Path, trainer_id: str, tail: int) -> list[str]:
    """The last `tail` lines of the newest fragments, the oldest fragment first; each line begins with its
    node's name."""
    rows = session.execute(
        select(Fragment)
        .where(Fragment.trainer_id == trainer_id)
        .order_by(Fragment.launched_at.desc())
        .limit(_NEWEST_FRAGMENTS)
    ).scalars()
    lines: list[str] = []
    for fragment in reversed(list(rows)):
        written = last_lines(fragments_dir, fragment.id, tail)
        lines.extend(f"{fragment.node} | {line}" for line in written)
    return lines[-tail:]
