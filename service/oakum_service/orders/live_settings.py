"""Settings that administrators change while the service runs. They are rows, so they outlast restarts and hold for
every process of the service; without a row, what the service was started with holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service import clock
from oakum_service.config import Settings
from oakum_service.config_file import nearest
from oakum_service.db.engine import Sessions
from oakum_service.db.models.installation import SettingRecord
from oakum_service.errors import NotFound, RequestError
from oakum_worker.errors import fault_of

CHANGEABLE: Final = (
    "objective",
    "look_ahead_s",
    "solver_limit_s",
    "groups",
    "user_cap",
    "poll_s",
    "limit_delay_p99_s",
    "limit_lost_share",
)
"""The settings that may be changed while the service runs. All others decide how the service is set up."""
_FRESH_S = 1.0


@dataclass(frozen=True)
class LiveSetting:
    """One changeable setting as it is now."""

    name: str
    value: Any
    """JSON value; an objective is its text."""
    at_start: Any
    """The value that the service was started with, which holds again after a reset."""
    by: str | None = None
    """Who has changed it; None if nobody has."""
    at: float | None = None
    """When, in Unix seconds."""


def current(session: Session, settings: Settings) -> Settings:
    """The settings as they are now: those that the service was started with, and what was changed since.

    A value that this version of Oakum does not take, as after a downgrade, is left out.
    """
    changed = {}
    for row in session.execute(select(SettingRecord).where(SettingRecord.name.in_(CHANGEABLE))).scalars():
        try:
            changed[row.name] = _typed(row.name, json.loads(row.value))
        except RequestError:
            continue
    return settings.model_copy(update=changed) if changed else settings


def live_settings(session: Session, settings: Settings) -> list[LiveSetting]:
    """Every changeable setting as it is now."""
    rows = {row.name: row for row in session.execute(select(SettingRecord)).scalars()}
    now = current(session, settings)
    listed = []
    for name in CHANGEABLE:
        row = rows.get(name)
        by, at = (None, None) if row is None else (row.by_name, row.at)
        listed.append(LiveSetting(name, _plain(getattr(now, name)), _plain(getattr(settings, name)), by, at))
    return listed


def change(session: Session, name: str, value: Any, by: str) -> None:
    """Change a setting from now on. Raises `NotFound` for a name that is none of `CHANGEABLE`, and `RequestError`
    for a value that it cannot have."""
    typed = _typed(_checked(name), value)
    session.merge(SettingRecord(name=name, value=json.dumps(_plain(typed)), by_name=by, at=clock.now()))
    session.flush()


def reset(session: Session, name: str) -> bool:
    """Let what the service was started with hold again. Returns whether the setting had been changed. Raises
    `NotFound` for a name that is none of `CHANGEABLE`."""
    row = session.get(SettingRecord, _checked(name))
    if row is None:
        return False
    session.delete(row)
    session.flush()
    return True


class CurrentSettings:
    """The settings as they are now, read from the database at most once a second."""

    def __init__(
        self, readers: Sessions, settings: Settings, clock_s: Callable[[], float] = clock.steady_s
    ) -> None:
        self._readers, self._settings, self._clock_s = readers, settings, clock_s
        self._known, self._read_s = settings, -_FRESH_S

    def now(self) -> Settings:
        """The settings, at most a second old."""
        if self._clock_s() - self._read_s >= _FRESH_S:
            with self._readers.begin() as session:
                self._known = current(session, self._settings)
            self._read_s = self._clock_s()
        return self._known


def _checked(name: str) -> str:
    if name in CHANGEABLE:
        return name
    if name in Settings.model_fields:
        raise NotFound(
            f"{name} cannot be changed while the service runs: set OAKUM_{name.upper()}, and start it anew; "
            f"changeable are {', '.join(CHANGEABLE)}"
        )
    raise NotFound(f"{name} is no setting{nearest(name, CHANGEABLE)}; changeable are {', '.join(CHANGEABLE)}")


def _typed(name: str, value: Any) -> Any:
    """The value as `Settings` has it. Raises `RequestError` if the setting cannot have it."""
    field = Settings.model_fields[name]
    annotation: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    try:
        return TypeAdapter(annotation).validate_python(value)
    except ValidationError as error:
        faults = "; ".join(fault_of(item) for item in error.errors())
        raise RequestError(f"{name} cannot be {json.dumps(value)}: {faults}") from error


def _plain(value: Any) -> Any:
    """The setting's value as a JSON value."""
    return value if isinstance(value, (bool, int, float)) or value is None else str(value)
