"""Accounts: where the time of each trainer has gone since its first start.

An account knows what the trainer does now and since when, so it adds up to the time since the first start at any
moment, whoever asks, and over restarts of the service. What a rescale has cost is known only after it, by rank 0's
own clock; until then it counts as training, and is then moved to the stall's cause.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from oakum_service.db.models import Fragment
from oakum_service.states import TimeUse


@dataclass(frozen=True)
class Account:
    """One trainer's. Times are Unix seconds."""

    began_at: float
    """Its first start, or when a service that keeps accounts first saw it."""
    since: float
    """When the present use began; its end once it has ended."""
    use: TimeUse | None = TimeUse.COLD_START
    """None once it has ended."""
    seconds: Mapping[TimeUse, float] = field(default_factory=dict)
    """Before `since`, but for what was moved between uses afterwards: training alone may be below 0."""
    stepped_at: float = 0.0
    """When it was last heard of a finished step."""
    generation: int = 0
    """Newest generation that was heard of a finished step in."""
    reached: int = 0
    """Steps that were known to be finished before that generation."""
    redone_steps: int = 0
    """Finished steps that had to be repeated, as the state went back to one before them."""
    redone_s: float = 0.0
    """Seconds of training that these had taken."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self | None:
        """The account that a trainer's row keeps; None where it has none yet."""
        if not document:
            return None
        use, seconds = document["use"], document["seconds"]
        return cls(
            **{
                **document,
                "use": None if use is None else TimeUse(use),
                "seconds": {TimeUse(use): spent_s for use, spent_s in seconds.items()},
            }
        )

    def document(self) -> dict[str, Any]:
        """What a trainer's row keeps."""
        return dataclasses.asdict(self)

    def spent_s(self, now: float) -> dict[TimeUse, float]:
        """Seconds in each use; they add up to the time from `began_at` until now, or until it ended."""
        spent = {use: self.seconds.get(use, 0.0) for use in TimeUse}
        if self.use is not None:
            spent[self.use] += max(0.0, now - self.since)
        return spent

    def turn_to(self, use: TimeUse | None, now: float) -> Self:
        """From now on the time goes into `use`."""
        if use is self.use or self.use is None:
            return self
        return dataclasses.replace(self, use=use, since=max(now, self.since), seconds=self.spent_s(now))

    def stalled(self, cause: TimeUse, seconds: float, now: float) -> Self:
        """Of the time that counted as training, this much was a stall."""
        training_s = self.spent_s(now)[TimeUse.TRAINING]
        moved_s = min(max(0.0, seconds), max(0.0, training_s))
        spent = {
            **self.seconds,
            cause: self.seconds.get(cause, 0.0) + moved_s,
            TimeUse.TRAINING: self.seconds.get(TimeUse.TRAINING, 0.0) - moved_s,
        }
        return dataclasses.replace(self, seconds=spent)

    def silent_s(self, now: float) -> float:
        """Seconds since it was last heard of a step, of those since the present use began."""
        return max(0.0, now - max(self.stepped_at, self.since))

    def stepped(self, generation: int, reached: int, now: float) -> Self:
        """A step of this generation has been finished; `reached` steps were known to be before this word."""
        changes: dict[str, Any] = {"stepped_at": now}
        if generation > self.generation:
            changes |= {"generation": generation, "reached": reached}
        return dataclasses.replace(self, **changes)

    def went_back_to(self, step: int, generation: int, step_s: float, now: float) -> Self:
        """The generation has begun with the state of `step` finished steps; one takes about `step_s` seconds."""
        steps = self.reached - step
        if generation != self.generation or steps <= 0:
            return self
        training_s = max(0.0, self.spent_s(now)[TimeUse.TRAINING] - self.redone_s)
        return dataclasses.replace(
            self,
            reached=step,
            redone_steps=self.redone_steps + steps,
            redone_s=self.redone_s + min(steps * step_s, training_s),
        )


def warm_up_node_s(session: Session, trainers: Collection[str], now: float) -> dict[str, float]:
    """Trainer id -> node-seconds from its fragments' launches to their first generations, or to their ends."""
    until = func.coalesce(Fragment.training_at, Fragment.ended_at, now)
    rows = session.execute(
        select(Fragment.trainer_id, func.sum(until - Fragment.launched_at))
        .where(Fragment.trainer_id.in_(trainers))
        .group_by(Fragment.trainer_id)
    )
    return {trainer: max(0.0, seconds) for trainer, seconds in rows}
