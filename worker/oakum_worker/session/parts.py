"""Several models, optimizers and states, as the one model, optimizer and mapping that a task has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from oakum_worker.errors import SessionError
from oakum_worker.task import Stateful


def as_list(value: Any, kind: type, what: str) -> list[Any]:
    """A list of the values in a list or tuple, or of the one value. Raises `SessionError`, which names the
    argument `what`, for none or one that is no `kind`."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    for one in values:
        if not isinstance(one, kind):
            raise SessionError(
                f"session() got a {type(one).__name__} for {what}: give a {kind.__name__} or a list"
            )
    if not values:
        raise SessionError(f"session() got no {what}: give at least one")
    return values


def one_model(models: Sequence[nn.Module]) -> nn.Module:
    """The model, or a module that holds all models."""
    return models[0] if len(models) == 1 else nn.ModuleList(models)


def named_parts(state: Any) -> dict[str, Stateful]:
    """Name -> part of the state that a script hands over as a list or as a mapping of names."""
    if isinstance(state, Mapping):
        return {f"state.{name}": part for name, part in state.items()}
    if not isinstance(state, list | tuple):
        state = [state]
    return {f"state.{number}": part for number, part in enumerate(state)}


class Ending(Stateful):
    """Whether the script's loops were left before the last epoch: part of the trainer's state, so that whoever
    takes up the state does not train on."""

    def __init__(self) -> None:
        self.is_stopped = False

    def state_dict(self) -> dict[str, Any]:
        """The fact, by name."""
        return {"stopped": self.is_stopped}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take over the fact of `state_dict`."""
        self.is_stopped = bool(state["stopped"])


class GuardedOptimizer(Optimizer):
    """A script's optimizers as one, which steps those that are chosen, and lets nobody else step them.

    Their groups and states are the optimizers' own, one after the other.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        # Not torch's own `__init__`, which would make groups and a state of its own.
        self.members = list(optimizers)
        self.chosen = list(optimizers)
        """Those that the next step is for."""
        self._is_stepping = False
        self._guards = [one.register_step_pre_hook(self._refuse) for one in self.members]

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """All members' groups, in order."""
        return list(itertools.chain.from_iterable(one.param_groups for one in self.members))

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        """All members' states by parameter."""
        return {key: value for one in self.members for key, value in one.state.items()}

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The first member's defaults."""
        return self.members[0].defaults

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take the steps of the chosen members."""
        self._is_stepping = True
        try:
            for one in self.chosen:
                one.step()
        finally:
            self._is_stepping = False

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all members."""
        for one in self.members:
            one.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The members' states with parameters numbered through all of them."""
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        first = 0
        for one in self.members:
            own = one.state_dict()
            state |= {first + number: values for number, values in own["state"].items()}
            groups += [{**g, "params": [first + n for n in g["params"]]} for g in own["param_groups"]]
            first += _count(own["param_groups"])
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each member its part of a `state_dict`. Raises `ValueError` where the groups do not fit."""
        groups, first = list(state_dict["param_groups"]), 0
        if len(groups) != len(self.param_groups):
            raise ValueError(f"{len(groups)} groups of parameters for {len(self.param_groups)}")
        for one in self.members:
            own, groups = groups[: len(one.param_groups)], groups[len(one.param_groups) :]
            last = first + _count(own)
            state = {n - first: values for n, values in state_dict["state"].items() if first <= n < last}
            shifted = [{**g, "params": [n - first for n in g["params"]]} for g in own]
            one.load_state_dict({"state": state, "param_groups": shifted})
            first = last

    def options(self) -> list[dict[str, Any]]:
        """A copy of the groups' options, such as learning rates, without their parameters."""
        return [
            {k: v.clone() if hasattr(v, "clone") else v for k, v in group.items() if k != "params"}
            for group in self.param_groups
        ]

    def restore_options(self, options: Iterable[Mapping[str, Any]]) -> None:
        """Put back what `options` returned."""
        for group, before in zip(self.param_groups, options, strict=True):
            group.update(before)

    def release(self) -> None:
        """Let anybody step the optimizers again."""
        for guard in self._guards:
            guard.remove()

    def _refuse(self, *_: object) -> None:
        if not self._is_stepping:
            raise SessionError(
                "the script calls optimizer.step() itself, with the gradients of this rank alone: call "
                "session.step() in its place"
            )


def _count(groups: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(group["params"]) for group in groups)
