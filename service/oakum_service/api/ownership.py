"""Decides by a trainer's owner what a caller may do: users change and read their own trainers; of other users'
trainers they see only what concerns the nodes."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.api.auth import Principal, Role
from oakum_service.api.schemas.trainers import TrainerView
from oakum_service.db.models.trainers import Trainer
from oakum_service.errors import Forbidden
from oakum_service.standing import Status
from oakum_service.states import TrainerState

ONLY_ITS_USER = "only its user and administrators see more"
_PRIVATE_EVENTS = ("trainer.", "fragment.crashed")
"""How the kinds of those events begin whose messages may quote a user's code."""


def may_read(caller: Principal, trainer: Trainer) -> bool:
    """Whether the caller may read all of the trainer: logs, arguments, charts, errors, checkpoints.

    Viewers read everything, since an administrator gives the role to people whom all users trust.
    """
    return caller.role != Role.USER or trainer.user_name == caller.name


def check_may_read(caller: Principal, trainer: Trainer) -> None:
    """Raise `Forbidden` unless the caller may read all of the trainer."""
    if not may_read(caller, trainer):
        raise Forbidden(f"trainer {trainer.name!r} is another user's: {ONLY_ITS_USER}")


def check_may_change(caller: Principal, trainer: Trainer) -> None:
    """Raise `Forbidden` unless the trainer is the caller's or the caller is an administrator."""
    if caller.role < Role.ADMIN and trainer.user_name != caller.name:
        raise Forbidden(
            f"trainer {trainer.name!r} is another user's: only its user and administrators change or cancel it"
        )


def visible_view(caller: Principal, trainer: Trainer, view: TrainerView) -> TrainerView:
    """The trainer's document as the caller may see it: of others' trainers what concerns the nodes, without what
    the user's code is, says and has learned."""
    if may_read(caller, trainer):
        return view
    spec = view.spec.model_copy(
        update={
            "entrypoint": "private:private",
            "script": None,
            "workdir": None,
            "arguments": {},
            "notify": (),
            "evaluate": None,
            "initial": None,
            "tags": (),
            "notes": "",
        }
    )
    is_told = view.status is Status.PAUSED  # with the words of whoever has paused it
    has_gone_wrong = view.attempt is not None or view.state in (TrainerState.FAILED, TrainerState.DIVERGED)
    return view.model_copy(
        update={
            "is_private": True,
            "spec": spec,
            "message": "",
            "reason": f"{view.status}: {ONLY_ITS_USER}" if has_gone_wrong or is_told else view.reason,
            "condition": "",
            "traceback": "",
            "attempt": None,
            "loss": None,
            "learning_rate": None,
            "metrics": {},
            "best": None,
            "checkpoint_folder": "",
        }
    )


def names_of_others(session: Session, caller: Principal, names: Iterable[str]) -> set[str]:
    """Those of the names that are not of the caller's trainers alone: another user's trainer has, or had, such a
    name, or nobody's that is still known. Empty for callers who read everything."""
    if caller.role != Role.USER:
        return set()
    asked = set(names)
    known = session.execute(
        select(Trainer.name, Trainer.user_name).where(Trainer.name.in_(asked)).distinct()
    ).all()
    others = {name for name, user in known if user != caller.name}
    return others | (asked - {name for name, _ in known})


def is_private_event(kind: str) -> bool:
    """Whether messages of this kind of event may quote a user's code."""
    return kind.startswith(_PRIVATE_EVENTS)
