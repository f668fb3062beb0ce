"""Attempts: how often a trainer may crash at one stretch of its training, and when a crash is forgiven.

An *attempt* ends when something of the trainer crashes without the scheduler having ended it: its code raises, a
rank is killed or hangs, a fragment disappears without a report. Several crashes during one attempt count once,
whatever the number of nodes. A crash counts until training has got over it:

- if other nodes went on without losing a step: with the first step beyond the one at which it crashed;
- otherwise: when training beyond the furthest earlier step has lasted as long as the crash kept it from there, but
  at least 5 s, since reports lag behind steps. A trainer that crashes now and then may thus go on for ever as long
  as most of its time brings it further; one that dies around the same step again and again ends after a few
  attempts.

An error raised twice at the same step, with the same message from the same line, ends the trainer at once.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from sqlalchemy.orm import Session

from oakum_service.control.endings import end
from oakum_service.db.models.trainers import GenerationRecord, Trainer
from oakum_service.documents.crash import NewestCrash
from oakum_service.states import TrainerState
from oakum_solver.wording import counted
from oakum_worker.protocol import TrainingProgress

MOST_OF_ERRORS = 3
"""Attempts that a trainer has if they end in errors of known cause, such as an exception or a lack of memory."""
MOST_OF_DEATHS = 5
"""Attempts that a trainer has if they end for an unknown cause, which may be the nodes' fault."""
_LAG_S = 5.0
_LONGEST_PROBATION_S = 600.0
"""Limits the wait for forgiveness: a trainer may have been without nodes for hours after its crash."""


@dataclass(frozen=True)
class TrainerCrash:
    """A crash of some part of a trainer, which ended although nobody told it to."""

    step: int
    """Number of finished steps at the crash."""
    what: str
    """What happened and what to do about it, for people."""
    began_at: float
    """When the attempt that the crash ended began, in Unix seconds."""
    error: str = ""
    """Identifies an error of the trainer's code; empty for crashes of another kind."""
    traceback: str = ""
    most: int = MOST_OF_DEATHS


def began_at(session: Session, trainer: Trainer, launched_at: float, generation: int) -> float:
    """When a fragment's present attempt began, in Unix seconds: the publication of `generation`, the fragment's
    newest one, or its launch if it has been in none (0)."""
    row = session.get(GenerationRecord, (trainer.id, generation)) if generation else None
    return launched_at if row is None else row.published_at


def record_crash(session: Session, trainer: Trainer, crash: TrainerCrash, now: float) -> None:
    """Count the attempt that this crash ended, unless it is counted already; end the trainer if no attempt is
    left."""
    last = trainer.crash
    # A generation published in the turn that recorded the last crash began after that crash.
    if last is not None and last.at is not None and crash.began_at < last.at:
        return
    repeated = last is not None and trainer.crashes > 0 and (crash.error, crash.step) == (last.error, last.step)
    same = bool(crash.error) and repeated
    trainer.crashes += 1
    trainer.crashed_step = max(trainer.crashed_step, crash.step) if trainer.crashes > 1 else crash.step
    trainer.crash = NewestCrash(now, crash.step, crash.what, crash.error, crash.most, crash.traceback)
    trainer.message = crash.what
    if same:
        what = f"{crash.what} (the same error twice at step {crash.step:,})"
        end(session, trainer, TrainerState.FAILED, what, now)
    elif trainer.crashes >= crash.most:
        end(session, trainer, TrainerState.FAILED, _last_words(trainer, crash), now)


def forgive(session: Session, trainer: Trainer, progress: TrainingProgress, now: float) -> None:
    """Reset the count of crashes to 0 if training has got over them, as far as this progress shows; else change
    nothing."""
    if not trainer.crashes or progress.step <= trainer.crashed_step:
        return
    row = session.get(GenerationRecord, (trainer.id, progress.generation))
    crash = trainer.crash or NewestCrash()
    beyond_at = now if crash.beyond_at is None else crash.beyond_at
    cost_s = 0.0 if crash.at is None else beyond_at - crash.at
    probation_s = min(max(cost_s, _LAG_S), _LONGEST_PROBATION_S)
    if (row is not None and row.source == "survivor") or now - beyond_at >= probation_s:
        trainer.crashes = 0
        if trainer.message == crash.what:  # It may have been warned of something else since.
            trainer.message = ""
    else:
        trainer.crash = dataclasses.replace(crash, beyond_at=beyond_at)


def resumed(trainer: Trainer, step: int, source: str) -> None:
    """Raise `crashed_step`, the step that training has to get beyond, to the step with which a generation began.

    Does nothing without counted crashes, or unless `source` is `survivor`: only nodes that went on know exactly
    how far training had come.
    """
    if trainer.crashes and source == "survivor":
        trainer.crashed_step = max(trainer.crashed_step, step)


def _last_words(trainer: Trainer, crash: TrainerCrash) -> str:
    if trainer.crashes == 1:
        return crash.what
    beyond = f" without getting beyond step {trainer.crashed_step:,} for long" if trainer.crashed_step else ""
    return f"{counted(trainer.crashes, 'attempt')} ended{beyond}, at last: {crash.what}"
