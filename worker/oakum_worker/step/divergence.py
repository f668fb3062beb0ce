"""Divergence: training whose loss, gradients or weights have become infinite or NaN, and stay so.

A step is *faulty* if its loss is not finite, or if a rank found gradients or weights that are not finite. The loss
is the same on every rank. Each rank also checks its own gradients and weights, so often that the checks take at
most 1 % of the time, and in every step after a faulty one. It sends the finding with the next step's votes, so all
ranks count the same steps and give up after the same step.

A single *skipped* step is no sign of divergence: float16 training finds its loss scale by skipping steps, and an
offloaded optimizer leaves the weights unchanged when a gradient has overflowed. 50 skipped steps in a row are
divergence.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence

from torch import nn

from oakum_worker.errors import DivergedError
from oakum_worker.spec_options import DivergenceSpec
from oakum_worker.state.finiteness import first_not_finite

_SHARE = 0.005
"""Largest share of the time that checking gradients may take; checking weights may take as much again."""
_AT_ONCE_S = 50e-6
"""A check that takes at most this many seconds runs in each step: a step takes milliseconds."""
_MOST_SKIPPED = 50
_ADVICE = (
    "Lower the learning rate or warm it up, clip gradients (clip_grad_norm), or look for a logarithm, a root or a "
    "division of 0 in the loss"
)


class _Pace:
    """Decides when a check is due again, so that it takes no more than its share of the time."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._took_s = math.inf
        """Seconds that the fastest check so far took: slower checks may have waited for the processor."""

    def allows(self) -> bool:
        return time.monotonic() >= self._next_s

    def count(self, began_s: float) -> None:
        now_s = time.monotonic()
        self._took_s = min(self._took_s, now_s - began_s)
        self._next_s = now_s + (self._took_s / _SHARE if self._took_s > _AT_ONCE_S else 0.0)


class DivergenceWatch:
    """Checks one rank's steps and counts the faulty ones in a row.

    In each step the caller puts `has_found` into the step's votes, calls `look` before the update, and `judge`
    after it.
    """

    def __init__(self, parameters: Callable[[], Iterable[tuple[str, nn.Parameter]]], spec: DivergenceSpec) -> None:
        """`parameters` returns the model's present parameters with their names."""
        self._parameters = parameters
        self._limit = spec.steps
        self._gradients, self._weights = _Pace(), _Pace()
        self.forget()

    def forget(self) -> None:
        """Restart the counts. Every rank does so in a new generation, since a rank that joins knows no earlier
        counts."""
        self._in_a_row = self._skipped = 0
        self._first = ""
        """Description of the first value that was infinite or NaN in the counted steps; empty if there was
        none."""
        self._is_faulty = False
        """Whether this rank found a fault in the last step. Other ranks learn of it in the next step."""
        self._loss = 0.0
        self._named: list[tuple[str, nn.Parameter]] = []

    @property
    def has_found(self) -> bool:
        """Whether this rank found a value that is not finite in the last step; to be sent with its votes in the
        next step."""
        return self._is_faulty

    def look(self, step: int, loss: float, *, gradients: bool) -> None:
        """Check this rank's weights, and its gradients if `gradients`, before the update of a step.

        `step` counts from 1; `loss` is the loss of the global batch. `gradients` is False where a loss scale may
        have made them infinite.
        """
        suspicious = self._is_faulty or self._in_a_row > 0 or not math.isfinite(loss)
        self._is_faulty, self._loss = False, loss
        if suspicious or self._weights.allows():
            self._look_at_weights(step - 1)
        if not math.isfinite(loss):
            self._first = self._first or f"the loss was {loss} at step {step}"
        if gradients and (suspicious or self._gradients.allows()):
            began_s = time.monotonic()
            faulty = first_not_finite([(name, p.grad) for name, p in self._trained() if p.grad is not None])
            self._gradients.count(began_s)
            if faulty is not None:
                self._note(
                    f"the gradient of {faulty} was not finite at step {step}, where the loss was {loss:.4g}"
                )

    def judge(self, step: int, *, found: bool, skipped: bool) -> None:
        """Count the step that `look` checked; `found`: whether any rank's votes in this step told of a fault.

        Raises `DivergedError` after too many faulty or skipped steps in a row, on every rank after the same step.
        """
        if skipped:
            self._count_skipped(step)
            return
        self._skipped = 0
        if found or not math.isfinite(self._loss):
            self._in_a_row += 1
            self._first = self._first or _elsewhere(step - 1)
        else:
            self._in_a_row = 0
            self._first = self._first if self._is_faulty else ""
        if self._in_a_row >= self._limit:
            raise self._diverged(f"it has been so for {_steps(self._limit)} in a row")

    def conclude(self, step: int, is_any: Callable[[bool], bool]) -> None:
        """Check the weights and the loss at the end of training. Raises `DivergedError`, on every rank, if a rank
        finds a fault.

        `is_any` is a collective: it returns True on every rank if its argument is True on any rank.
        """
        self._look_at_weights(step)
        if is_any(self._is_faulty or not math.isfinite(self._loss)):
            self._first = self._first or _elsewhere(step)
            raise self._diverged(f"training ended so, after {_steps(step)}")

    def _look_at_weights(self, step: int) -> None:
        began_s = time.monotonic()
        name = first_not_finite(self._trained())
        self._weights.count(began_s)
        if name is not None:
            when = f"after step {step}" if step else "before the first step"
            self._note(f"the weights of {name} were not finite {when}")

    def _trained(self) -> Sequence[tuple[str, nn.Parameter]]:
        """The parameters that require gradients, with their names.

        They are looked up at the first check after `forget`, since a new generation may have other parameters.
        """
        self._named = self._named or [(name, p) for name, p in self._parameters() if p.requires_grad]
        return self._named

    def _note(self, what: str) -> None:
        self._is_faulty = True
        self._first = self._first or what

    def _count_skipped(self, step: int) -> None:
        self._is_faulty, self._loss = False, 0.0
        self._first = self._first if self._in_a_row else ""
        self._skipped += 1
        if self._skipped >= _MOST_SKIPPED:
            self._first = f"a gradient was not finite at step {step + 1 - _MOST_SKIPPED}"
            raise self._diverged(f"{_MOST_SKIPPED} steps in a row have been skipped since")

    def _diverged(self, since: str) -> DivergedError:
        return DivergedError(f"{self._first}; {since}. {_ADVICE}")


def tensors_to_be_finite(model: nn.Module, spec: DivergenceSpec | None) -> frozenset[str]:
    """Paths of the tensors in the trainer's state that have to be finite for the state to be worth keeping; none
    where nothing watches for divergence."""
    if spec is None:
        return frozenset()
    return frozenset(f"model.{name}" for name, p in model.named_parameters() if p.requires_grad)


def _elsewhere(step: int) -> str:
    return f"gradients or weights of another rank were not finite at step {step}"


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"
