"""Tells waiting agents whether there is a new directive, with one query for all of them."""

from __future__ import annotations

import asyncio
import time

from sqlalchemy import select

from oakum_service.change_signal import ChangeSignal
from oakum_service.db.engine import Sessions
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer

_FRESH_S = 0.5
"""Age from which the revisions are read anew without a change here: another process may have made one."""


class Revisions:
    """The revisions of the directives of all live fragments. They are read from the database once after each
    change, for all waiting agents together."""

    def __init__(self, readers: Sessions, changes: ChangeSignal) -> None:
        self._readers = readers
        self._changes = changes
        self._known: dict[str, int] = {}
        self._version, self._read_s = -1, 0.0
        self._reading: asyncio.Task[None] | None = None

    async def of(self, fragment: str) -> int | None:
        """Revision of the fragment's directive, not older than the last change and 0.5 s; None if the fragment
        has ended or is unknown."""
        needed = self._changes.version
        while self._version < needed or time.monotonic() - self._read_s > _FRESH_S:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read())
            # Shielded: others wait for the reading, too, when one caller is cancelled.
            await asyncio.shield(self._reading)
        return self._known.get(fragment)

    async def _read(self) -> None:
        try:
            version, began_s = self._changes.version, time.monotonic()
            self._known = await asyncio.to_thread(self._query)
            self._version, self._read_s = version, began_s
        finally:
            self._reading = None

    def _query(self) -> dict[str, int]:
        with self._readers.begin() as session:
            live = select(Fragment.id, Trainer.revision).join(Trainer).where(Fragment.is_live)
            return dict(session.execute(live).all())
