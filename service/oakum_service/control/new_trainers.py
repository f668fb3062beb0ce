"""Makes a new trainer, for the API as well as for `oakum serve --submit`."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import inspect
from sqlalchemy.orm import Session

from oakum_service import clock
from oakum_service.db import event_log
from oakum_service.db.models.trainers import Trainer
from oakum_service.errors import Conflict, Forbidden
from oakum_service.fragments.trainer_files import Checkpoints
from oakum_service.logs.fields import about
from oakum_service.orders.annotations import make_findable
from oakum_service.states import TrainerState
from oakum_solver.wording import counted
from oakum_worker.errors import CheckpointError
from oakum_worker.spec import TrainerSpec
from oakum_worker.strategy_table import options_of, strategy_of


def add_trainer(session: Session, spec: TrainerSpec, user: str) -> Trainer:
    """Add a trainer that waits for its first nodes. The caller has checked that its name is free. Returns its
    row."""
    trainer = new_trainer(spec, user, clock.now())
    session.add(trainer)
    make_findable(session, trainer)
    with about(trainer=trainer.id):
        event_log.record(session, "trainer.submitted", spec.name, f"{spec.code}, {counted(spec.epochs, 'epoch')}")
    return trainer


@dataclass(frozen=True)
class GivenState:
    """The state of another trainer that lies in the folder of a new one."""

    trainer_id: str
    """Id of the new trainer."""
    other: str
    """Name of the other one."""
    step: int


def give_state(spec: TrainerSpec, other: Trainer, checkpoints: Checkpoints, step: int | None = None) -> GivenState:
    """Put a durable checkpoint of a trainer that `refuse_state_of` lets pass, that of `step` or the newest, into
    the folder of a new one. Not for use within a transaction.

    Raises `Conflict` where there is none, or it cannot be put there.
    """
    trainer_id = str(uuid.uuid4())
    try:
        return GivenState(trainer_id, other.name, checkpoints.adopt(other.id, trainer_id, step))
    except CheckpointError as error:
        raise Conflict(f"{spec.name} cannot begin from {other.name}: {error}") from error


def add_trainer_from(session: Session, spec: TrainerSpec, user: str, given: GivenState) -> Trainer:
    """Add the trainer to which another one's state was given. Returns its row."""
    trainer = new_trainer(spec, user, clock.now())
    trainer.id, trainer.checkpoint_step = given.trainer_id, given.step
    session.add(trainer)
    make_findable(session, trainer)
    text = f"{spec.code}, {counted(spec.epochs, 'epoch')}, from {given.other} at step {given.step:,}"
    with about(trainer=trainer.id):
        event_log.record(session, "trainer.submitted", spec.name, text)
    return trainer


def step_to_begin_from(at: str, best_step: Callable[[], int | None]) -> int | None:
    """The step of the checkpoint that `at`, a number of steps or `best`, stands for among a trainer's
    checkpoints, of which `best_step` finds the best; None, the newest one's, where `at` is empty. Raises
    `Conflict` for anything else, and where no checkpoint is the best."""
    if not at:
        return None
    if at == "best":
        best = best_step()
        if best is None:
            raise Conflict("the trainer to begin from has no best checkpoint: name a step, or its newest one")
        return best
    if not at.isdecimal():
        raise Conflict(f"{at!r} is no step to begin from: write NAME, NAME/1200 or NAME/best")
    return int(at)


def refuse_state_of(other: Trainer, spec: TrainerSpec, user: str) -> None:
    """Raise `Forbidden` or `Conflict` where a new trainer of `user` with this spec may not begin from the state of
    the trainer `other`."""
    if other.user_name != user:
        raise Forbidden(f"trainer {other.name!r} is another user's: only its own user may begin from its state")
    if not TrainerState(other.state).ended:
        raise Conflict(f"trainer {other.name!r} is {other.state}: `oakum cancel {other.name}` ends it first")
    if other.checkpoint_step is None:
        raise Conflict(f"trainer {other.name!r} has no durable checkpoint to begin from: submit without --from")
    if strategy_of(spec).splits_state or strategy_of(other.spec).splits_state:
        *options, last = options_of(lambda strategy: strategy.splits_state)
        raise Conflict(
            "only trainers whose nodes each have the whole state begin from another's: leave "
            f"{', '.join(options)} and {last} out of the spec, or begin with its weights alone: "
            f"`oakum export {other.name} -o weights.safetensors`, and `initial: weights.safetensors` in the spec"
        )


def new_trainer(spec: TrainerSpec, user: str, now: float) -> Trainer:
    """A new trainer's row, waiting for its first nodes, with all defaults filled in; not added to any session."""
    trainer = Trainer(
        id=str(uuid.uuid4()),
        name=spec.name,
        spec=spec,
        state=TrainerState.WAITING,
        submitted_at=now,
        waiting_since=now,
        user_name=user,
    )
    for attribute in inspect(Trainer).column_attrs:
        # The database sets defaults when a row is added; this trainer may be looked at without that.
        default: Any = attribute.columns[0].default
        if default is not None and getattr(trainer, attribute.key) is None:
            setattr(trainer, attribute.key, default.arg(None) if default.is_callable else default.arg)
    return trainer
