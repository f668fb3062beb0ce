"""Tells waiting agents whether there is a new directive, with one query for all of them."""

from __future__ import annotations

import asyncio

from sqlalchemy import select

from oakum_service.api.shared_reading import SharedReading
from oakum_service.change_signal import ChangeSignal
from oakum_service.db.engine import Sessions
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer

_LONGEST_S = 60.0


class Revisions:
    """The revisions of the directives of all live fragments. They are read from the database once after each
    change, and only agents for which there is news are woken: a thousand may wait while two have to act."""

    def __init__(self, readers: Sessions, changes: ChangeSignal) -> None:
        self._readers = readers
        self._changes = changes
        self._reading = SharedReading(changes, self._read)
        self._known: dict[str, int] = {}
        self._waiting: dict[asyncio.Future[bool], tuple[str, int]] = {}
        """Each who waits -> his fragment, and the revision that he has."""
        self._following: asyncio.Task[None] | None = None

    async def exceed(self, fragment: str, after: int, timeout_s: float) -> bool:
        """Whether the revision of the fragment's directive is above `after`, or becomes so within `timeout_s`
        seconds. True as well if the fragment has ended or is unknown, which its directive tells. False at once
        when the service stops. What is known is not older than the last change and 0.5 s."""
        await self._reading.refresh()
        if self._is_news(fragment, after):
            return True
        if timeout_s <= 0 or self._changes.closed:
            return False
        news = asyncio.get_running_loop().create_future()
        self._waiting[news] = fragment, after
        if self._following is None:
            self._following = asyncio.create_task(self._follow())
        try:
            return await asyncio.wait_for(news, timeout_s)
        except TimeoutError:
            return False
        finally:
            del self._waiting[news]

    def _is_news(self, fragment: str, after: int) -> bool:
        revision = self._known.get(fragment)
        return revision is None or revision > after

    async def _follow(self) -> None:
        """Read the revisions after each change, and wake those for whom there is news, while anybody waits."""
        try:
            while self._waiting and not self._changes.closed:
                await self._changes.wait(self._reading.version, _LONGEST_S)
                await self._reading.refresh()
                for news, (fragment, after) in self._waiting.items():
                    if not news.done() and self._is_news(fragment, after):
                        news.set_result(True)
        except Exception as error:
            for news in self._waiting:
                if not news.done():
                    news.set_exception(error)
        finally:
            self._following = None
            for news in self._waiting:
                if not news.done():
                    news.set_result(False)

    def _read(self) -> None:
        self._known = self._query()

    def _query(self) -> dict[str, int]:
        with self._readers.begin() as session:
            live = select(Fragment.id, Trainer.revision).join(Trainer).where(Fragment.is_live)
            return dict(session.execute(live).all())
