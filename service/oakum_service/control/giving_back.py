"""Gives nodes back that somebody wants although the scheduler lets our fragments go on there: drained nodes, nodes
in maintenance, nodes that are to be rebooted. A node of a reservation that its trainer asks for is not wanted."""

from __future__ import annotations

from sqlalchemy.orm import Session

from oakum_service.db import event_log
from oakum_service.db.models.fragments import Fragment, live_fragments
from oakum_service.db.models.trainers import Trainer
from oakum_service.logs.fields import about
from oakum_service.schedulers.port import Snapshot

_RESERVED = "RESERVED"


def release(fragment: Fragment, trainer: Trainer) -> None:
    """Tell a fragment of the trainer to checkpoint and leave: its agent is told as soon as the revision is new."""
    fragment.released = True
    trainer.revision += 1


def release_wanted(session: Session, snapshot: Snapshot) -> None:
    """Tell each fragment to checkpoint and leave whose node is to become free for somebody, as a drained one is. A
    fragment is told once."""
    if not any(node.wanted or node.reservation for node in snapshot.nodes):
        return
    for fragment in live_fragments(session):
        node = snapshot.node(fragment.node)
        if node is None or fragment.released or not (node.wanted or node.reservation):
            continue
        trainer = session.get_one(Trainer, fragment.trainer_id)
        asks_for_it = trainer.spec.slurm.reservation == node.reservation
        if not node.wanted and asks_for_it:
            continue
        release(fragment, trainer)
        with about(trainer=trainer.id, fragment=fragment.id):
            text = f"{node.name}: told to checkpoint and leave, as the node is {node.wanted or _RESERVED}"
            event_log.record(session, "fragment.released", trainer.name, text, node=node.name)
