"""Observe: records the scheduler's snapshot: node intervals (holes among them), foreground starts, ends of our
jobs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from oakum_service.control import attempts, launch_records, setbacks
from oakum_service.control.foreground import write_starts
from oakum_service.control.fragment_ends import end_fragment
from oakum_service.control.giving_back import release
from oakum_service.control.report_pace import silence_s
from oakum_service.db import event_log
from oakum_service.db.models.cluster import AnnouncementsRecord, NodeInterval, SnapshotRecord
from oakum_service.db.models.fragments import Fragment, FragmentState, Report, live_fragments
from oakum_service.db.models.trainers import Trainer, trainers_of
from oakum_service.documents.announcement import Announcements
from oakum_service.documents.node import Node, RecordedNodes
from oakum_service.documents.slots import nodes_of
from oakum_service.logs.fields import about
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import NodeState, TrainerState
from oakum_worker.memory_advice import memory_advice
from oakum_worker.protocol import FragmentReport, Phase

_log = logging.getLogger("oakum")
_KEPT_SNAPSHOTS = 500
_KEPT_NODES = 200_000
"""Nodes in all kept snapshots together: some tens of megabytes, whatever the size of the cluster."""
_FEW = 8
"""Up to so many fragments that fall silent at once are lost, whatever share of all they are."""
_OVERLOAD_FACTOR = 6
NEAR_LIMIT = "SIGUSR2"
"""The signal that the scheduler sends some time before a job's time limit."""
_WORDS = {
    "cancelled": "cancelled: its job was cancelled, and not by this service",
    "time limit": "time limit: its job's time was over",
}
"""Causes that need more words in an event."""


@dataclass(frozen=True)
class Observation:
    """A snapshot with its number, which rises when nodes or their jobs change."""

    number: int
    snapshot: Snapshot
    preference: tuple[str, ...] = ()
    """Names of the idle nodes, those expected to stay idle the longest first; empty if the order is not known."""


def newest_observation(session: Session) -> Observation | None:
    """The newest snapshot in the database, with its nodes but without our jobs; None before the first."""
    row = session.execute(select(SnapshotRecord).order_by(SnapshotRecord.number.desc()).limit(1)).scalar()
    if row is None:
        return None
    announced = session.get(AnnouncementsRecord, 1)
    announcements = Announcements() if announced is None else announced.body
    return Observation(row.number, Snapshot(row.taken_at, row.body.nodes, (), announced=announcements))


def write_snapshot(session: Session, snapshot: Snapshot, last: Observation | None) -> Observation:
    """Record what has changed since the last snapshot; returns the snapshot with its number."""
    if last is None or last.snapshot.starts != snapshot.starts:
        write_starts(session, snapshot.starts)
    if last is None or last.snapshot.announced != snapshot.announced:
        session.merge(AnnouncementsRecord(id=1, body=snapshot.announced))
    if last is not None and last.snapshot.nodes == snapshot.nodes:
        return Observation(last.number, snapshot)
    row = SnapshotRecord(taken_at=snapshot.taken_at, body=RecordedNodes(snapshot.nodes))
    session.add(row)
    _write_intervals(session, snapshot)
    session.flush()
    kept = min(_KEPT_SNAPSHOTS, 1 + _KEPT_NODES // max(1, len(snapshot.nodes)))
    session.execute(delete(SnapshotRecord).where(SnapshotRecord.number <= row.number - kept))
    return Observation(row.number, snapshot)


def _write_intervals(session: Session, snapshot: Snapshot) -> None:
    """End the intervals of nodes that have changed and begin new ones. A hole goes on while the scheduler clears
    the node after a job of ours: it ends when somebody else has the node, and its age tells when that may be."""
    # Columns and not rows: a large cluster has thousands of nodes, and few of them change.
    columns = (NodeInterval.id, NodeInterval.node, NodeInterval.state, NodeInterval.job)
    lasting = session.execute(select(*columns).where(NodeInterval.end_at.is_(None))).all()
    present = {node.name: node for node in snapshot.nodes}
    ended = [one for one in lasting if not _goes_on(one.state, one.job, present.get(one.node))]
    if ended:
        ends = [{"id": one.id, "end_at": snapshot.taken_at} for one in ended]
        session.execute(update(NodeInterval), ends)
    # Whoever had a node that was kept for no job may have mended it.
    back = [one.node for one in ended if one.state == NodeState.UNAVAILABLE and not one.job]
    launch_records.forget_nodes(session, nodes_of(back))
    same = {one.node for one in lasting} - {one.node for one in ended}
    _begin_intervals(session, [node for node in snapshot.nodes if node.name not in same], snapshot.taken_at)


def _goes_on(state: str, job: str | None, node: Node | None) -> bool:
    """Whether the interval of a node in this state, with this job, lasts with what the node is now."""
    if node is None:
        return False
    return (node.state, node.job) == (state, job) or (node.clearing and state == NodeState.HOLE)


def _begin_intervals(session: Session, nodes: Sequence[Node], at: float) -> None:
    """Begin an interval and record an event for each node, in two statements for all: the first snapshot of a
    large cluster has thousands of nodes."""
    if not nodes:
        return
    rows = [
        {"node": node.name, "state": node.state, "job": node.job, "job_name": node.job_name, "start_at": at}
        for node in nodes
    ]
    session.execute(insert(NodeInterval), rows)
    event_log.record_all(session, [(f"node.{node.state}", node.name, _describe(node)) for node in nodes])


def _describe(node: Node) -> str:
    """What an event about the node says after its name."""
    words = {
        NodeState.HOLE: "is idle",
        NodeState.FOREGROUND: f"goes to foreground job {node.job_name}",
        NodeState.UNAVAILABLE: f"is not available{node.wanted and f': {node.wanted}'}",
    }
    if node.state is NodeState.UNAVAILABLE and node.job is not None:
        return f"is kept free while the scheduler hands nodes to foreground job {node.job}"
    return words[node.state]


def place_fragments(session: Session, snapshot: Snapshot) -> None:
    """Record on which node each fragment runs if the scheduler chose another one than planned, as it may for
    job arrays."""
    placed = {job.fragment: job.node for job in snapshot.own_jobs if job.node is not None}
    present = session.execute(select(Fragment.id, Fragment.node).where(Fragment.is_live))
    if all(placed.get(fragment, node) == node for fragment, node in present):
        return
    rows = live_fragments(session)
    moved = [fragment for fragment in rows if placed.get(fragment.id, fragment.node) != fragment.node]
    for trainer in {fragment.trainer_id for fragment in moved}:
        _place([fragment for fragment in rows if fragment.trainer_id == trainer], placed)


def _place(fragments: Sequence[Fragment], placed: Mapping[str, str]) -> None:
    """Set each fragment's node to the one in `placed` (fragment -> node). A fragment that still waits for a node
    takes over a node that no other of these fragments got, so that each node belongs to one fragment."""
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
    now: float,
    submitting: Collection[str] = (),
    listening_since: float = 0.0,
    warm_up_timeout_s: float = math.inf,
    log_of: Callable[[str], Sequence[str]] = lambda _: (),
) -> list[str]:
    """Mark the fragments as ended whose jobs are gone, and record for each why. Returns the fragments that count
    as lost although their jobs may still run; the caller has those jobs cancelled.

    A fragment counts as lost when its agent has not reported for `heartbeat_timeout_s`, longer with very many
    agents. One that has never reported counts as lost after `warm_up_timeout_s`, after `heartbeat_timeout_s` if it
    is to leave, and at once if it was preempted. Only time after `listening_since` counts, since no service was
    there to report to before, and only time until `now`, so that a later stop of this process does not count
    either. Fragments in `submitting` are left alone: those that were being submitted at any time since the
    snapshot was asked for. `log_of` gives the last lines of a fragment's log.
    """
    jobs = {job.fragment for job in snapshot.own_jobs}
    silent: list[str] = []
    unheard_s: dict[str, float] = {}
    rows = session.execute(
        select(Fragment, Report).outerjoin(Report, Report.fragment_id == Fragment.id).where(Fragment.is_live)
    ).all()
    trainers = trainers_of(session, {fragment.trainer_id for fragment, _ in rows})
    num_reporting = sum(row is not None for _, row in rows)
    patience_s = silence_s(heartbeat_timeout_s, num_reporting)
    for fragment, row in rows:
        report: Report | None = row  # of an outer join
        trainer = trainers[fragment.trainer_id]
        if fragment.id in submitting or fragment.launched_at > snapshot.taken_at:
            continue  # the snapshot may be older than the job
        fragment.preempted |= fragment.id in snapshot.preempted
        if fragment.id not in jobs:
            node = snapshot.node(fragment.node)
            if report is None and (fragment.state == FragmentState.INTENDED or fragment.id in snapshot.withdrawn):
                fragment.cause = "never started"
            taken = node is None or not node.is_left
            heard_at = fragment.launched_at if report is None else report.received_at
            unheard = heard_at < listening_since
            with about(trainer=trainer.id, fragment=fragment.id):
                _end(session, fragment, report, trainer, snapshot, now, log_of, taken=taken, unheard=unheard)
                if (reason := snapshot.kept_waiting.get(fragment.id)) is not None and report is None:
                    launch_records.note_pending(session, trainer, fragment, snapshot, reason, now)
            continue
        if fragment.preempted and not _has_heard(fragment, report, trainer):
            silent.append(fragment.id)
        if report is not None:
            unheard_s[fragment.id] = now - max(report.received_at, listening_since)
            continue
        # An agent that has never reported has not received the word to leave either.
        unwanted = fragment.released or TrainerState(trainer.state).ended
        given_s = heartbeat_timeout_s if unwanted else warm_up_timeout_s
        if snapshot.taken_at - max(fragment.launched_at, listening_since) > given_s:
            silent.append(fragment.id)
    return silent + _lost(unheard_s, patience_s)


def _lost(unheard_s: Mapping[str, float], patience_s: float) -> list[str]:
    """The fragments that count as lost, of `unheard_s` (fragment -> seconds without a report): those silent for
    longer than `patience_s`.

    Where most of many fragments fall silent at once, the service or the network is overloaded, since nodes do not
    die together; six times the patience then applies.
    """
    silent = [fragment for fragment, seconds in unheard_s.items() if seconds > patience_s]
    if len(silent) <= max(_FEW, len(unheard_s) // 2):
        return silent
    longer_s = _OVERLOAD_FACTOR * patience_s
    lost = [fragment for fragment in silent if unheard_s[fragment] > longer_s]
    _log.warning(
        "%d of %d agents have not reported for %.0f s: the service or the network is overloaded, so none counts "
        "as lost before %.0f s",
        len(silent),
        len(unheard_s),
        patience_s,
        longer_s,
    )
    return lost


def _has_heard(fragment: Fragment, report: Report | None, trainer: Trainer) -> bool:
    """Make sure that a preempted fragment is told to leave. Returns whether it can be told: False for a fragment
    that has never reported, which has nothing to save.

    A fragment whose agent has not heard the scheduler's signal is released here, which tells it to leave: the
    scheduler signals a job only once, and a job that had just begun may have had no process to receive the signal.
    """
    if report is None:
        return False
    if not report.body.signalled and not fragment.released:
        release(fragment, trainer)
    return True


def _end(
    session: Session,
    fragment: Fragment,
    row: Report | None,
    trainer: Trainer,
    snapshot: Snapshot,
    now: float,
    log_of: Callable[[str], Sequence[str]],
    *,
    taken: bool,
    unheard: bool,
) -> None:
    """Mark the fragment as ended. `taken`: the scheduler has taken its node. `unheard`: no service was running
    to be told why it ended, so its loss does not count as a crash."""
    report = row.body if row is not None else None
    fragment.cause = _cause_of_end(fragment, report, snapshot, taken=taken)
    short = fragment.id in snapshot.out_of_memory
    words = None
    if fragment.cause == "lost" and report is None and not unheard and not short:
        fragment.cause, words = "never reported", setbacks.last_words(log_of(fragment.id))
    end_fragment(session, fragment, now)
    kind = "fragment.left" if fragment.cause not in ("lost", "never reported") else "fragment.lost"
    text = f"{fragment.node}: {_WORDS.get(fragment.cause, fragment.cause)}" + (f": {words.text}" if words else "")
    event_log.record(session, kind, trainer.name, text, node=fragment.node, cause=fragment.cause)
    if words is not None:
        launch_records.note_unreported(session, trainer, fragment, words, snapshot, now)
    elif fragment.cause == "lost" and not unheard:
        _count_loss(session, trainer, fragment, report, now, short=short)


def _count_loss(
    session: Session,
    trainer: Trainer,
    fragment: Fragment,
    report: FragmentReport | None,
    now: float,
    *,
    short: bool,
) -> None:
    """Count the loss of a fragment as a crash, unless its trainer has ended. `short`: the scheduler ended it for
    lack of memory. A crash that the agent reported before belongs to the same attempt and is not counted again."""
    if TrainerState(trainer.state).ended:
        return
    generation = 0 if report is None else report.generation
    step = trainer.reported_step
    began_at = attempts.began_at(session, trainer, fragment.launched_at, generation)
    if short:
        what = f"{fragment.node} had no memory left for the fragment, says the scheduler, around step {step:,}. "
        what += memory_advice(trainer.spec)
    else:
        what = (
            f"the fragment on {fragment.node} ended without a last report, around step {step:,}: its last "
            "lines are in "
        )
        what += f"`oakum logs {trainer.name}`"
    most = attempts.MOST_OF_ERRORS if short else attempts.MOST_OF_DEATHS
    attempts.record_crash(session, trainer, attempts.TrainerCrash(step, what, began_at, most=most), now)


def _cause_of_end(fragment: Fragment, report: FragmentReport | None, snapshot: Snapshot, *, taken: bool) -> str:
    if fragment.cause:
        return fragment.cause  # recorded before the job ended
    if report is not None and report.phase is Phase.FINISHED:
        return "finished"
    if report is not None and report.phase is Phase.FAILED:
        return "failed"
    if fragment.preempted:
        return "preempted"
    if fragment.released:
        return "released"
    if fragment.id in snapshot.cancelled:
        return "cancelled"
    if fragment.id in snapshot.timed_out or (report is not None and report.signal == NEAR_LIMIT):
        return "time limit"
    return "preempted" if taken or (report is not None and report.signalled) else "lost"
