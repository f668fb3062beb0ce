"""A trainer's state as it lives in a rank: steps change it, keepers copy it, replace it and share it.

The state is that of a step boundary. While a step is open, another thread may have the state of the last finished
step: weights change only when the step is taken, and what the task's code changes before that was recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from oakum_worker.errors import CheckpointError, TaskError
from oakum_worker.parallel.state_broadcast import broadcast_state
from oakum_worker.state import trainer_state
from oakum_worker.state.boundary import BoundarySnapshot
from oakum_worker.state.cursor import Cursor
from oakum_worker.state.trainer_state import State
from oakum_worker.step.divergence import DivergenceWatch
from oakum_worker.step.hooks import Hooks
from oakum_worker.step.metric_watch import MetricWatch
from oakum_worker.step.ranks import Ranks
from oakum_worker.step.requirements import Requirements
from oakum_worker.task import Stateful, Task


class LiveState:
    """The state of one rank's trainer, and the phases of the steps that change it."""

    def __init__(
        self,
        task: Task,
        parts: Mapping[str, Stateful],
        ranks: Ranks,
        hooks: Hooks,
        requirements: Requirements,
        *,
        epochs: int,
        divergence: DivergenceWatch | None = None,
        metric: MetricWatch | None = None,
    ) -> None:
        """`parts` are the trainer's own, beside the task's. The others are told where the state is replaced."""
        self.cursor = Cursor()
        """Where training stands."""
        self.boundary = threading.Lock()
        """Held while the state changes from one step's values to the next step's."""
        self.is_evaluating = False
        """Whether the task's `evaluate` runs; meanwhile the model may hold other weights."""
        self._task, self._ranks, self._epochs = task, ranks, epochs
        self._hooks, self._requirements = hooks, requirements
        self._divergence, self._metric = divergence, metric
        self._own_parts = dict(parts)
        if metric is not None:
            self._own_parts["evaluations"] = metric
        self._parts = self._own_parts | {f"task.{name}": part for name, part in task.extra_state.items()}
        self._recorded = BoundarySnapshot(task)
        self._in_step = False
        self._is_unsettled = False
        """Whether a step was taken by hand, after which the caller still changes the state."""

    @property
    def step_count(self) -> int:
        """Finished optimizer steps since the trainer began."""
        return self.cursor.step

    def open_step(self) -> None:
        """Record what the task's code may change before the step is taken."""
        with self.boundary:
            self._recorded.take()
            self._in_step, self._is_unsettled = True, False

    def put_back(self) -> None:
        """Put back what was recorded when the open step began, without ending it."""
        with self.boundary:
            self._recorded.restore()

    def abandon_step(self) -> None:
        """End the open step without taking it: put back what was recorded when it began."""
        with self.boundary:
            self._recorded.restore()
            self._in_step = self._is_unsettled = False

    @contextmanager
    def taking_step(self, *, settled: bool) -> Iterator[None]:
        """Context in which the open step's gradients, which are complete, change the state. Without `settled` it
        is in between until `settle` is called, and other threads cannot have it."""
        with self.boundary:
            self._is_unsettled = not settled
            self._recorded.learn()
            yield
            self._in_step = False

    def settle(self) -> None:
        """The caller has changed all that it changes after a step by hand: the state may be copied again."""
        with self.boundary:
            self._is_unsettled = False

    def state_dict(self) -> State:
        """The trainer's entire state. Its tensors are the live ones: copy what has to outlast the next step."""
        return trainer_state.capture(self._task, self.cursor, self._parts)

    @contextmanager
    def held_at_boundary(self) -> Iterator[State]:
        """Context that gives another thread than the training thread the state of the last finished step.

        The thread may enter it at any moment of a step, also in the middle of a forward pass: weights change only
        at the step's end, which waits until the context ends. Values that the task's code changes earlier are
        taken from the copies made at the step's beginning. Raises `TaskError` for a value that was not copied; it
        can be read only at a step boundary.
        """
        with self.boundary:
            if self._is_unsettled:
                raise TaskError("the script's loop has taken a step, and may still change what follows from it")
            if not self._in_step:
                yield self.state_dict()
                return
            held = trainer_state.capture(self._task, self.cursor, self._own_parts)
            held["model"] |= {n: copy for n, copy in self._recorded.model().items() if n in held["model"]}
            recorded = {f"task.{name}": part for name, part in self._recorded.parts().items()}
            yield held | trainer_state.states_of_parts(held["parts"] | recorded)

    def load_state_dict(self, loaded: State) -> None:
        """Continue from a state of `state_dict`. Raises `CheckpointError` if it does not fit the task."""
        with self.boundary:
            self.cursor = trainer_state.restore(self._task, loaded, self._parts)
            self._hooks.forget()

    def adopt(self, loaded: State) -> None:
        """Begin from another trainer's state, with the task's own hyper-parameters.

        Raises `CheckpointError` if the state does not fit the task, its data set or its number of epochs.
        """
        with self.boundary:
            self.cursor = trainer_state.adopt(self._task, loaded, self._parts)
            if self._metric is not None:
                self._metric.forget()  # the best of another trainer is not among this one's checkpoints
            self._hooks.forget()
        self._refuse_no_more_training()

    def _refuse_no_more_training(self) -> None:
        if self.cursor.epoch >= self._epochs:
            raise CheckpointError(
                f"the state has finished {self.cursor.epoch} epochs, and the spec has {self._epochs}: give more "
                "epochs"
            )
        if self.cursor.consumed >= len(self._task.dataset):
            raise CheckpointError(
                f"the state has taken {self.cursor.consumed} samples of its epoch, and the data set has "
                f"{len(self._task.dataset)}: begin a new trainer for another data set"
            )

    def rest(self) -> State:
        """The state except the model's and the optimizer's: scheduler, cursor and further parts. Where the state
        is split, each rank has this rest whole."""
        return trainer_state.capture_rest(self._task, self.cursor, self._parts)

    def go_on_from(self, rest: Mapping[str, Any]) -> None:
        """Continue from a state of `rest` after the task's model was replaced.

        The new model and the optimizer already have their states.
        """
        with self.boundary:
            self._recorded = BoundarySnapshot(self._task)
            self._requirements.follow(self._task.model)
            if self._divergence is not None:
                self._divergence.forget()  # the old model's parameters must not be kept alive
            self._hooks.forget()
            self.cursor = trainer_state.restore_rest(self._task, rest, self._parts)

    def share(self, source: int) -> None:
        """Collective: bring every rank of the group to the state of rank `source`, bit for bit.

        Raises `GroupError` if a rank is gone; this rank's state is then unchanged.
        """
        ranks = self._ranks
        if ranks.group is None:
            return
        own = self.state_dict() if ranks.rank == source else None
        shared = broadcast_state(own, ranks.group, ranks.rank, source, ranks.device)
        if ranks.rank != source:
            self.load_state_dict(shared)
