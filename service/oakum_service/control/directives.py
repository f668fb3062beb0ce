"""The word for one fragment, read from the database: its trainer's generation, and whether it has to go."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models import Fragment, FragmentState, Report, Trainer
from oakum_service.errors import Gone
from oakum_service.states import TrainerState
from oakum_worker.protocol import Directive, FragmentReport, Generation, Member


def read_directive(session: Session, fragment_id: str) -> Directive:
    """All that the fragment has to obey. Raises `Gone` when it is not wanted at all any more."""
    fragment = session.get(Fragment, fragment_id)
    if fragment is None or fragment.state == FragmentState.ENDED:
        raise Gone(f"fragment {fragment_id} has ended")
    trainer = session.get_one(Trainer, fragment.trainer_id)
    return Directive(
        revision=trainer.revision,
        generation=_generation(session, trainer) if trainer.generation else None,
        over=trainer.over,
        leave=fragment.released or TrainerState(trainer.state).ended,
    )


def _generation(session: Session, trainer: Trainer) -> Generation:
    rows = session.execute(
        select(Fragment, Report)
        .join(Report, Report.fragment_id == Fragment.id)
        .where(Fragment.id.in_(trainer.members))
    )
    members = {
        fragment.id: Member(
            fragment=fragment.id,
            node=fragment.node,
            ranks=FragmentReport.model_validate(report.body).ranks,
        )
        for fragment, report in rows
    }
    return Generation(
        number=trainer.generation,
        members=tuple(members[member] for member in trainer.members),
        closer=trainer.closer,
    )
