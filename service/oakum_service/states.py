"""The states that trainers and nodes are in: one vocabulary for database, control loop, API and people."""

from __future__ import annotations

from enum import StrEnum


class TrainerState(StrEnum):
    """Where a trainer stands."""

    WAITING = "waiting"
    """It has no node; it starts or resumes as soon as a plan grants one."""
    STARTING = "starting"
    """Its first fragments warm up."""
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    """`message` says what to change."""
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to the trainer."""
        return self in (TrainerState.FINISHED, TrainerState.FAILED, TrainerState.CANCELLED)


LIVE_STATES = tuple(state for state in TrainerState if not state.ended)


class NodeState(StrEnum):
    """What a node is doing, from the main scheduler's side."""

    FOREGROUND = "foreground"
    HOLE = "hole"
    UNAVAILABLE = "unavailable"
    """Down, drained, reserved, or otherwise not ours to use."""


class TimeUse(StrEnum):
    """What the time of a trainer that has started goes into: one thing at any moment."""

    TRAINING = "training"
    GROW = "grow"
    """A stall: nodes joined."""
    SHRINK = "shrink"
    """A stall: nodes left in order."""
    LOSS = "loss"
    """A stall: a node or a rank was lost, or a connection between them."""
    COLD_START = "cold_start"
    """From being granted nodes, while no replica is left, to the first step on them."""
    WAITING = "waiting"
    """Without nodes."""


STALLS = (TimeUse.GROW, TimeUse.SHRINK, TimeUse.LOSS)
"""What a rescale costs, by its cause."""
