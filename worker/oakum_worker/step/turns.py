"""The order of a rank's steps, apart from who takes them: the rank's own loop, or a script's."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

from oakum_worker.step.training_loop import StepResult, TrainingLoop


class StepOrder(NamedTuple):
    """A step to take: what this rank tells the others with it."""

    signal: Callable[[], int] = int
    """Returns the number that `TrainingLoop.step` sums over the ranks."""
    checkpoint: bool = False
    """Whether this rank asks for a durable checkpoint at the step's end."""


Turns = Generator[StepOrder, StepResult | None, bool]
"""Yields the steps to take and is sent their results; None stands for the end of training before its last epoch.
Is thrown the error of a step that was not taken. Returns whether training is finished; False: the rank has
left."""


class Course:
    """The steps of a `Turns` generator, as the one who takes them sees it."""

    def __init__(self, turns: Turns) -> None:
        """Goes on to the first step; raises what the generator raises, as all methods do."""
        self._turns = turns
        self.is_finished = False
        """Whether training has come to its end; meaningful where `order` is None."""
        self.order: StepOrder | None = None
        """The step to take now; None when there are no more."""
        self._go(lambda: next(turns))

    def taken(self, result: StepResult) -> None:
        """Tell the generator the result of the step that was just taken; `order` is then the next step. Call it
        once everything else that follows from the step is done."""
        self._go(lambda: self._turns.send(result))

    def failed(self, error: Exception) -> None:
        """Tell the generator that the step was not taken. Raises `error` again unless it only says that a rank is
        lost; then `order` is the next step."""
        self._go(lambda: self._turns.throw(error))

    def stop(self) -> None:
        """End training here, on every rank."""
        self._go(lambda: self._turns.send(None))

    def _go(self, advance: Callable[[], StepOrder]) -> None:
        try:
            self.order = advance()
        except StopIteration as end:
            self.order, self.is_finished = None, bool(end.value)


def turns_alone(loop: TrainingLoop) -> Turns:
    """The steps of a loop without other ranks, up to its last epoch."""
    while not loop.finished:
        if (yield StepOrder()) is None:
            break
    loop.conclude()
    return True
