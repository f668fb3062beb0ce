"""Whether Slurm runs the hooks, as the jobs tell that the service has seen."""

from __future__ import annotations

import logging
import threading
import time

from sqlalchemy.exc import SQLAlchemyError

from oakum_service.db.engine import Sessions
from oakum_service.schedulers.slurm.hooks.missed import MissedJobs, missed_jobs

_EVERY_S = 20.0
_log = logging.getLogger("oakum")


class HookWatch:
    """Looks for jobs whose hooks have not told, at most every 20 s however many ask. Any thread may use it."""

    def __init__(self, readers: Sessions) -> None:
        self._readers = readers
        self._looking = threading.Lock()
        self._looked_s: float | None = None
        self._newest = MissedJobs()

    def missed(self) -> MissedJobs:
        """The newest jobs in a row whose hooks have not told. Raises `SQLAlchemyError`."""
        with self._looking:
            if self._is_due():
                with self._readers.begin() as session:
                    self._newest = missed_jobs(session, time.time())
                self._looked_s = time.monotonic()
            return self._newest

    def known(self) -> MissedJobs:
        """What was found last, without waiting for the database. A thread looks again meanwhile."""
        if self._is_due() and not self._looking.locked():
            threading.Thread(target=self._look, name="hook watch", daemon=True).start()
        return self._newest

    def _is_due(self) -> bool:
        return self._looked_s is None or time.monotonic() - self._looked_s > _EVERY_S

    def _look(self) -> None:
        try:
            self.missed()
        except SQLAlchemyError as error:
            _log.warning("whether Slurm runs the hooks is not known: %s", error)
