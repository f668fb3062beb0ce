"""Observe: the scheduler's snapshot written down: node intervals (holes among them), starts, our jobs' ends."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from oakum_service.control import journal
from oakum_service.control.foreground import write_starts
from oakum_service.db.models import (
    Fragment,
    FragmentState,
    NodeInterval,
    Report,
    SnapshotRecord,
    Trainer,
)
from oakum_service.schedulers.port import Node, Snapshot
from oakum_service.states import NodeState, TrainerState
from oakum_worker.protocol import FragmentReport, Phase

_KEPT_SNAPSHOTS = 500
_KEPT_NODES = 200_000
"""In all snapshots that are kept: some tens of megabytes, however large the cluster is."""


@dataclass(frozen=True)
class Observed:
    """A snapshot with its number. The number rises when the nodes or their jobs change."""

    number: int
    snapshot: Snapshot


def write_snapshot(session: Session, snapshot: Snapshot, last: Observed | None) -> Observed:
    """Record what has changed since the last snapshot; returns the snapshot with its number."""
    if last is not None and last.snapshot.nodes == snapshot.nodes:
        write_starts(session, snapshot.starts)
        return Observed(last.number, snapshot)
    row = SnapshotRecord(taken_at=snapshot.taken_at, body=_document(snapshot))
    session.add(row)
    _write_intervals(session, snapshot)
    write_starts(session, snapshot.starts)
    session.flush()
    kept = min(_KEPT_SNAPSHOTS, 1 + _KEPT_NODES // max(1, len(snapshot.nodes)))
    session.execute(delete(SnapshotRecord).where(SnapshotRecord.number <= row.number - kept))
    return Observed(row.number, snapshot)


def _document(snapshot: Snapshot) -> dict[str, Any]:
    return {"nodes": [dataclasses.asdict(node) for node in snapshot.nodes]}


def _write_intervals(session: Session, snapshot: Snapshot) -> None:
    """End the intervals whose node has changed and begin new ones."""
    open_rows = session.execute(select(NodeInterval).where(NodeInterval.end_at.is_(None))).scalars()
    open_intervals = {row.node: row for row in open_rows}
    present = {node.name: node for node in snapshot.nodes}
    for name, row in open_intervals.items():
        node = present.get(name)
        if node is None or (node.state, node.job) != (row.state, row.job):
            row.end_at = snapshot.taken_at
    ended = {name for name, row in open_intervals.items() if row.end_at is not None}
    begun = [node for node in snapshot.nodes if node.name not in open_intervals or node.name in ended]
    _begin_intervals(session, begun, snapshot.taken_at)


def _begin_intervals(session: Session, nodes: Sequence[Node], at: float) -> None:
    """All in two statements: the first snapshot of a large cluster begins as many as it has nodes."""
    if not nodes:
        return
    rows = [
        {"node": node.name, "state": node.state, "job": node.job, "job_name": node.job_name, "start_at": at}
        for node in nodes
    ]
    session.execute(insert(NodeInterval), rows)
    journal.record_all(session, [(f"node.{node.state}", node.name, _told(node)) for node in nodes])


def _told(node: Node) -> str:
    words = {
        NodeState.HOLE: "is idle",
        NodeState.FOREGROUND: f"goes to foreground job {node.job_name}",
        NodeState.UNAVAILABLE: "is not available",
    }
    if node.state is NodeState.UNAVAILABLE and node.job is not None:
        return f"{node.name} is kept free while the scheduler hands nodes to foreground job {node.job}"
    return f"{node.name} {words[node.state]}"


def place_fragments(session: Session, snapshot: Snapshot) -> None:
    """Write down on which nodes fragments run that were launched for any of several."""
    placed = {job.fragment: job.node for job in snapshot.own_jobs if job.node is not None}
    rows = session.execute(select(Fragment).where(Fragment.state != FragmentState.ENDED)).scalars().all()
    moved = [fragment for fragment in rows if placed.get(fragment.id, fragment.node) != fragment.node]
    for trainer in {fragment.trainer_id for fragment in moved}:
        _place([fragment for fragment in rows if fragment.trainer_id == trainer], placed)


def _place(fragments: Sequence[Fragment], placed: Mapping[str, str]) -> None:
    """One that waits takes over a node that another of its trainer's did not get, so that each node stands for
    one of them."""
    before = {fragment.node for fragment in fragments}
    for fragment in fragments:
        fragment.node = placed.get(fragment.id, fragment.node)
    taken = {fragment.node for fragment in fragments if fragment.id in placed}
    waiting = [fragment for fragment in fragments if fragment.id not in placed and fragment.node in taken]
    for fragment, node in zip(waiting, sorted(before - taken - {f.node for f in fragments}), strict=False):
        fragment.node = node


def end_fragments(
    session: Session,
    snapshot: Snapshot,
    heartbeat_timeout_s: float,
    *,
    submitting: Collection[str] = (),
    now: float | None = None,
    listening_since: float = 0.0,
    warm_up_timeout_s: float = math.inf,
) -> list[str]:
    """Mark fragments as ended whose job is gone; returns those that are silent and have to be cancelled.

    Nobody is silent who could not be heard: before `listening_since` there was no service to report to, and who
    has spoken by `now` is not silent because this process was stopped since. Those in `submitting`, which has to
    be older than the snapshot, are left alone. A fragment whose job was only intended, or withdrawn before it
    began, never started.
    """
    now = time.time() if now is None else now
    jobs = {job.fragment for job in snapshot.own_jobs}
    silent: list[str] = []
    rows = session.execute(
        select(Fragment, Report, Trainer)
        .join(Trainer, Trainer.id == Fragment.trainer_id)
        .outerjoin(Report, Report.fragment_id == Fragment.id)
        .where(Fragment.state != FragmentState.ENDED)
    )
    for fragment, row, trainer in rows:
        report: Report | None = row  # of an outer join
        if fragment.id in submitting or fragment.launched_at > snapshot.taken_at:
            continue  # the snapshot may know nothing of it yet
        fragment.preempted |= fragment.id in snapshot.preempted
        if fragment.id not in jobs:
            node = snapshot.node(fragment.node)
            if report is None and (fragment.state == FragmentState.INTENDED or fragment.id in snapshot.withdrawn):
                fragment.cause = "never started"
            taken = node is None or node.state is not NodeState.HOLE
            heard_at = fragment.launched_at if report is None else report.received_at
            _end(session, fragment, report, trainer, taken=taken, unheard=heard_at < listening_since)
            continue
        if fragment.preempted and not _has_heard(fragment, report, trainer):
            silent.append(fragment.id)
        if report is not None:
            given_s, silent_s = heartbeat_timeout_s, now - max(report.received_at, listening_since)
        else:
            # Nothing can be told to whoever has never been heard.
            unwanted = fragment.released or TrainerState(trainer.state).ended
            given_s = heartbeat_timeout_s if unwanted else warm_up_timeout_s
            silent_s = snapshot.taken_at - max(fragment.launched_at, listening_since)
        if silent_s > given_s:
            silent.append(fragment.id)
    return silent


def _has_heard(fragment: Fragment, report: Report | None, trainer: Trainer) -> bool:
    """Whether a fragment that was preempted has heard of it, or hears of it from us; else it has nothing to save.

    A scheduler signals a job once, and one that was just beginning may have had no process to hear it.
    """
    if report is None:
        return False
    if not report.body.get("signalled") and not fragment.released:
        fragment.released = True
        trainer.revision += 1
    return True


def _end(
    session: Session, fragment: Fragment, row: Report | None, trainer: Trainer, *, taken: bool, unheard: bool
) -> None:
    """`unheard`: there was no service to tell why it ended, which it does by itself where none answers."""
    report = FragmentReport.model_validate(row.body) if row is not None else None
    fragment.state, fragment.ended_at = FragmentState.ENDED, time.time()
    fragment.cause = _cause_of_end(fragment, report, taken=taken)
    kind = "fragment.lost" if fragment.cause == "lost" else "fragment.left"
    journal.record(
        session, kind, trainer.name, f"{fragment.node}: {fragment.cause}", node=fragment.node, cause=fragment.cause
    )
    if fragment.cause == "lost" and not unheard:
        count_crash(trainer, int(trainer.progress.get("step", 0)))


def _cause_of_end(fragment: Fragment, report: FragmentReport | None, *, taken: bool) -> str:
    if fragment.cause:
        return fragment.cause  # known before its job has ended
    if report is not None and report.phase is Phase.FINISHED:
        return "finished"
    if report is not None and report.phase is Phase.FAILED:
        return "failed"
    if fragment.preempted:
        return "preempted"
    if fragment.released:
        return "released"
    return "preempted" if taken or (report is not None and report.signalled) else "lost"


def count_crash(trainer: Trainer, step: int) -> None:
    """Count a loss that no scheduler ordered, after `step` finished steps; another step begins the count anew."""
    trainer.crashes = trainer.crashes + 1 if trainer.crashed_step == step else 1
    trainer.crashed_step = step
