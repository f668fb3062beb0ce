"""Records hook events: 5,000 prologs of one job become one row and wake the planner once, and repeats count once.

A report is identified by its origin (cluster, job, run, hook, node), so hooks and spools may send it as often as
they like. Reports that arrive together are written together. A report that the job's end has overtaken is counted
but passed on to nobody, since what it says may no longer be true; of old ones the newest is passed on, without its
nodes, since the scheduler may not have been read after it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from prometheus_client import Counter as Metric
from prometheus_client import Histogram

from oakum_service.db.batch_writer import BatchWriter
from oakum_service.db.engine import Sessions
from oakum_service.schedulers.port import HookEvent, HookKind
from oakum_service.schedulers.slurm.hooks.report import HookReport
from oakum_service.schedulers.slurm.hooks.rows import HookResult, write_reports

_log = logging.getLogger("oakum")
_GROWTH_S = 0.5
"""Seconds for which reports that each add a node of the same job are gathered into one event."""
_EVENTS = Metric("oakum_hook_events", "Reports of Slurm's hooks, by result.", ["hook", "result"])
_DELAY_S = Histogram(
    "oakum_hook_event_delay_seconds",
    "Time from a hook's run to its report's arrival, by the hook's clock; what was kept in a spool arrives late.",
    buckets=(0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0),
)


class HookEventWriter:
    """Writes hooks' reports to the database and passes each new event on once."""

    def __init__(self, sessions: Sessions, tell: Callable[[HookEvent], None]) -> None:
        """`tell` receives the events, from any thread, and an event again when its node list has grown."""
        self._sessions = sessions
        self._tell_unsafe = tell
        self._growth = _GrowthDelay(self._tell)
        self._writer = BatchWriter(self._write_requests, "hooks")

    def submit(self, reports: list[HookReport]) -> Future[list[HookResult]]:
        """Have the reports written, together with others that arrive before the write begins, and then pass new
        events on. If the database cannot be written, the future gets its error and nothing is passed on."""
        return self._writer.submit(reports)

    def _write_requests(self, requests: Sequence[list[HookReport]]) -> list[list[HookResult]]:
        results = iter(self._write([report for reports in requests for report in reports]))
        return [[next(results) for _ in reports] for reports in requests]

    def _write(self, reports: list[HookReport]) -> list[HookResult]:
        with self._sessions.begin() as session:
            written = write_reports(session, reports, time.time())
        now = time.time()
        for report in reports:
            _DELAY_S.observe(max(0.0, now - report.at))
        for (hook, result), count in Counter(zip((r.hook for r in reports), written.results, strict=True)).items():
            _EVENTS.labels(hook, result).inc(count)
        for event in written.events:
            self._tell(event)
        if written.old is not None:
            self._tell(written.old)
        for event in written.grown:
            self._growth.tell(event)
        return written.results

    def _tell(self, event: HookEvent) -> None:
        try:
            self._tell_unsafe(event)
        except Exception:
            # The event is recorded: an error here must not make the hook send it again.
            _log.exception("nobody could be told that job %s has been %s", event.job, event.kind)


class _GrowthDelay:
    """Passes on that a job's node list has grown: once for many additions, half a second after the first."""

    def __init__(self, tell: Callable[[HookEvent], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._pending: dict[tuple[HookKind, str], HookEvent] = {}

    def tell(self, event: HookEvent) -> None:
        """Pass the event on within half a second; if a later event of the same job and kind comes before, that one
        instead."""
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
