"""How many samples a step takes: the user's number, a schedule of them, or one that grows with the gradient noise.

A batch depends on what every rank knows alike, and changes at step boundaries alone, so ranks agree on it without
asking each other, and a trainer that was moved or restarted goes on with the same batches.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from oakum_worker.noise_scale import NoiseScale
from oakum_worker.parallel.data import GradientNorms
from oakum_worker.sampler import Cursor
from oakum_worker.spec import TrainerSpec

_STEPS_BETWEEN_DECISIONS = 100


class BatchSizes:
    """Batches that the spec fixes: `global_batch`, and from some epochs on those of `batch_schedule`.

    The learning rate stays what the task's scheduler makes it, which can plan with the schedule.
    """

    measures_noise = False
    """Whether steps have to measure their gradients' noise, which takes two parts of the batch at least."""
    carried: torch.Tensor | float | None = None
    """What the next step's `GradientReducer.begin` has to carry."""

    def __init__(self, spec: TrainerSpec, num_samples: int) -> None:
        """`num_samples` is the size of the data set."""
        self._num_samples = num_samples
        self._num_epochs = spec.epochs
        self._stages = [(0, spec.global_batch), *spec.batch_schedule]

    def at(self, epoch: int) -> int:
        """Samples of an epoch's next batch, where so many are left."""
        return next(samples for start, samples in reversed(self._stages) if start <= epoch)

    def rate_factor(self, num_samples: int) -> float:
        """What the learning rate of a step of `num_samples` is multiplied with."""
        return 1.0

    def schedule_steps(self, cursor: Cursor, num_samples: int) -> int:
        """How often the task's scheduler steps after a step of `num_samples` that begins at the cursor."""
        return 1

    def observe(self, norms: GradientNorms | None, cursor: Cursor, num_samples: int, loss_scale: float) -> None:
        """Take in a finished step of `num_samples`, after which training stands at the cursor."""

    def total_steps(self, cursor: Cursor | None = None) -> int:
        """Optimizer steps of all epochs: those finished at the cursor and, should the batch stay, the rest."""
        at = cursor or Cursor()
        if at.epoch >= self._num_epochs:
            return at.step
        steps = at.step + _ceil(self._num_samples - at.consumed, self.at(at.epoch))
        starts = sorted({min(max(start, at.epoch + 1), self._num_epochs) for start, _ in self._stages})
        for start, end in itertools.pairwise([*starts, self._num_epochs]):
            steps += (end - start) * _ceil(self._num_samples, self.at(start))
        return steps

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers; empty where the spec alone decides."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state. Raises `KeyError` or `TypeError` where it is not one."""


class AdaptiveBatchSizes(BatchSizes):
    """Batches that double while the gradient is so noisy that the samples are still well spent.

    Every 100 steps the batch doubles, up to the spec's largest, if the doubled one is not above the critical batch
    (McCandlish et al., arXiv:1812.06162, section 2.3): up to there a sample is worth at least half of what it is
    worth in the smallest batch, so more nodes pay. It never shrinks: noise rises as the loss falls (there, too).

    The learning rate follows the gain of the step's batch over the first one: times the gain for SGD (AdaScale,
    arXiv:2007.05105, algorithm 1), times its square root for optimizers of Adam's kind, which divide by the
    gradient's size (Malladi et al., arXiv:2205.10287; so does Pollux, arXiv:2008.12260).

    A step moves the task's scheduler on by as many steps as the first batch would have taken for its samples, so a
    schedule ends with the data, however the batch grew.
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
        """What the next step's `GradientReducer.begin` has to carry."""
        return self._noise.carried

    def at(self, epoch: int) -> int:
        """Samples of the next batch, where so many are left."""
        return self._batch

    def rate_factor(self, num_samples: int) -> float:
        """The gain, or its root; 1 for an epoch's last batch where that is smaller than the first one."""
        return self._noise.gain(num_samples) ** self._exponent

    def schedule_steps(self, cursor: Cursor, num_samples: int) -> int:
        """Batches of the first size that would have ended meanwhile; at least one."""
        return self._first_batches(cursor.after(num_samples, self._num_samples)) - self._first_batches(cursor)

    def observe(self, norms: GradientNorms | None, cursor: Cursor, num_samples: int, loss_scale: float) -> None:
        """Take in a finished step of `num_samples`, after which training stands at the cursor."""
        assert norms is not None
        self._noise.observe(norms, num_samples, loss_scale)
        if cursor.step % _STEPS_BETWEEN_DECISIONS == 0:
            doubled = min(2 * self._batch, self._largest)
            if doubled <= self._noise.critical_batch:
                self._batch = doubled

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"batch": self._batch, "noise": self._noise.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state. Raises `KeyError` or `TypeError` where it is not one."""
        self._noise.load_state_dict(state["noise"])
        self._batch = state["batch"]

    def _first_batches(self, cursor: Cursor) -> int:
        return cursor.epoch * _ceil(self._num_samples, self._first) + cursor.consumed // self._first


def batch_sizes(spec: TrainerSpec, num_samples: int, optimizer: Optimizer) -> BatchSizes:
    """The batches that the spec asks for, of a data set of `num_samples`."""
    if spec.adaptive_batch is not None:
        return AdaptiveBatchSizes(spec, num_samples, optimizer)
    return BatchSizes(spec, num_samples)


def _ceil(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
