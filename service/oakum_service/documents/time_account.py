"""Time accounts: what each trainer's time since its first start was spent on.

An account stores the present use and when it began, so at any moment, also after a restart of the service, the
uses add up to the time since the first start. Only after a rescale does rank 0 tell, by its own clock, what the
rescale cost. Until then that time counts as training; then it is moved to the cause of the stall.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from oakum_service.states import TimeUse


@dataclass(frozen=True)
class TimeAccount:
    """One trainer's account. Times are Unix seconds."""

    began_at: float
    """The trainer's first start, or the moment at which a service with time accounts first saw the trainer."""
    since: float
    """When the present use began, or when the trainer ended."""
    use: TimeUse | None = TimeUse.COLD_START
    """What the time is spent on now; None once the trainer has ended."""
    seconds: Mapping[TimeUse, float] = field(default_factory=dict)
    """Seconds spent on each use before `since`. Time is moved between uses afterwards, so the value for
    training alone may be negative."""
    stepped_at: float = 0.0
    """When a finished step was last reported."""
    generation: int = 0
    """Newest generation in which a finished step was reported."""
    reached: int = 0
    """Number of finished steps that were known before the first report of `generation`."""
    redone_steps: int = 0
    """Number of finished steps that had to be repeated because the state went back to an earlier step."""
    redone_s: float = 0.0
    """Seconds of training that the repeated steps had taken."""

    def spent_s(self, now: float) -> dict[TimeUse, float]:
        """Seconds spent on each use. They add up to the time from `began_at` until now or until the trainer's
        end."""
        spent = {use: self.seconds.get(use, 0.0) for use in TimeUse}
        if self.use is not None:
            spent[self.use] += max(0.0, now - self.since)
        return spent

    def turn_to(self, use: TimeUse | None, now: float) -> Self:
        """The account with `use` as the present use from now on."""
        if use is self.use or self.use is None:
            return self
        return dataclasses.replace(self, use=use, since=max(now, self.since), seconds=self.spent_s(now))

    def reopened(self) -> Self:
        """The account of a trainer that goes on after its end: the time since then counts as waiting."""
        return dataclasses.replace(self, use=TimeUse.WAITING) if self.use is None else self

    def stalled(self, cause: TimeUse, seconds: float, now: float) -> Self:
        """The account after moving `seconds` from training to `cause`, at most the training time that there is."""
        training_s = self.spent_s(now)[TimeUse.TRAINING]
        moved_s = min(max(0.0, seconds), max(0.0, training_s))
        spent = {
            **self.seconds,
            cause: self.seconds.get(cause, 0.0) + moved_s,
            TimeUse.TRAINING: self.seconds.get(TimeUse.TRAINING, 0.0) - moved_s,
        }
        return dataclasses.replace(self, seconds=spent)

    def silent_s(self, now: float) -> float:
        """Seconds since the last reported step, or since the present use began if that is later."""
        return max(0.0, now - max(self.stepped_at, self.since))

    def stepped(self, generation: int, reached: int, now: float) -> Self:
        """The account after a step of this generation was reported; `reached`: steps known to be finished
        before this report."""
        changes: dict[str, Any] = {"stepped_at": now}
        if generation > self.generation:
            changes |= {"generation": generation, "reached": reached}
        return dataclasses.replace(self, **changes)

    def went_back_to(self, step: int, generation: int, step_s: float, now: float) -> Self:
        """The account after a generation began with the state of `step` finished steps: steps that training had
        gone beyond that count as steps to be repeated, of about `step_s` seconds each. The account itself if
        nothing has to be repeated, or `generation` is not the newest one."""
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
