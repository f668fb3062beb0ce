"""A look at which trained parameters get a gradient, in the first step that a process takes.

Engines fill gradients that are missing with zeros, so a mistake by which a part of the model is not trained would
go unnoticed. Here hooks of autograd tell which gradients have arrived, however an engine moves them and adds them
up then. They neither read a gradient nor wait for a device.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from oakum_worker.errors import TaskError, TrainingWarning
from oakum_worker.listing import some_of

_MOST_NAMES = 10
NOTHING_IS_TRAINED = (
    "no parameter of the model got a gradient: the loss was computed with another object than the one that is "
    "trained; compute it with the model that is handed to the loss, or that the session was given"
)


class GradientLook:
    """Which of the parameters that are expected to get gradients in a step have got none."""

    def __init__(self) -> None:
        self._expected: dict[int, nn.Parameter] = {}
        self._followed: set[int] = set()
        self._arrived: set[int] = set()
        self._hooks: list[RemovableHandle] = []

    @property
    def expected(self) -> list[nn.Parameter]:
        """The trained parameters that were expected to get gradients so far; none where this rank computes
        nothing."""
        return list(self._expected.values())

    @property
    def lacking(self) -> list[nn.Parameter]:
        """Those of `expected` without a gradient so far."""
        return [parameter for number, parameter in self._expected.items() if number not in self._arrived]

    def expect(self, parameters: Iterable[nn.Parameter]) -> None:
        """Expect gradients of those of the parameters that require one and have any element."""
        for parameter in parameters:
            if parameter.requires_grad and parameter.numel():
                self._expected[id(parameter)] = parameter

    def follow(self, parameter: nn.Parameter, leaf: torch.Tensor) -> None:
        """From now on count `parameter` as one that has got a gradient as soon as autograd has computed the
        gradient of `leaf`: the parameter itself, or the tensor that takes its place in forward and backward
        passes."""
        if id(leaf) in self._followed or not leaf.requires_grad:
            return
        self._followed.add(id(leaf))
        arrived, number = self._arrived, id(parameter)
        # Autograd keeps the hook, so it refers to nothing but the set.
        self._hooks.append(leaf.register_post_accumulate_grad_hook(lambda _: arrived.add(number)))

    def expect_from(self, parameters: Sequence[nn.Parameter]) -> None:
        """Expect gradients of parameters that are themselves leaves of the passes."""
        self.expect(parameters)
        for parameter in parameters:
            self.follow(parameter, parameter)

    def conclude(self, model: nn.Module) -> None:
        """End the look, and warn of trained parameters of the model that were expected to get a gradient and got
        none. Raises `TaskError` where no trained parameter of the model got any."""
        names = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
        lacking = {id(parameter) for parameter in self.lacking}
        self.forget()
        if len(lacking) == len(names):  # fewer where other ranks train the rest of the model
            raise TaskError(NOTHING_IS_TRAINED)
        if lacking:
            text = describe_lacking_gradients([name for number, name in names.items() if number in lacking])
            warnings.warn(text, TrainingWarning, stacklevel=3)

    def forget(self) -> None:
        """Forget everything, and release the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._expected.clear()
        self._followed.clear()
        self._arrived = set()


def describe_lacking_gradients(names: Sequence[str]) -> str:
    """Message that parameters with these names, at least one, got no gradient, with the likely reason."""
    return (
        f"{some_of(names, _MOST_NAMES)}: no gradient came from the first loss, so it may stay "
        "as it is: the loss was computed with another object than the one that is trained, or the layer is not "
        "used"
    )
