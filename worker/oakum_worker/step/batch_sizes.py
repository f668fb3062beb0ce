"""How many samples a step takes: the user's number, a schedule of them, or one that grows with the gradient noise.

The size of a batch follows from values that are equal on every rank, and changes only at step boundaries. So ranks
agree on the size without communicating, and a trainer that was moved or restarted continues with the same batches.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from oakum_worker.parallel.step_engine import GradientNorms
from oakum_worker.spec import TrainerSpec
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.gradient_noise import NoiseScale

_STEPS_BETWEEN_DECISIONS = 100


class BatchSizes:
    """How many samples each step takes, as the spec fixes it: `global_batch`, then the sizes of `batch_schedule`
    from their epochs on.

    The learning rate is left to the task's scheduler: its author knows the batch schedule.
    """

    measures_noise = False
    """Whether each step has to measure its gradient's noise, for which the batch is computed in at least two
    parts."""
    carried: torch.Tensor | float | None = None
    """The number that `GradientReducer.begin` has to send along in the next step; None if there is none."""

    def __init__(self, spec: TrainerSpec, num_samples: int) -> None:
        """`num_samples` is the size of the data set."""
        self._num_samples = num_samples
        self._num_epochs = spec.epochs
        self._stages = [(0, spec.global_batch), *spec.batch_schedule]

    def at(self, epoch: int) -> int:
        """Samples of the next batch in `epoch`; the caller cuts an epoch's last batch short."""
        return next(samples for start, samples in reversed(self._stages) if start <= epoch)

    def rate_factor(self, num_samples: int) -> float:
        """The factor on the learning rate of a step of `num_samples`: 1 where the spec fixes the sizes."""
        return 1.0

    def schedule_steps(self, cursor: Cursor, num_samples: int) -> int:
        """Number of steps that the task's scheduler takes after a training step of `num_samples` that begins at
        the cursor: 1 where the spec fixes the sizes."""
        return 1

    def observe(self, norms: GradientNorms | None, cursor: Cursor, num_samples: int, loss_scale: float) -> None:
        """Take note of a finished step of `num_samples`; `cursor` is the position in the data after that step.
        Does nothing where the spec fixes the sizes."""

    def total_steps(self, cursor: Cursor | None = None) -> int:
        """Optimizer steps of all epochs: the steps finished at the cursor, and the remaining ones if an adaptive
        batch keeps its present size."""
        at = cursor or Cursor()
        if at.epoch >= self._num_epochs:
            return at.step
        steps = at.step + _ceil(self._num_samples - at.consumed, self.at(at.epoch))
        starts = sorted({min(max(start, at.epoch + 1), self._num_epochs) for start, _ in self._stages})
        for start, end in itertools.pairwise([*starts, self._num_epochs]):
            steps += (end - start) * _ceil(self._num_samples, self.at(start))
        return steps

    def state_dict(self) -> dict[str, Any]:
        """The state as plain numbers; empty if the spec alone fixes the sizes."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; nothing where the spec fixes the sizes."""


class AdaptiveBatchSizes(BatchSizes):
    """Batch sizes that double while the gradient's noise makes a larger batch worth its samples.

    Every 100 steps the batch doubles, up to the spec's largest, if the doubled batch is not above the critical
    batch (McCandlish et al., arXiv:1812.06162, section 2.3). Up to the critical batch a sample is worth at least
    half of what it is worth in the smallest batch, so more nodes pay. The batch never shrinks, because the noise
    rises as the loss falls (ibid.).

    The learning rate is multiplied by the gain of the step's batch over the first batch for SGD (AdaScale,
    arXiv:2007.05105, algorithm 1), and by the gain's square root for other optimizers, which are taken to divide
    by the gradient's size as Adam does (Malladi et al., arXiv:2205.10287; Pollux, arXiv:2008.12260, does the
    same).

    The task's scheduler takes as many steps per training step as batches of the first size would have needed for
    the step's samples, so a schedule ends with the data however the batch grew.
    """

    measures_noise = True

    def __init__(self, spec: TrainerSpec, num_samples: int, optimizer: Optimizer) -> None:
        assert spec.adaptive_batch is not None
        super().__init__(spec, num_samples)
        self._first = self._batch = spec.global_batch
        self._largest = spec.adaptive_batch.largest
        self._noise = NoiseScale(spec.global_batch)
        scaling = spec.adaptive_batch.lr_scaling
        if scaling == "auto":
            scaling = "adascale" if isinstance(optimizer, SGD) else "sqrt"
        self._exponent = {"adascale": 1.0, "sqrt": 0.5, "none": 0.0}[scaling]

    @property
    def carried(self) -> torch.Tensor | float | None:  # type: ignore[override]
        """The number that `GradientReducer.begin` has to send along in the next step; None if there is none."""
        return self._noise.carried

    def at(self, epoch: int) -> int:
        """Samples of the next batch; the caller cuts an epoch's last batch short."""
        return self._batch

    def rate_factor(self, num_samples: int) -> float:
        """The factor on the learning rate of a step of `num_samples`: the gain of such a batch over the first
        batch (`NoiseScale.gain`), to the power 1, 1/2 or 0 that `lr_scaling` sets. 1 for a batch that is
        smaller than the first one, as an epoch's last batch may be."""
        return self._noise.gain(num_samples) ** self._exponent

    def schedule_steps(self, cursor: Cursor, num_samples: int) -> int:
        """Number of batches of the first size that would have ended within this training step."""
        return self._first_batches(cursor.after(num_samples, self._num_samples)) - self._first_batches(cursor)

    def observe(self, norms: GradientNorms | None, cursor: Cursor, num_samples: int, loss_scale: float) -> None:
        """Add a finished step of `num_samples` to the noise estimates, and every 100 steps double the batch, up to
        the largest one allowed, if the estimated critical batch is at least that large. `norms` must not be None.
        `cursor` is the position in the data after that step."""
        assert norms is not None
        self._noise.observe(norms, num_samples, loss_scale)
        if cursor.step % _STEPS_BETWEEN_DECISIONS == 0:
            doubled = min(2 * self._batch, self._largest)
            if doubled <= self._noise.critical_batch:
                self._batch = doubled

    def state_dict(self) -> dict[str, Any]:
        """The batch and the noise estimates, as plain numbers."""
        return {"batch": self._batch, "noise": self._noise.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`. Raises `KeyError` or `TypeError` if `state` has another form."""
        self._noise.load_state_dict(state["noise"])
        self._batch = state["batch"]

    def _first_batches(self, cursor: Cursor) -> int:
        return cursor.epoch * _ceil(self._num_samples, self._first) + cursor.consumed // self._first


def batch_sizes(spec: TrainerSpec, num_samples: int, optimizer: Optimizer) -> BatchSizes:
    """The `BatchSizes` that the spec asks for, fixed or adaptive, with a data set of `num_samples`."""
    if spec.adaptive_batch is not None:
        return AdaptiveBatchSizes(spec, num_samples, optimizer)
    return BatchSizes(spec, num_samples)


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
