"""The rows of hook events: one for each run of a job and each kind of event, however many hooks report it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from ClusterShell.NodeSet import NodeSet
from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models.cluster import HookEventRecord
from oakum_service.schedulers.port import HookEvent, HookKind
from oakum_service.schedulers.slurm.hooks.report import Hook, HookReport, parse_nodes

STALE_S = 300.0
"""A report that is older than this on arrival came from a spool. The scheduler has usually been read since."""
_SAME_RUN_S = 60.0
"""Start times reported for one run of a job differ by less than this; Slurm never starts the job again sooner."""


class HookResult(StrEnum):
    """What the service has done with one hook's report."""

    TAKEN = "taken"
    DUPLICATE = "duplicate"
    """It was reported before."""
    STALE = "stale"
    """Counted, but so old that only the newest of those that came together is passed on: it tells a scheduler that
    is read rarely that much may have happened."""
    OVERTAKEN = "overtaken"
    """Counted, but the same run of the job has already ended."""


@dataclass
class WrittenReports:
    """The outcome of a batch of reports."""

    results: list[HookResult] = field(default_factory=list)
    """One for each report, in order."""
    events: list[HookEvent] = field(default_factory=list)
    """New events, to be passed on."""
    grown: list[HookEvent] = field(default_factory=list)
    """Events passed on before with fewer nodes."""
    old: HookEvent | None = None
    """The newest of those that are too old for what they say of nodes to count."""


def write_reports(session: Session, reports: list[HookReport], now: float) -> WrittenReports:
    """Write the reports in this session's transaction. Returns what was done with each, and the events to pass
    on."""
    jobs = _JobRows(session)
    written = WrittenReports()
    events: dict[int, _EventRow] = {}
    grown: dict[int, _EventRow] = {}
    stale: tuple[float, _EventRow] | None = None
    for report in reports:
        row = jobs.row_for(report, now)
        is_new, grows = row.record.count == 0, row.would_grow(report)
        result = HookResult.DUPLICATE if row.has_heard(report) else _result(report, jobs, row, now)
        written.results.append(result)
        if result is HookResult.DUPLICATE:
            continue
        row.add(report, now)
        if result is HookResult.STALE and (stale is None or stale[0] < report.at):
            stale = report.at, row
        if result is not HookResult.TAKEN:
            continue
        # The head node's epilog may run before the nodes' epilogs have ended, so wait for the last of those.
        if is_new or (report.hook is Hook.EPILOG and not grows and row.all_have_ended()):
            events[id(row)] = row
        elif grows:
            grown[id(row)] = row
    jobs.write()
    if stale is not None and id(stale[1]) not in events:
        written.old = replace(stale[1].event(), nodes="", at=stale[0])
    written.events = [row.event() for row in events.values()]
    written.grown = [row.event() for key, row in grown.items() if key not in events]
    return written


def _result(report: HookReport, jobs: _JobRows, row: _EventRow, now: float) -> HookResult:
    if now - report.at > STALE_S:
        return HookResult.STALE
    if report.hook.kind is HookKind.ALLOCATED and jobs.has_ended(row):
        return HookResult.OVERTAKEN
    return HookResult.TAKEN


class _EventRow:
    """One row of the table, with its node lists unfolded, while reports are added to it."""

    def __init__(self, record: HookEventRecord) -> None:
        self.record = record
        self._nodes = parse_nodes(record.nodes)
        self._heard = {hook: parse_nodes(nodes) for hook, nodes in record.heard.items()}
        self._merged: set[str] = {record.nodes}
        """Folded lists whose nodes are all in `_nodes`. Each hook of a job sends the same long list."""
        self._changed = False

    def has_heard(self, report: HookReport) -> bool:
        """Whether this hook has reported before, on this node."""
        heard = self._heard.get(report.hook)
        return heard is not None and (not report.hook.on_nodes or report.node in heard)

    def would_grow(self, report: HookReport) -> bool:
        """Whether the report names nodes that the row does not have."""
        if report.nodes not in self._merged and not parse_nodes(report.nodes).issubset(self._nodes):
            return True
        return bool(report.node) and report.node not in self._nodes

    def all_have_ended(self) -> bool:
        """Whether the epilogs of all of the job's nodes have reported; only then are the nodes free."""
        heard = self._heard.get(Hook.EPILOG)
        return heard is not None and len(heard) == len(self._nodes)

    def add(self, report: HookReport, now: float) -> None:
        """Count the report, and add its nodes and times to the row; `write` stores the node lists."""
        record = self.record
        self._heard.setdefault(report.hook, NodeSet()).update(parse_nodes(report.node))
        if report.nodes not in self._merged:
            self._nodes.update(parse_nodes(report.nodes))
            self._merged.add(report.nodes)
        if report.node:
            self._nodes.update(parse_nodes(report.node))
        record.first_at, record.newest_at = min(record.first_at, report.at), max(record.newest_at, report.at)
        record.received_at = now
        record.start_at = report.start_at if record.start_at is None else record.start_at
        record.end_at = report.end_at if record.end_at is None else record.end_at
        record.partition = record.partition or report.partition
        record.count += 1
        self._changed = True

    def write(self) -> None:
        """Fold the node lists again and store them."""
        if self._changed:
            self.record.nodes = str(self._nodes)
            self.record.heard = {hook: str(nodes) for hook, nodes in self._heard.items()}

    def event(self) -> HookEvent:
        """The row as an event to pass on."""
        record = self.record
        return HookEvent(
            HookKind(record.kind),
            str(record.job_id),
            record.nodes,
            record.partition,
            record.uid,
            record.start_at,
            record.first_at,
        )


class _JobRows:
    """The rows of all jobs in a batch, each read once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rows: dict[int, list[_EventRow]] = {}

    def row_for(self, report: HookReport, now: float) -> _EventRow:
        """The row of the job's run and kind of event to which the report belongs; a new row, added to the
        session, if there is none. Does not count the report."""
        rows = self._of_job(report.job, report.cluster)
        restart = _restart(report, rows)
        kind = report.hook.kind
        for row in rows:
            if (row.record.restart, row.record.kind) == (restart, kind):
                return row
        record = HookEventRecord(
            cluster=report.cluster or next((row.record.cluster for row in rows), ""),
            job_id=report.job,
            restart=restart,
            kind=kind,
            first_at=report.at,
            newest_at=report.at,
            received_at=now,
            start_at=report.start_at,
            end_at=report.end_at,
            uid=report.uid,
            partition=report.partition,
            nodes="",
            heard={},
            count=0,
        )
        self._session.add(record)
        self._rows[report.job].append(_EventRow(record))
        return self._rows[report.job][-1]

    def has_ended(self, row: _EventRow) -> bool:
        """Whether the end of this run of the job was reported."""
        run = (row.record.restart, HookKind.ENDED)
        rows = self._of_job(row.record.job_id, row.record.cluster)
        return any((other.record.restart, other.record.kind) == run for other in rows)

    def write(self) -> None:
        """Store what was added to the rows."""
        for rows in self._rows.values():
            for row in rows:
                row.write()

    def _of_job(self, job: int, cluster: str) -> list[_EventRow]:
        if job not in self._rows:
            query = select(HookEventRecord).where(HookEventRecord.job_id == job)
            self._rows[job] = [_EventRow(record) for record in self._session.execute(query).scalars()]
        # Some versions of Slurm do not tell a node's hooks the cluster's name.
        return [
            row for row in self._rows[job] if row.record.cluster == cluster or not (row.record.cluster and cluster)
        ]


def _restart(report: HookReport, rows: list[_EventRow]) -> int:
    """Number of the job's run to which the report belongs, 0 for the first. If Slurm did not tell the hook, it
    follows from the start times in `rows`."""
    if report.restart is not None:
        return report.restart
    runs = sorted((row.record for row in rows), key=lambda record: record.restart, reverse=True)
    if not runs:
        return 0
    for run in runs:
        if run.start_at is None or report.start_at is None or abs(run.start_at - report.start_at) <= _SAME_RUN_S:
            return run.restart
    newest = runs[0]
    assert newest.start_at is not None
    assert report.start_at is not None
    return newest.restart + 1 if report.start_at > newest.start_at else runs[-1].restart
