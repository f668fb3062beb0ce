"""The states of trainers and nodes: one vocabulary for database, control loop, API and people."""

from __future__ import annotations

from enum import StrEnum


class TrainerState(StrEnum):
    """What a trainer is doing, or how it ended."""

    WAITING = "waiting"
    """It has no node, and starts or resumes as soon as a plan grants it some."""
    STARTING = "starting"
    """Its first fragments warm up."""
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    """An error ended it; the trainer's `message` says what to change."""
    DIVERGED = "diverged"
    """Its loss, gradients or weights stayed infinite or NaN. Its last checkpoint before that is kept."""
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to the trainer."""
        return self in _ENDS

    @property
    def exit_status(self) -> int:
        """Exit status of a command that waited for this end; 0 for `FINISHED` only."""
        return _EXIT_STATUSES.get(self, 1)


_EXIT_STATUSES = {
    TrainerState.FINISHED: 0,
    TrainerState.FAILED: 1,
    TrainerState.DIVERGED: 3,
    TrainerState.CANCELLED: 4,
}
"""Exit status 2 is left out: it means wrong usage."""
_ENDS = (TrainerState.FINISHED, TrainerState.FAILED, TrainerState.DIVERGED, TrainerState.CANCELLED)


LIVE_STATES = tuple(state for state in TrainerState if not state.ended)


class NodeState(StrEnum):
    """What a node is used for, from the main scheduler's point of view."""

    FOREGROUND = "foreground"
    HOLE = "hole"
    UNAVAILABLE = "unavailable"
    """Down, drained, reserved, or not usable for Oakum for another reason."""


class TimeUse(StrEnum):
    """What a trainer's time after its first start is spent on: exactly one of these at any moment."""

    TRAINING = "training"
    GROW = "grow"
    """A stall because nodes joined."""
    SHRINK = "shrink"
    """A stall because nodes left in order."""
    LOSS = "loss"
    """A stall because a node, a rank or a connection between them was lost."""
    COLD_START = "cold_start"
    """No replica of the trainer exists: from the grant of nodes to the first step on them."""
    WAITING = "waiting"
    """The trainer has no nodes."""


STALLS = (TimeUse.GROW, TimeUse.SHRINK, TimeUse.LOSS)
"""The uses of time that are stalls, one for each cause of a rescale."""
