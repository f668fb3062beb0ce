"""Reads from the database what one fragment has to obey: its trainer's generation, and whether to leave."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.slots import node_of
from oakum_service.errors import NoLongerWanted
from oakum_service.states import TrainerState
from oakum_worker.protocol import Directive, Generation, Member

SecretOf = Callable[[str, int], str]
"""(trainer's id, number of a generation) -> the generation's secret, in hexadecimal digits."""


_MOST_KNOWN = 1000


class Generations:
    """The newest generations, each without its secret, as directives tell them: all members of one ask for it at
    the same time. Any thread may use it."""

    def __init__(self) -> None:
        self._generations: OrderedDict[str, tuple[int, Generation]] = OrderedDict()
        """Trainer -> the revision of its directives, and the generation that they name."""

    def of(self, session: Session, trainer: Trainer) -> Generation:
        """The trainer's generation, read from the database once for each revision."""
        cached = self._generations.get(trainer.id)
        if cached is not None and cached[0] == trainer.revision:
            return cached[1]
        generation = _generation(session, trainer)
        self._generations[trainer.id] = (trainer.revision, generation)
        while len(self._generations) > _MOST_KNOWN:
            self._generations.popitem(last=False)
        return generation


def read_directive(session: Session, fragment_id: str, secret_of: SecretOf, generations: Generations) -> Directive:
    """The fragment's directive. A generation's secret is in those of its members alone. Raises `NoLongerWanted` if
    the fragment has ended or is unknown."""
    fragment = session.get(Fragment, fragment_id)
    if fragment is None or fragment.state == FragmentState.ENDED:
        raise NoLongerWanted(f"fragment {fragment_id} has ended")
    trainer = session.get_one(Trainer, fragment.trainer_id)
    generation = generations.of(session, trainer) if trainer.generation else None
    if generation is not None and fragment_id in trainer.members:
        secret = secret_of(trainer.id, generation.number)
        generation = generation.model_copy(update={"secret": secret})
    return Directive(
        revision=trainer.revision,
        generation=generation,
        ended_through=trainer.ended_through,
        leave=fragment.released or bool(fragment.cause) or TrainerState(trainer.state).ended,
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
            node=node_of(fragment.node),
            ranks=report.body.ranks,
        )
        for fragment, report in rows
    }
    return Generation(
        number=trainer.generation,
        members=tuple(members[member] for member in trainer.members),
        saver=trainer.saver,
        has_state=trainer.has_state,
    )
