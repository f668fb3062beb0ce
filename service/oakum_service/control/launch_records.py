"""What the database remembers of launches that came to nothing; `control.setbacks` decides what follows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from oakum_service import instruments
from oakum_service.control import setbacks
from oakum_service.control.endings import end
from oakum_service.control.setbacks import LastWords, Surroundings
from oakum_service.db import event_log
from oakum_service.db.after_commit import after_commit
from oakum_service.db.models.cluster import NodeSetback
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.setback import Setback, SetbackKind
from oakum_service.documents.slots import node_of, nodes_of
from oakum_service.logs.fields import about
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import LIVE_STATES, TrainerState
from oakum_solver.wording import duration


def may_launch(session: Session, trainer: Trainer, nodes: Collection[str], snapshot: Snapshot, now: float) -> bool:
    """Whether the trainer may be launched on these nodes now, after what came of its last launches."""
    if trainer.setback is None:
        return True
    return setbacks.may_launch(trainer.setback, nodes_of(nodes), _surroundings(session, trainer, snapshot), now)


def suspects(session: Session) -> set[str]:
    """The nodes on which launches came to nothing and none has succeeded since: others come first."""
    return set(session.scalars(select(NodeSetback.node)))


def left_out(session: Session, snapshot: Snapshot, now: float) -> set[str]:
    """The nodes on which nothing new is launched for now, since launches there came to nothing."""
    live = session.scalars(select(Trainer).where(Trainer.state.in_(LIVE_STATES)))
    own_jobs = _own_jobs(session)
    suspects = (
        setbacks.suspected_node(trainer.setback, Surroundings(trainer.spec, snapshot, own_jobs), now)
        for trainer in live
        if trainer.setback is not None
    )
    return {node for node in suspects if node is not None} | {row.node for row in avoided(session, now)}


def avoided(session: Session, now: float) -> list[NodeSetback]:
    """The nodes that are left out because fragments ended there before they reported, in order of names."""
    rows = select(NodeSetback).where(NodeSetback.until_at > now).order_by(NodeSetback.node)
    return list(session.scalars(rows))


def note_unreported(
    session: Session, trainer: Trainer, fragment: Fragment, words: LastWords, snapshot: Snapshot, now: float
) -> None:
    """Record that a fragment ended before its first report: its node is left out for a while and the trainer's
    next launch waits. If the same happened elsewhere by the trainer's own code, the trainer has failed."""
    node = node_of(fragment.node)
    if _ends_trainer(session, trainer, node, words, now):
        return
    _note_node(session, trainer, node, words, now)
    _set_back(session, trainer, SetbackKind.UNREPORTED, [node], snapshot, words.text, now, fragment)


def note_unloaded(session: Session, trainer: Trainer, fragment: Fragment, what: str, now: float) -> None:
    """Record that a fragment could not load what members of its trainer have loaded. The trainer has failed if the
    same happened on another node before."""
    words, node = LastWords(what, is_own=True), node_of(fragment.node)
    if not _ends_trainer(session, trainer, node, words, now):
        _note_node(session, trainer, node, words, now)


def _note_node(session: Session, trainer: Trainer, node: str, words: LastWords, now: float) -> None:
    """Leave a node out for a while, where a fragment of the trainer ended with these words."""
    last = session.get(NodeSetback, node)
    times = 1 if last is None else last.times + 1
    lasting_s = setbacks.delay_s(times, setbacks.NODE_FIRST_S, setbacks.NODE_LONGEST_S)
    row = NodeSetback(
        node=node,
        at=now,
        times=times,
        until_at=now + lasting_s,
        what=words.text,
        trainer_id=trainer.id,
        is_own=words.is_own,
    )
    session.merge(row)
    text = f"is left out for {duration(lasting_s)}, as a fragment came to nothing there: {row.public_text}"
    event_log.record(session, "node.avoided", node, text, times=times)


def note_begun(session: Session, trainer: Trainer, fragment: Fragment, *, is_ready: bool) -> None:
    """Record that the fragment has reported, and with `is_ready` that it has just become ready: it is over that
    fragments end before they report."""
    setback = trainer.setback
    if setback is not None and setback.kind is not SetbackKind.REFUSED:
        trainer.setback = None if is_ready or fragment.launched_at >= setback.since else setback
    if is_ready:
        forget_nodes(session, [node_of(fragment.node)])


def forget_nodes(session: Session, nodes: Collection[str]) -> None:
    """Let launches on these nodes again, as if nothing had come to nothing there."""
    if nodes:
        session.execute(delete(NodeSetback).where(NodeSetback.node.in_(nodes)))


def _ends_trainer(session: Session, trainer: Trainer, node: str, words: LastWords, now: float) -> bool:
    """End the trainer if these words are its own and were its own before, on another node or, where nothing of it
    trains, on this one. Returns whether it has ended."""
    if not words.is_own or TrainerState(trainer.state).ended:
        return TrainerState(trainer.state).ended
    rows = select(NodeSetback).where(NodeSetback.trainer_id == trainer.id, NodeSetback.is_own)
    same = [
        row.node
        for row in session.scalars(rows)
        if (row.node != node or not trainer.members)
        and setbacks.looks_the_same(row.what, words.text, [row.node, node])
    ]
    if same:
        forget_nodes(session, same)
        where = f"on {node} again" if node in same else f"on {same[0]} and {node}"
        end(session, trainer, TrainerState.FAILED, f"{words.text} (the same {where})", now)
    return bool(same)


def note_refusal(
    session: Session, trainer: Trainer, nodes: Sequence[str], snapshot: Snapshot, what: str, now: float
) -> None:
    """Record that a submission to these nodes was refused with the words `what`, and when the next is due."""
    after_commit(session, instruments.REFUSALS.inc)
    setback = _set_back(session, trainer, SetbackKind.REFUSED, nodes_of(nodes), snapshot, what, now)
    _record(session, trainer, setback, nodes, now)


def note_pending(
    session: Session, trainer: Trainer, fragment: Fragment, snapshot: Snapshot, what: str, now: float
) -> None:
    """Record that a fragment's job was withdrawn because the scheduler had kept it pending for the reason `what`,
    and when the next launch is due."""
    nodes = [node_of(fragment.node)]
    setback = _set_back(session, trainer, SetbackKind.PENDING, nodes, snapshot, what, now, fragment)
    _record(session, trainer, setback, nodes, now)


def _set_back(
    session: Session,
    trainer: Trainer,
    kind: SetbackKind,
    nodes: Sequence[str],
    snapshot: Snapshot,
    what: str,
    now: float,
    fragment: Fragment | None = None,
) -> Setback:
    """Record that a launch on these nodes came to nothing for the reason `what`, with `fragment` if it got so
    far."""
    surroundings = _surroundings(session, trainer, snapshot)
    begun_at = None if fragment is None else fragment.launched_at
    setback = setbacks.after(trainer.setback, kind, what, nodes, surroundings, now, begun_at=begun_at)
    trainer.setback = setback
    return setback


def _record(session: Session, trainer: Trainer, setback: Setback, nodes: Sequence[str], now: float) -> None:
    """Record an event of the setback of a launch on these nodes."""
    with about(trainer=trainer.id):
        event_log.record(
            session,
            f"launch.{setback.kind}",
            trainer.name,
            f"{', '.join(nodes)}: {setback.what}; the next submission is due in {duration(setback.next_at - now)}",
            nodes=list(nodes),
            times=setback.times,
        )


def note_acceptance(trainer: Trainer, nodes: Collection[str]) -> None:
    """Record that the scheduler has taken the submission of fragments for these nodes."""
    if trainer.setback is not None:
        trainer.setback = setbacks.after_acceptance(trainer.setback, nodes_of(nodes))


def _surroundings(session: Session, trainer: Trainer, snapshot: Snapshot) -> Surroundings:
    return Surroundings(trainer.spec, snapshot, _own_jobs(session))


def _own_jobs(session: Session) -> int:
    """Number of our jobs at the scheduler."""
    query = select(func.count()).select_from(Fragment).where(Fragment.state == FragmentState.LIVE)
    return session.scalar(query) or 0
