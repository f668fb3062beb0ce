"""Hook events: 5,000 prologs of one job are one row and wake the planner once; what is sent twice counts once.

A report is known again by where it comes from (cluster, job, run, hook, node), so hooks and their spools may send
it as often as they like. Reports that arrive together are written together. An old report, or one that the job's
end has overtaken, is counted and tells nobody: what it says may no longer be so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import Counter

from oakum_service.control.hook_report import HookReport
from oakum_service.control.hook_rows import Result, write_reports
from oakum_service.db.engine import Sessions
from oakum_service.errors import ServiceError
from oakum_service.schedulers.slurm.hook_event import HookEvent, HookKind

_log = logging.getLogger("oakum")
_GROWTH_S = 0.5
"""Hooks that each tell of another node of a job are one event for so long."""
_PATIENCE_S = 2.0
"""No hook waits longer for its answer."""
_EVENTS = Counter("oakum_hook_events", "What Slurm's hooks have told, by what became of it.", ["hook", "result"])


@dataclass(eq=False)
class _Waiting:
    """Reports of one request, and what became of them once they are written."""

    reports: list[HookReport]
    results: list[Result] | None = None


class HookJournal:
    """Writes reports down, and tells of each event once."""

    def __init__(self, sessions: Sessions, tell: Callable[[HookEvent], None]) -> None:
        """`tell` may be called from any thread; it gets an event again when its node list has grown."""
        self._sessions = sessions
        self._tell_unsafe = tell
        self._growth = _Growth(self._tell)
        self._joining = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._writing = threading.Lock()

    def take(self, reports: list[HookReport]) -> list[Result]:
        """Write the reports down, together with those of whoever waits for that; tell of what is new.

        Raises `ServiceError` when the database is busy for too long: the sender has left by then, and sends again.
        """
        mine = _Waiting(reports)
        self._join(mine)
        if not self._writing.acquire(timeout=_PATIENCE_S):
            raise ServiceError("the database is busy: send the events again later")
        try:
            if mine.results is None:
                self._join(mine)
                self._write_all()
        finally:
            self._writing.release()
        assert mine.results is not None
        return mine.results

    def _join(self, mine: _Waiting) -> None:
        """Wait with the others; again, where whoever wrote for all has failed."""
        with self._joining:
            if mine not in self._waiting:
                self._waiting.append(mine)

    def _write_all(self) -> None:
        with self._joining:
            waiting, self._waiting = self._waiting, []
        with self._sessions.begin() as session:
            reports = [report for one in waiting for report in one.reports]
            written = write_reports(session, reports, time.time())
        results = iter(written.results)
        for one in waiting:
            one.results = [next(results) for _ in one.reports]
        for report, result in zip(reports, written.results, strict=True):
            _EVENTS.labels(report.hook, result).inc()
        for event in written.events:
            self._tell(event)
        for event in written.grown:
            self._growth.tell(event)

    def _tell(self, event: HookEvent) -> None:
        try:
            self._tell_unsafe(event)
        except Exception:
            # It is written down: an error here must not have the hook send it again.
            _log.exception("nobody could be told that job %s has been %s", event.job, event.kind)


class _Growth:
    """Tells of a job's longer node list once, a moment after it has begun to grow."""

    def __init__(self, tell: Callable[[HookEvent], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._pending: dict[tuple[HookKind, str], HookEvent] = {}

    def tell(self, event: HookEvent) -> None:
        """Tell of it soon, or of a longer list of the same job."""
        key = (event.kind, event.job)
        with self._lock:
            is_first = key not in self._pending
            self._pending[key] = event
        if is_first:
            timer = threading.Timer(_GROWTH_S, self._flush, (key,))
            timer.daemon = True
            timer.start()

    def _flush(self, key: tuple[HookKind, str]) -> None:
        with self._lock:
            event = self._pending.pop(key)
        self._tell(event)
