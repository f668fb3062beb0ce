"""Estimates how noisy the gradient is, and so what a larger batch is worth, from the gradients of training itself.

A batch's gradient is the true gradient G plus noise. For batches of S0 samples (the user's batch size) the noise
has the variance `var` (the trace of its covariance); `sqr` stands for |G|^2. A step of S samples is computed in k
parts with gradients g_i. With mean|g_i|^2 the mean over the parts, weighted by their samples
(`oakum_worker.parallel.step_engine.GradientNorms` shows that this has no bias), and scale = S / S0,

    sqr = (k |g|^2 - mean|g_i|^2) / (k - 1)            var = (mean|g_i|^2 - |g|^2) scale / (k - 1)

and a step of S samples moves the loss as far as `gain` steps of S0 samples,

    gain(S) = (var + sqr) / (var / scale + sqr),       1 <= gain <= scale.

Sources: AdaScale (Johnson et al., arXiv:2007.05105, section 3) and Pollux (Qiao et al., OSDI'21, arXiv:2008.12260,
section 3) for the gain; McCandlish et al., arXiv:1812.06162, section 2 and appendix A.1, for the two estimates and
the critical batch.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from oakum_worker.parallel.step_engine import GradientNorms

_SMOOTHING = 0.999
"""Weight of the past in the averages, per S0 samples of a step. The value is from Pollux's published code;
AdaScale's 1 - S / (1000 S0) equals it to first order."""
_ENOUGH = 0.05
"""Total weight of the observations from which on the averages are used: that of about 50 steps of S0 samples. The
total weight approaches 1."""


class NoiseScale:
    """Running estimates of the gradient and its noise, from numbers that are equal on every rank.

    Each rank computes |g|^2 itself, and on different hardware the last bits differ. Ranks must decide from equal
    numbers, so the next step's collective carries |g|^2 (`carried`), and each step is added to the averages one
    step late.
    """

    def __init__(self, base_batch: int) -> None:
        """`base_batch` is S0, in samples."""
        self._base_batch = base_batch
        self._sqr = self._var = self._weight = 0.0
        self._pending: _Pending | None = None

    @property
    def carried(self) -> torch.Tensor | float | None:
        """The number that `GradientReducer.begin` has to send along in the next step; None if there is none."""
        return None if self._pending is None else self._pending.total_sqr

    def observe(self, norms: GradientNorms, batch: int, loss_scale: float = 1.0) -> None:
        """Note a finished step of `batch` samples, whose gradients were multiplied by `loss_scale`. It enters
        the averages at the next call, when `norms.carried` brings the ranks' mean of its |g|^2. A step of a
        single part is left out."""
        if self._pending is not None and norms.carried is not None:
            self._average(self._pending, norms.carried)
        self._pending = None
        if norms.num_parts > 1:
            unscaled = norms.parts_sqr / loss_scale**2, norms.total_sqr / loss_scale**2
            self._pending = _Pending(*unscaled, norms.num_parts, batch)

    @property
    def is_known(self) -> bool:
        """Whether enough steps were observed; until then gains are 1. Steps of a single part do not count."""
        return self._weight >= _ENOUGH

    @property
    def sqr(self) -> float:
        """Squared norm of the true gradient; 0 where the noise hides it."""
        return max(self._sqr / self._weight, 0.0) if self._weight else 0.0

    @property
    def var(self) -> float:
        """Variance of the gradient of a batch of S0 samples, S0 being the `base_batch`; 0 before the first
        observation."""
        return max(self._var / self._weight, 0.0) if self._weight else 0.0

    @property
    def critical_batch(self) -> float:
        """Size in samples of the batch whose noise is as large as its gradient (B_simple of arXiv:1812.06162).

        With this batch, training takes twice the samples that the smallest batches would take, and twice the steps
        that the largest would take (section 2.3). 0 while the noise is unknown or zero; infinite where the noise
        hides the gradient.
        """
        if not self.is_known or self.var == 0:
            return 0.0
        return self._base_batch * self.var / self.sqr if self.sqr else math.inf

    def gain(self, batch: int) -> float:
        """Number of steps of S0 (the `base_batch`) samples that one step of `batch` samples is worth, between 1
        and batch / S0. 1 while the noise is unknown, and for batches of at most S0 samples."""
        scale = batch / self._base_batch
        if not self.is_known or scale <= 1 or self.var + self.sqr == 0:
            return 1.0
        return (self.var + self.sqr) / (self.var / scale + self.sqr)

    def state_dict(self) -> dict[str, Any]:
        """The averages and the pending step, as plain numbers."""
        pending = None if self._pending is None else self._pending.plain()
        return {"sqr": self._sqr, "var": self._var, "weight": self._weight, "pending": pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict`. Raises `KeyError` or `TypeError` if `state` has another form."""
        pending = None if state["pending"] is None else _Pending(*state["pending"])
        self._sqr, self._var, self._weight = state["sqr"], state["var"], state["weight"]
        self._pending = pending

    def _average(self, step: _Pending, total_sqr: float) -> None:
        if not (math.isfinite(step.parts_sqr) and math.isfinite(total_sqr)):
            return  # A float16 step that overflowed.
        scale = step.batch / self._base_batch
        sqr = (step.num_parts * total_sqr - step.parts_sqr) / (step.num_parts - 1)
        var = (step.parts_sqr - total_sqr) * scale / (step.num_parts - 1)
        past = _SMOOTHING**scale
        self._sqr = past * self._sqr + (1 - past) * sqr
        self._var = past * self._var + (1 - past) * var
        self._weight = past * self._weight + (1 - past)


class _Pending:
    """An observed step that is not in the averages yet: the ranks' values of its |g|^2 have not been averaged."""

    def __init__(self, parts_sqr: float, total_sqr: torch.Tensor | float, num_parts: int, batch: int) -> None:
        self.parts_sqr = parts_sqr
        self.total_sqr = total_sqr
        self.num_parts = num_parts
        self.batch = batch

    def plain(self) -> list[float | int]:
        return [self.parts_sqr, float(self.total_sqr), self.num_parts, self.batch]
