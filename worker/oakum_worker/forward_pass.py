"""From sample numbers to a loss: reading, drawing, the spec's precision and label smoothing, the task's code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from oakum_worker.compiling import compile_forward
from oakum_worker.errors import TaskError, TrainingWarning
from oakum_worker.label_smoothing import label_smoothing
from oakum_worker.randomness import mix, seed_host
from oakum_worker.reading import SampleReader
from oakum_worker.sample_randomness import SampleRandomness
from oakum_worker.sampler import Cursor
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task


class ForwardPass:
    """Computes losses of micro-batches. What is drawn for a sample depends on seed, step and sample alone."""

    def __init__(
        self, task: Task, spec: TrainerSpec, precision: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        """Within `precision()` models compute in the spec's precision."""
        self._task = task
        self._spec = spec
        self._precision = precision
        self._reader = SampleReader(task, spec.seed)
        self._randomness = SampleRandomness(next(task.model.parameters()).device, always=spec.compile)

    def compile(self, num_samples: int) -> None:
        """Compile the model for micro-batches of about so many samples; warns where that cannot be done."""
        complaint = compile_forward(self._task, num_samples, self._rehearsal)
        if complaint is not None:
            warnings.warn(complaint, TrainingWarning, stacklevel=2)

    @contextmanager
    def loss(self, cursor: Cursor, positions: range, indices: Sequence[int]) -> Iterator[torch.Tensor]:
        """The mean loss, shape (), of the samples `indices`, at `positions` of the global batch at the cursor.

        Its backward pass has to run within the context. Raises `TaskError` where it is not a loss, and whatever
        the task's code raises.
        """
        samples = self.read(cursor, positions, indices)
        with self.drawing(cursor.step, positions) as call:
            yield call(self._compute, samples)

    def read(self, cursor: Cursor, positions: range, indices: Sequence[int]) -> Any:
        """The samples `indices`, at `positions` of the global batch at the cursor."""
        return self._reader.read(cursor.epoch, cursor.consumed + positions.start, indices)

    def collate(self, step: int, samples: Any) -> Any:
        """A batch of the samples. What that draws is the same wherever in a forward pass it is asked for."""
        seed_host(mix(self._spec.seed, step))
        return self._task.collate(samples)

    def precision(self) -> AbstractContextManager[Any]:
        """Within it models compute in the spec's precision."""
        return self._precision()

    @contextmanager
    def drawing(self, step: int, positions: range) -> Iterator[Callable[..., Any]]:
        """Gives a function through which the forward pass is to be called."""
        key = mix(self._spec.seed, step)
        smoothing = label_smoothing(self._spec.label_smoothing)
        with smoothing, self._randomness.samples(key, positions.start, len(positions)) as call:
            yield call

    def checked(self, loss: Any) -> torch.Tensor:
        """What a task has returned for a loss. Raises `TaskError` where it is none."""
        if not isinstance(loss, torch.Tensor):
            raise TaskError(f"the loss is a {type(loss).__name__}: return the tensor, without `.item()`")
        if loss.ndim or not loss.requires_grad:
            raise TaskError(
                f"the loss has shape {tuple(loss.shape)} and requires_grad={loss.requires_grad}: return the "
                "mean over the batch's samples, a scalar that depends on the model's parameters"
            )
        return loss

    @contextmanager
    def _rehearsal(self, num_samples: int) -> Iterator[None]:
        """What a forward pass of so many samples runs in."""
        with self.drawing(0, range(num_samples)), self._precision():
            yield

    def _compute(self, samples: Any) -> torch.Tensor:
        with self._precision():
            return self.checked(self._task.loss(self._task.model, self._task.collate(samples)))
