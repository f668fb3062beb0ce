"""A trainer's entire state: what another process needs to go on from the same step boundary.

Optimizer state is kept under parameter names instead of torch's running numbers, so that it can be stored and
resharded by name. torch's own `get_optimizer_state_dict` does that too, but brings a fresh optimizer's state into
being by taking a step with it, which leaves Adam's step count at 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from oakum_worker.errors import CheckpointError
from oakum_worker.sampler import Cursor
from oakum_worker.skeleton import assemble, dismantle
from oakum_worker.task import Stateful, Task

State = dict[str, Any]
"""model, optimizer, scheduler, cursor and other parts' states; the tensors in it are the live ones, not copies."""


def capture(task: Task, cursor: Cursor, parts: Mapping[str, Stateful]) -> State:
    """The state as it stands, with that of the other `parts` of the trainer."""
    own = {"model": dict(task.model.state_dict()), "optimizer": _capture_optimizer(task)}
    return own | capture_rest(task, cursor, parts)


def capture_rest(task: Task, cursor: Cursor, parts: Mapping[str, Stateful]) -> State:
    """The state without that of model and optimizer."""
    return {
        "scheduler": None if task.scheduler is None else task.scheduler.state_dict(),
        "cursor": {"step": cursor.step, "epoch": cursor.epoch, "consumed": cursor.consumed},
        "parts": {name: dict(part.state_dict()) for name, part in parts.items()},
    }


def restore(task: Task, state: State, parts: Mapping[str, Stateful]) -> Cursor:
    """Put the state into the task and the other `parts`; tensors are copied. Returns its cursor.

    A part that the state knows nothing of stays as it is: it has come to the task since. Raises
    `CheckpointError` where the state belongs to another model, optimizer or scheduler.
    """
    with _fitting():
        task.model.load_state_dict(state["model"])
        _restore_optimizer(task, state["optimizer"])
    return restore_rest(task, state, parts)


def restore_rest(task: Task, state: Mapping[str, Any], parts: Mapping[str, Stateful]) -> Cursor:
    """The same without model and optimizer, which have theirs already."""
    with _fitting():
        cursor = Cursor(**state["cursor"])
        if task.scheduler is not None:
            task.scheduler.load_state_dict(state["scheduler"])
        known = state.get("parts", {})
        for name, part in parts.items():
            if name in known:
                part.load_state_dict(_copied(known[name]))
    return cursor


@contextmanager
def _fitting() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the state does not fit the task ({error}): use the model, optimizer and scheduler it was made with, "
            "or begin a new trainer"
        ) from error


def _capture_optimizer(task: Task) -> dict[str, Any]:
    names = _optimized_names(task)
    numbered = task.optimizer.state_dict()
    return {
        "state": {names[number]: dict(values) for number, values in numbered["state"].items()},
        "param_groups": [
            {**group, "params": [names[number] for number in group["params"]]}
            for group in numbered["param_groups"]
        ],
    }


def _restore_optimizer(task: Task, named: dict[str, Any]) -> None:
    names = _optimized_names(task)
    numbers = {name: number for number, name in enumerate(names)}
    parameters = dict(task.model.named_parameters())
    groups = [{**group, "params": [numbers[name] for name in group["params"]]} for group in named["param_groups"]]
    state = {
        numbers[name]: {key: _own(value, parameters[name]) for key, value in values.items()}
        for name, values in named["state"].items()
    }
    task.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _optimized_names(task: Task) -> list[str]:
    """Names of the optimizer's parameters in the order in which torch numbers them."""
    names = {id(parameter): name for name, parameter in task.model.named_parameters()}
    return [names[id(parameter)] for group in task.optimizer.param_groups for parameter in group["params"]]


def _copied(value: Any) -> Any:
    """The same with tensors of its own: a part may keep what it is given."""
    document, tensors = dismantle(value)
    return assemble(document, {path: tensor.clone() for path, tensor in tensors.items()})


def _own(value: Any, parameter: torch.Tensor) -> Any:
    # `Optimizer.load_state_dict` keeps the tensors it is given: without a copy two trainers would share moments. A
    # moment takes its parameter's memory layout, which fused optimizers need for their fast path; it stays where
    # it is, since an offloaded optimizer's may not fit on the device.
    if not isinstance(value, torch.Tensor):
        return value
    if value.shape == parameter.shape:
        memory = torch.empty_like(parameter, dtype=value.dtype, device=value.device, requires_grad=False)
        return memory.copy_(value)
    return value.detach().clone()
