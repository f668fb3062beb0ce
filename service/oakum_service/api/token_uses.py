"""Records when each token was last used, without making any request wait for the database."""

from __future__ import annotations

import logging
import threading

from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from oakum_service.db.engine import Sessions
from oakum_service.db.models.callers import ApiToken

_log = logging.getLogger(__name__)
_EVERY_S = 300.0
"""The last use is known to about this many seconds: a request an hour costs one write, a hundred a second too."""


class TokenUses:
    """Writes the time of a token's use in a thread of its own, now and then."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._written: dict[str, float] = {}
        self._busy = threading.Lock()

    def note(self, digest: str, known: float | None, now: float) -> None:
        """The token with this hash is used at `now` (Unix seconds); `known` is the last use in the database. Is
        left out while another use is being written: a later request tells it."""
        newest = max(known or 0.0, self._written.get(digest, 0.0))
        if now - newest < _EVERY_S or not self._busy.acquire(blocking=False):
            return
        self._written[digest] = now
        threading.Thread(target=self._write, args=(digest, now), daemon=True, name="token use").start()

    def _write(self, digest: str, now: float) -> None:
        try:
            with self._sessions.begin() as session:
                session.execute(update(ApiToken).where(ApiToken.digest == digest).values(used_at=now))
        except SQLAlchemyError as error:
            _log.warning("a token's last use could not be written: %s", error)
        finally:
            self._busy.release()
