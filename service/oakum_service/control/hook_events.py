"""Hook events: 5,000 prologs of one job are one row and wake the planner once; what is sent twice counts once.

A report is known again by where it comes from (cluster, job, run, hook, node), so hooks and their spools may send
it as often as they like. Reports that arrive together are written together. An old report, or one that the job's
end has overtaken, is counted and tells nobody: what it says may no longer be so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from prometheus_client import Counter as Metric

from oakum_service.control.hook_report import HookReport
from oakum_service.control.hook_rows import Result, write_reports
from oakum_service.db.engine import Sessions
from oakum_service.schedulers.slurm.hook_event import HookEvent, HookKind

_log = logging.getLogger("oakum")
_GROWTH_S = 0.5
"""Hooks that each tell of another node of a job are one event for so long."""
_EVENTS = Metric("oakum_hook_events", "What Slurm's hooks have told, by what became of it.", ["hook", "result"])


@dataclass(frozen=True)
class _Waiting:
    """Reports of one request, and what will have become of them once they are written."""

    reports: list[HookReport]
    results: Future[list[Result]]


class HookJournal:
    """Writes reports down, and tells of each event once."""

    def __init__(self, sessions: Sessions, tell: Callable[[HookEvent], None]) -> None:
        """`tell` may be called from any thread; it gets an event again when its node list has grown."""
        self._sessions = sessions
        self._tell_unsafe = tell
        self._growth = _Growth(self._tell)
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._is_writing = False
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="hooks")

    def submit(self, reports: list[HookReport]) -> Future[list[Result]]:
        """Have the reports written down, together with those of whoever comes before that is done; then tell of
        what is new. The future has the database's error where it cannot be written: nobody is told then."""
        results: Future[list[Result]] = Future()
        # Nobody can take the reports back by no longer waiting.
        results.set_running_or_notify_cancel()
        with self._lock:
            self._waiting.append(_Waiting(reports, results))
            begins = not self._is_writing
            self._is_writing = True
        if begins:
            self._writer.submit(self._write_all)
        return results

    def _write_all(self) -> None:
        while True:
            with self._lock:
                waiting, self._waiting = self._waiting, []
                self._is_writing = bool(waiting)
            if not waiting:
                return
            try:
                results = iter(self._write([report for one in waiting for report in one.reports]))
            except Exception as error:
                for one in waiting:
                    one.results.set_exception(error)
                continue
            for one in waiting:
                one.results.set_result([next(results) for _ in one.reports])

    def _write(self, reports: list[HookReport]) -> list[Result]:
        with self._sessions.begin() as session:
            written = write_reports(session, reports, time.time())
        for (hook, result), count in Counter(zip((r.hook for r in reports), written.results, strict=True)).items():
            _EVENTS.labels(hook, result).inc(count)
        for event in written.events:
            self._tell(event)
        for event in written.grown:
            self._growth.tell(event)
        return written.results

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
