"""The end of what a trainer's fragments wrote."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models import Fragment

_NEWEST_FRAGMENTS = 8
_MOST_BYTES = 256 * 1024


def read_log(session: Session, fragments_dir: Path, trainer_id: str, tail: int) -> list[str]:
    """The last `tail` lines of the newest fragments, the oldest fragment first, each after its node's name."""
    rows = session.execute(
        select(Fragment)
        .where(Fragment.trainer_id == trainer_id)
        .order_by(Fragment.launched_at.desc())
        .limit(_NEWEST_FRAGMENTS)
    ).scalars()
    lines: list[str] = []
    for fragment in reversed(list(rows)):
        for file in sorted((fragments_dir / fragment.id).glob("*_log.out")):
            lines.extend(f"{fragment.node} | {line}" for line in _last_lines(file, tail))
    return lines[-tail:]


def _last_lines(file: Path, count: int) -> list[str]:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - _MOST_BYTES))
            return stream.read().decode("utf-8", errors="replace").splitlines()[-count:]
    except OSError:
        return []  # cleaned up meanwhile
