"""Checks whether the loss of a batch equals the mean of its parts' losses, as ranks that share a batch assume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from oakum_worker.randomness import keyed
from oakum_worker.rehearsal.no_trace import Watch
from oakum_worker.rehearsal.passes import LossComputation, Passes
from oakum_worker.task import Task

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 3e-5}
_COARSE, _ACCELERATOR = 3e-2, 1e-3
"""Relative tolerances in half precision, and on accelerators, which may round convolutions and products to
TF32."""
_HOW = (
    "Return the mean over the batch's samples. A mean over tokens, or one weighted by class, is not that: return "
    "(total, weight), the sum and what it is to be divided by. A loss that compares samples with each other, as "
    "contrastive ones do, has to see all ranks' samples: oakum_worker.gathering.gather_batch has them. What is a "
    "ratio over the batch, as Dice is, has to be computed for each sample and averaged, or of the gathered batch; "
    "and padding must not change a sample's loss"
)


class Comparison:
    """Computes the loss of a few samples at once and of two parts of them, and tells whether the two results
    agree."""

    def __init__(self, task: Task, passes: Passes, watch: Watch, samples: Sequence[Any]) -> None:
        """Compute the loss of all samples, and of two parts of them. Raises what the loss of all the samples
        raises; errors of the parts are kept for `complaint`."""
        self._task, self._passes, self._watch, self._samples = task, passes, watch, samples
        self._cut = max(len(samples) * 3 // 8, 1)
        """Samples of the first part. The parts are unequal, since equal weights would hide some mistakes."""
        self._whole = self._compute(0, len(samples))
        self.buffers_of_data: list[str] = []
        """Names of buffers that the two parts change to different values."""
        self.buffers_of_passes: list[str] = []
        """Names of buffers that both parts change, to equal values."""
        self._parts: list[LossComputation] = []
        self._raised: Exception | None = None
        try:
            self._compute_parts()
        except Exception as error:
            self._raised = error

    def complaint(self) -> str | None:
        """A text that says how the whole's and the parts' losses disagree, with numbers and advice; None if they
        agree or cannot be compared."""
        whole, num = self._whole, len(self._samples)
        if self._raised is not None:
            return describe_raising_part(num, [self._cut, num - self._cut][len(self._parts)], self._raised)
        if not _is_finite(whole, *self._parts) or self._is_beyond_comparison():
            return None
        together = _mean(self._parts)
        if not self._is_off(whole.loss - together, [whole, *self._parts]):
            return None
        singles = self._singles()
        if not self._is_off(whole.loss - together, [whole, *self._parts, *singles]):
            return None
        return self._describe(together)

    def _compute(self, start: int, stop: int) -> LossComputation:
        computation = self._passes.compute(self._samples[start:stop], start)
        self._watch.restore_state()
        return computation

    def _compute_parts(self) -> None:
        before, after_parts = self._buffers(), []
        for start, stop in ((0, self._cut), (self._cut, len(self._samples))):
            self._parts.append(self._passes.compute(self._samples[start:stop], start))
            after_parts.append(self._buffers())
            self._watch.restore_state()
        for name, value in before.items():
            one, other = after_parts[0][name], after_parts[1][name]
            if not _same(one, other):
                self.buffers_of_data.append(name)
            elif not _same(one, value):
                self.buffers_of_passes.append(name)

    def _singles(self) -> list[LossComputation]:
        try:
            return [self._compute(number, number + 1) for number in range(len(self._samples))]
        except Exception:
            return []

    def _buffers(self) -> dict[str, torch.Tensor]:
        return {name: buffer.detach().clone() for name, buffer in self._task.model.named_buffers()}

    def _is_beyond_comparison(self) -> bool:
        """Whether the parts may have drawn other numbers than the whole: draws that belong to no sample, of which
        training warns, or draws in batches padded to another length."""
        padded_otherwise = any(part.shapes != self._whole.shapes for part in self._parts)
        return keyed.has_warned() or (self._whole.draws and padded_otherwise)

    def _is_off(self, difference: float, computations: Sequence[LossComputation]) -> bool:
        return abs(difference) > tolerance(self._task) * max(abs(computation.loss) for computation in computations)

    def _describe(self, together: float) -> str:
        whole, parts, num = self._whole, self._parts, len(self._samples)
        text = (
            f"the loss of {num} samples is {whole.loss:.6g}, and its parts of {self._cut} and {num - self._cut} "
            f"samples, weighted by their samples, make {together:.6g}: on other numbers of nodes it would be "
            "another training"
        )
        total = sum(part.loss for part in parts)
        if not self._is_off(whole.loss - total, [whole, *parts]):
            return f"{text}. It is the sum over the samples: take reduction='mean', or divide by their number"
        if whole.draws_elsewhere:
            return (
                f"{text}. It draws from NumPy's or Python's generator, which gives each rank the same numbers for "
                "other samples: draw with torch, whose numbers belong to samples, or from generators that do "
                "(oakum_worker.generators.batch_rngs)"
            )
        return f"{text}. {_HOW}"


def describe_raising_part(num_samples: int, num_of_part: int, error: Exception) -> str:
    """Text about a loss that can be computed for `num_samples` samples, but raises `error` for `num_of_part` of
    them."""
    return (
        f"the loss of {num_samples} samples can be computed, and that of {num_of_part} of them raises "
        f"{type(error).__name__}: {error}. A rank computes as many samples as its share of a batch has, which may "
        "be any number"
    )


def differ(first: LossComputation, second: LossComputation, task: Task) -> bool:
    """Whether two losses of the same samples differ by more than rounding explains; False where one is not
    finite."""
    scale = max(abs(first.loss), abs(second.loss))
    return _is_finite(first, second) and abs(first.loss - second.loss) > tolerance(task) * scale


def tolerance(task: Task, *losses: torch.dtype) -> float:
    """Largest relative difference that rounding may cause between two ways to compute a loss. `losses` are types
    that losses were computed in, which may be coarser than the weights'."""
    kinds = {p.dtype for p in task.model.parameters() if p.is_floating_point()} | {*losses}
    on_cpu = next(task.model.parameters()).device.type == "cpu"
    coarsest = max(_TOLERANCES.get(kind, _COARSE) for kind in kinds)
    return coarsest if on_cpu else max(coarsest, _ACCELERATOR)


def _mean(parts: Sequence[LossComputation]) -> float:
    weight = sum(part.weight for part in parts)
    return sum(part.loss * part.weight for part in parts) / weight if weight else 0.0


def _is_finite(*passes: LossComputation) -> bool:
    return all(abs(computation.loss) < float("inf") for computation in passes)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return torch.allclose(one, other, equal_nan=True) if one.is_floating_point() else torch.equal(one, other)
