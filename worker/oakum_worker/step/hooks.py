"""Calls a task's hooks at the boundaries of steps and epochs."""

from __future__ import annotations

from oakum_worker.state.cursor import Cursor
from oakum_worker.task import Progress, Task


class Hooks:
    """Calls the hooks of one rank's task.

    The hooks at the start of an epoch or a step set what holds from there on, so they are called again on a rank
    that joins or goes back to an earlier step. The hook at a step's end may change the state. A step that is
    undone takes that change with it, and its hook is called again when the step is repeated.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._told_epoch: int | None = None

    def forget(self) -> None:
        """Call `on_epoch_start` again before the next step, although the epoch is the same: the model or its state
        has been replaced."""
        self._told_epoch = None

    def start_step(self, cursor: Cursor, rank: int) -> None:
        """Call `on_epoch_start`, if the epoch has not been announced on this rank, and `on_step_start`, before the
        step at the cursor. Raises what the task's code raises."""
        progress = Progress(cursor.step, cursor.epoch, None, rank)
        if self._task.on_epoch_start is not None and self._told_epoch != cursor.epoch:
            self._task.on_epoch_start(self._task.model, progress)
        self._told_epoch = cursor.epoch
        if self._task.on_step_start is not None:
            self._task.on_step_start(self._task.model, progress)

    def end_step(self, cursor: Cursor, loss: float, rank: int) -> None:
        """Call `on_step_end` after the step that began at the cursor and had this loss. Raises what the task's
        code raises."""
        if self._task.on_step_end is not None:
            self._task.on_step_end(self._task.model, Progress(cursor.step + 1, cursor.epoch, loss, rank))
