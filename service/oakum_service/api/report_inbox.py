"""Takes in agents' reports: thousands arrive every second, and those that arrive together are written together."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from oakum_service import clock
from oakum_service.change_signal import ChangeSignal
from oakum_service.control.node_uses import sample_every_s, sample_row
from oakum_service.control.report_pace import LONGEST_S, report_interval_s
from oakum_service.db.batch_writer import BatchWriter
from oakum_service.db.engine import Sessions
from oakum_service.db.models.fragments import Fragment, Report
from oakum_service.instruments import REPORT_WRITE_S, REPORTS
from oakum_worker.protocol import FragmentReport

_MOST_AT_ONCE = 500
"""Rows in one statement, whose number of parameters is limited."""
_FORGOTTEN_S = 4 * LONGEST_S
"""Seconds after which a fragment that is not heard no longer counts as reporting."""


@dataclass(frozen=True)
class ArrivedReport:
    """A fragment's report as it has come in."""

    fragment: str
    report: FragmentReport
    at: float
    """When it arrived, in Unix seconds: being written late is no sign that the agent was silent."""


@dataclass(frozen=True)
class _Heard:
    """What was last heard of a fragment."""

    sequence: int
    urgent: tuple[object, ...]
    """The report's urgent fields."""
    at_s: float
    """When, on the monotonic clock."""


class ReportInbox:
    """Writes agents' reports to the database, several in one transaction, and wakes the controller at once for
    reports with urgent news."""

    def __init__(self, sessions: Sessions, news_for_controller: ChangeSignal) -> None:
        self._sessions = sessions
        self._news = news_for_controller
        self._writer = BatchWriter(self._write, "reports")
        self._heard: OrderedDict[str, _Heard] = OrderedDict()
        """Fragment -> its newest report that came here, those heard last at the end. Fragments that have been
        silent for long are left out: they have ended, or report to another service."""
        self._telling: set[str] = set()
        """Those of them that told their trainer's progress."""
        self._sampled: dict[str, float] = {}
        """Fragment -> when what it told of its node was last kept, on the monotonic clock."""

    def interval_s(self, *, tells_progress: bool) -> float:
        """Seconds until an agent without urgent news reports again; longer the more agents report. Those
        that tell a trainer's progress are few, and charts are made of it: the others do not slow them."""
        num_telling = len(self._telling)
        return report_interval_s(num_telling if tells_progress else len(self._heard) - num_telling)

    def submit(self, fragment: str, report: FragmentReport) -> Future[bool]:
        """Have the report written if it is newer than the stored one. The future says whether the fragment is
        live; otherwise nothing was written."""
        return self._writer.submit(ArrivedReport(fragment, report, clock.now()))

    def _write(self, arrivals: Sequence[ArrivedReport]) -> list[bool]:
        newest = _newest(arrivals)
        with REPORT_WRITE_S.time(), self._sessions.begin() as session:
            live = _live(session, newest)
            kept = [newest[fragment] for fragment in sorted(live)]
            _store(session, kept)
            self._keep_uses(session, kept)
        REPORTS.inc(len(arrivals))
        for fragment in newest.keys() - live:
            self._forget(fragment)
        urgent = [fragment for fragment in live if self._hear(fragment, newest[fragment].report)]
        self._forget_silent()
        if urgent:
            self._news.notify()
        return [arrival.fragment in live for arrival in arrivals]

    def _keep_uses(self, session: Session, arrivals: Sequence[ArrivedReport]) -> None:
        """Keep what these reports tell of their nodes, of each fragment as often as all of them leave room for."""
        now_s, every_s = clock.steady_s(), sample_every_s(len(self._heard))
        due = {
            arrival.fragment: arrival
            for arrival in arrivals
            if arrival.report.use is not None and now_s - self._sampled.get(arrival.fragment, -every_s) >= every_s
        }
        where = select(Fragment.id, Fragment.trainer_id, Fragment.node)
        for names in _batches([*due]):
            for fragment, trainer, node in session.execute(where.where(Fragment.id.in_(names))).all():
                use, at = due[fragment].report.use, due[fragment].at
                if use is not None:
                    session.add(sample_row(trainer, node, at, use, after_gap=fragment not in self._sampled))
        self._sampled.update(dict.fromkeys(due, now_s))

    def _hear(self, fragment: str, report: FragmentReport) -> bool:
        """Remember that the fragment was heard, and what it said; returns whether the report's urgent fields are
        news."""
        before = self._heard.pop(fragment, _Heard(-1, (), 0.0))
        is_newer = report.sequence > before.sequence
        sequence, urgent = (report.sequence, report.urgent) if is_newer else (before.sequence, before.urgent)
        self._heard[fragment] = _Heard(sequence, urgent, clock.steady_s())
        if is_newer:
            (self._telling.discard if report.progress is None else self._telling.add)(fragment)
        return is_newer and urgent != before.urgent

    def _forget_silent(self) -> None:
        """Drop the fragments that have not been heard for so long that they do not count as reporting."""
        silent_since_s = clock.steady_s() - _FORGOTTEN_S
        while self._heard and next(iter(self._heard.values())).at_s < silent_since_s:
            self._forget(next(iter(self._heard)))

    def _forget(self, fragment: str) -> None:
        self._heard.pop(fragment, None)
        self._telling.discard(fragment)
        self._sampled.pop(fragment, None)


def _newest(arrivals: Sequence[ArrivedReport]) -> dict[str, ArrivedReport]:
    """Fragment -> its report with the highest sequence number, with the time at which the last of its reports
    arrived."""
    newest: dict[str, ArrivedReport] = {}
    for arrival in arrivals:
        known = newest.get(arrival.fragment)
        if known is None or arrival.report.sequence > known.report.sequence:
            newest[arrival.fragment] = arrival
        else:
            newest[arrival.fragment] = ArrivedReport(arrival.fragment, known.report, arrival.at)
    return newest


def _live(session: Session, fragments: Mapping[str, ArrivedReport]) -> set[str]:
    """The ids among `fragments` whose fragments have not ended."""
    live: set[str] = set()
    for some in _batches([*fragments]):
        live.update(session.scalars(select(Fragment.id).where(Fragment.id.in_(some), Fragment.is_live)))
    return live


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """The names, as many at a time as one statement takes."""
    for begin in range(0, len(names), _MOST_AT_ONCE):
        yield names[begin : begin + _MOST_AT_ONCE]


def _store(session: Session, arrivals: Sequence[ArrivedReport]) -> None:
    """Insert or replace the fragments' rows. A stored report that is newer keeps its body and gets the time."""
    if not arrivals:
        return
    on_postgresql = session.get_bind().dialect.name == "postgresql"
    insert: Any = (postgresql.insert if on_postgresql else sqlite.insert)(Report)
    given, is_newer = insert.excluded, insert.excluded.sequence > Report.sequence
    upsert = insert.on_conflict_do_update(
        index_elements=[Report.fragment_id],
        set_={
            "received_at": given.received_at,
            "body": case((is_newer, given.body), else_=Report.body),
            "sequence": case((is_newer, given.sequence), else_=Report.sequence),
        },
    )
    rows = [
        {
            "fragment_id": arrival.fragment,
            "sequence": arrival.report.sequence,
            "received_at": arrival.at,
            "body": arrival.report,
        }
        for arrival in arrivals
    ]
    session.connection().execute(upsert, rows)
