"""Computes a loss from sample numbers: reads the samples and calls the task's code with reproducible random
numbers, in the spec's precision and with its label smoothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from oakum_worker.errors import TaskError, TrainingWarning
from oakum_worker.losses import NOT_ALWAYS_A_TOTAL, Loss, loss_of
from oakum_worker.randomness.batch_dims import BatchDims
from oakum_worker.randomness.counters import mix
from oakum_worker.randomness.sample_randomness import SampleRandomness
from oakum_worker.spec import TrainerSpec
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.compiling import compile_forward
from oakum_worker.step.label_smoothing import label_smoothing
from oakum_worker.step.read_ahead import Collated
from oakum_worker.step.reading import SampleReader
from oakum_worker.step.step_times import StepTimes
from oakum_worker.task import Task

_R = TypeVar("_R")


class ForwardPass:
    """Computes losses of micro-batches.

    The random numbers drawn for a sample depend only on the spec's seed, the step and the sample's position in the
    global batch.
    """

    def __init__(
        self,
        task: Task,
        spec: TrainerSpec,
        precision: Callable[[], AbstractContextManager[Any]],
        times: StepTimes | None = None,
        *,
        read_ahead: Callable[[Cursor, range, Sequence[int]], Any] | None = None,
        always_draws: bool = False,
        dims: BatchDims | None = None,
    ) -> None:
        """`precision()` returns a context in which models compute in the spec's precision; `times` counts the time
        that reading samples takes. `read_ahead` does in other processes what `read` promises; without it samples
        are read when they are needed. `always_draws`: numbers are each sample's own from the first pass to the
        last, for passes that draw without being called through `drawing`'s function, or that cannot be called
        twice. `dims` remembers where the samples lie in what is drawn."""
        self._times = times or StepTimes()
        self._task = task
        self._spec = spec
        self._precision = precision
        self._reader = SampleReader(task, spec.seed)
        self._read_ahead = read_ahead
        self._has_totals: bool | None = None
        device = next(task.model.parameters()).device
        self.randomness = SampleRandomness(device, always=spec.compile or always_draws, dims=dims)
        """Of the forward passes: whether they draw, and whose numbers they get."""
        self._batch_randomness = SampleRandomness(device)
        """Random numbers for `prepared`, which collates a batch outside the forward pass."""

    def compile(self, num_samples: int) -> None:
        """Compile the model, trying it on micro-batches of about `num_samples`; warns if compiling fails."""
        complaint = compile_forward(self._task, num_samples, self._rehearsal)
        if complaint is not None:
            warnings.warn(complaint, TrainingWarning, stacklevel=2)

    @contextmanager
    def loss(self, cursor: Cursor, positions: range, indices: Sequence[int]) -> Iterator[Loss]:
        """Context that yields the loss of the samples `indices`, which are at `positions` of the global batch at
        the cursor. The caller runs the loss's backward pass within the context.

        Raises `TaskError` if the task returns something other than a loss, and whatever the task's code raises.
        """
        samples = self.read(cursor, positions, indices)
        with self.drawing(cursor.step, positions) as call:
            yield call(self._compute, samples)

    def read(self, cursor: Cursor, positions: range, indices: Sequence[int], *, ahead: bool = True) -> Any:
        """The samples `indices`, at `positions` of the global batch at the cursor, as the task's `collate` takes
        them, or `Collated`. Without `ahead` no other process reads them."""
        with self._times.reading():
            if ahead and self._read_ahead is not None:
                return self._read_ahead(cursor, positions, indices)
            return self._reader.read(cursor.epoch, cursor.consumed + positions.start, indices)

    def prepared(
        self,
        cursor: Cursor,
        positions: range,
        indices: Sequence[int],
        prepare: Callable[[Any], _R],
        *,
        ahead: bool = True,
    ) -> tuple[Any, _R]:
        """The collated batch of the samples `indices`, and the result of `prepare(batch)`. `ahead` as for `read`.

        Both draw the same random numbers as they do within `loss`, whatever else this process computes, so every
        rank that prepares a micro-batch gets the same result.
        """
        samples = self.read(cursor, positions, indices, ahead=ahead)

        def make() -> tuple[Any, _R]:
            with self._precision(), self._times.reading():
                batch = self._collated(samples)
                return batch, prepare(batch)

        key = mix(self._spec.seed, cursor.step)
        with self._batch_randomness.samples(key, positions.start, len(positions)) as call:
            prepared: tuple[Any, _R] = call(make)
        return prepared

    def precision(self) -> AbstractContextManager[Any]:
        """Context in which models compute in the spec's precision."""
        return self._precision()

    @contextmanager
    def drawing(self, step: int, positions: range) -> Iterator[Callable[..., Any]]:
        """Context that yields a function through which the caller has to call the forward pass.

        A pass called so draws random numbers that belong to its samples, and smooths labels as the spec says.
        """
        key = mix(self._spec.seed, step)
        smoothing = label_smoothing(self._spec.label_smoothing)
        with smoothing, self.randomness.samples(key, positions.start, len(positions)) as call:
            yield call

    def checked(self, returned: Any) -> Loss:
        """The loss in what the task returned. Raises `TaskError` if it is no loss, or if the task returns a mean
        at one time and a total with its weight at another."""
        loss = loss_of(returned)
        if self._has_totals not in (None, loss.weight is not None):
            raise TaskError(NOT_ALWAYS_A_TOTAL)
        self._has_totals = loss.weight is not None
        return loss

    @contextmanager
    def _rehearsal(self, num_samples: int) -> Iterator[None]:
        """Context in which compiling runs a forward pass of `num_samples`: the same as in a step."""
        with self.drawing(0, range(num_samples)), self._precision():
            yield

    def _compute(self, samples: Any) -> Loss:
        with self._precision():
            with self._times.reading():
                batch = self._collated(samples)
            return self.checked(self._task.loss(self._task.model, batch))

    def _collated(self, samples: Any) -> Any:
        return samples.batch if isinstance(samples, Collated) else self._task.collate(samples)
