"""Counts how long each trainer has been without nodes, for the starvation guard and for objectives that use it."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.control.forecast import holders
from oakum_service.db import event_log
from oakum_service.db.models.trainers import Trainer
from oakum_service.logs.fields import about
from oakum_service.states import LIVE_STATES
from oakum_solver.guard import StarvationGuard, Wait
from oakum_solver.wording import duration

_EVERY_S = 5.0
"""Seconds between two counts; what the later one finds holds for all the time between them."""


class WaitingTimes:
    """Adds up how long each trainer has been without nodes, and with them, in its database row. Time without a
    controller does not count."""

    def __init__(self, guard: StarvationGuard) -> None:
        self._guard = guard
        self._counted_to: float | None = None

    def begin(self) -> None:
        """Forget when time was counted last, so that the next turn only begins to count: the time until then is
        not added to any trainer's waiting."""
        self._counted_to = None

    def turn(self, session: Session, now: float) -> None:
        """Count the time since the last count for every live trainer, with or without nodes. Does nothing if that
        was less than `_EVERY_S` ago."""
        elapsed_s = 0.0 if self._counted_to is None else now - self._counted_to
        if self._counted_to is not None and 0 <= elapsed_s < _EVERY_S:
            return
        self._counted_to = now
        with_nodes = set(holders(session).values())
        for trainer in session.execute(select(Trainer).where(Trainer.state.in_(LIVE_STATES))).scalars():
            # Never negative: the clock may have been set back.
            self._count(session, trainer, now, max(0.0, elapsed_s), has_nodes=trainer.id in with_nodes)

    def _count(self, session: Session, trainer: Trainer, now: float, elapsed_s: float, *, has_nodes: bool) -> None:
        if has_nodes:
            trainer.waiting_since = None
        elif trainer.waiting_since is None:
            trainer.waiting_since = now
        if trainer.pause is not None:
            return  # its user wants it to wait
        before = wait_of(trainer)
        wait = self._guard.after(before, elapsed_s, has_nodes)
        trainer.guard_waited_s, trainer.guard_served_s = wait.waited_s, wait.served_s
        if self._guard.guarantees(wait) and not self._guard.guarantees(before):
            text = (
                f"has waited {duration(wait.waited_s)} for nodes: from now on it is granted its minimum where "
                f"that fits, until it has had nodes for {duration(self._guard.quantum_s)}"
            )
            with about(trainer=trainer.id):
                event_log.record(session, "trainer.guaranteed", trainer.name, text)


def wait_of(trainer: Trainer) -> Wait:
    """The trainer's waiting and served time, by which the starvation guard decides."""
    return Wait(trainer.guard_waited_s, trainer.guard_served_s)
