"""How noisy the gradient is, and so what a larger batch is worth, learned from gradients that training has anyway.

A batch's gradient is the true gradient G plus noise. For batches of S0 samples, the user's, the noise has a
variance `var` (the trace of its covariance) and `sqr` stands for |G|^2. From a step of S samples in k parts, with
mean|g_i|^2 the samples' mean over the parts (`oakum_worker.parallel.data.GradientNorms` shows that this has no
bias), and scale = S / S0,

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

from oakum_worker.parallel.data import GradientNorms

_SMOOTHING = 0.999
"""Weight of the past in the averages, for each S0 samples of a step: that of Pollux's published code. AdaScale's
1 - S / (1000 S0) is the same to first order."""
_ENOUGH = 0.05
"""Total weight of the observations, 1 in the long run, from which on the averages are believed: 50 steps of S0."""


class NoiseScale:
    """Smoothed noise of the gradient, from numbers that every rank has alike.

    Each rank finds |g|^2 by itself, and on unlike hardware in other last bits. What ranks decide from must not
    differ at all, so |g|^2 travels along with the next step's collective (`carried`), and a step is taken into
    account one step late.
    """

    def __init__(self, base_batch: int) -> None:
        """`base_batch` is S0, in samples."""
        self._base_batch = base_batch
        self._sqr = self._var = self._weight = 0.0
        self._pending: _Pending | None = None

    @property
    def carried(self) -> torch.Tensor | float | None:
        """What the next step's `GradientReducer.begin` has to carry."""
        return None if self._pending is None else self._pending.total_sqr

    def observe(self, norms: GradientNorms, batch: int, loss_scale: float = 1.0) -> None:
        """Take in a finished step of `batch` samples."""
        if self._pending is not None and norms.carried is not None:
            self._average(self._pending, norms.carried)
        self._pending = None
        if norms.num_parts > 1:
            unscaled = norms.parts_sqr / loss_scale**2, norms.total_sqr / loss_scale**2
            self._pending = _Pending(*unscaled, norms.num_parts, batch)

    @property
    def is_known(self) -> bool:
        """Whether enough steps were observed; until then gains are 1. A step of a single part tells nothing."""
        return self._weight >= _ENOUGH

    @property
    def sqr(self) -> float:
        """Squared norm of the true gradient; 0 where the noise hides it."""
        return max(self._sqr / self._weight, 0.0) if self._weight else 0.0

    @property
    def var(self) -> float:
        """Variance of the gradient of a batch of S0 samples."""
        return max(self._var / self._weight, 0.0) if self._weight else 0.0

    @property
    def critical_batch(self) -> float:
        """Samples of the batch at which a step's noise is as large as its gradient (their B_simple).

        There training takes twice the samples that the smallest batches would take, and twice the steps that the
        largest would take (arXiv:1812.06162, section 2.3).
        """
        if not self.is_known or self.var == 0:
            return 0.0
        return self._base_batch * self.var / self.sqr if self.sqr else math.inf

    def gain(self, batch: int) -> float:
        """How many steps of S0 samples one of `batch` samples is worth. Between 1 and batch / S0."""
        scale = batch / self._base_batch
        if not self.is_known or scale <= 1 or self.var + self.sqr == 0:
            return 1.0
        return (self.var + self.sqr) / (self.var / scale + self.sqr)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        pending = None if self._pending is None else self._pending.plain()
        return {"sqr": self._sqr, "var": self._var, "weight": self._weight, "pending": pending}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state. Raises `KeyError` or `TypeError` where it is not one."""
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
    """A step whose |g|^2 the ranks have not agreed on yet."""

    def __init__(self, parts_sqr: float, total_sqr: torch.Tensor | float, num_parts: int, batch: int) -> None:
        self.parts_sqr = parts_sqr
        self.total_sqr = total_sqr
        self.num_parts = num_parts
        self.batch = batch

    def plain(self) -> list[float | int]:
        return [self.parts_sqr, float(self.total_sqr), self.num_parts, self.batch]
