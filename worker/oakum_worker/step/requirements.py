"""Checks in each step that the parameters that require gradients are the same ones as when training began."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

from torch import nn

from oakum_worker.errors import TaskError
from oakum_worker.listing import some_of


class Requirements:
    """Remembers which of a model's parameters required gradients when training began, and checks that this does
    not change.

    The buckets in which gradients are summed over ranks are made when training begins. So a parameter that is
    unfrozen later would get a different gradient on each rank, and a parameter that is frozen later would be
    updated with zero gradients.
    """

    def __init__(self, model: nn.Module) -> None:
        self._required = requirements(model)
        self.follow(model)

    def follow(self, model: nn.Module) -> None:
        """Check the parameters of this model from now on, in place of the earlier model's. They have the same
        names."""
        # Weak references, because one generation's parameters are freed before the next one's are made.
        self._parameters = [(weakref.ref(p), self._required[name]) for name, p in model.named_parameters()]
        self._names = [name for name, _ in model.named_parameters()]

    def check(self) -> None:
        """Raise `TaskError` if a parameter's `requires_grad` has changed since training began."""
        unchanged = [p is None or p.requires_grad is required for p, required in self._now()]
        if not all(unchanged):
            changed = [name for name, is_as_it_was in zip(self._names, unchanged, strict=True) if not is_as_it_was]
            raise TaskError(describe_changed_requirements(changed, "the task's code"))

    def _now(self) -> Iterator[tuple[nn.Parameter | None, bool]]:
        return ((parameter(), required) for parameter, required in self._parameters)


def requirements(model: nn.Module) -> dict[str, bool]:
    """Name of each parameter -> whether it requires gradients."""
    return {name: parameter.requires_grad for name, parameter in model.named_parameters()}


def describe_changed_requirements(names: Sequence[str], who: str) -> str:
    """Message that `who` changes `requires_grad` of these parameters, and what to do instead."""
    return (
        f"{who} changes which parameters require gradients ({some_of(names)}): that is fixed once training has "
        "begun. To unfreeze by schedule, leave requires_grad as it is, give those parameters a group of their "
        "own, and let the scheduler hold its learning rate at 0 until then: LambdaLR(optimizer, [lambda step: "
        "1.0, lambda step: float(step >= 1000)])"
    )
