"""A trainer's entire state: what another process needs to go on from the same step boundary.

Optimizer state is kept under parameter names instead of torch's running numbers, so that it can be stored and
resharded by name. torch's own `get_optimizer_state_dict` does that too, but brings a fresh optimizer's state into
being by taking a step with it, which leaves Adam's step count at 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from oakum_worker.devices import accelerator
from oakum_worker.errors import CheckpointError
from oakum_worker.state.cursor import Cursor
from oakum_worker.state.tree import assemble, dismantle
from oakum_worker.task import Stateful, Task

State = dict[str, Any]
"""States of model, optimizer, scheduler, cursor and other parts, by name. Its tensors are the live ones, not
copies."""


def capture(task: Task, cursor: Cursor, parts: Mapping[str, Stateful]) -> State:
    """The present state of task and cursor, with the states of the trainer's other `parts`."""
    own = {"model": dict(task.model.state_dict()), "optimizer": _capture_optimizer(task)}
    return own | capture_rest(task, cursor, parts)


def capture_rest(task: Task, cursor: Cursor, parts: Mapping[str, Stateful]) -> State:
    """The trainer's state except the model's and the optimizer's: the scheduler's, the cursor, and the states
    of `parts`."""
    return {
        "scheduler": None if task.scheduler is None else task.scheduler.state_dict(),
        "cursor": {"step": cursor.step, "epoch": cursor.epoch, "consumed": cursor.consumed},
    } | states_of_parts({name: dict(part.state_dict()) for name, part in parts.items()})


def states_of_parts(states: Mapping[str, Any]) -> State:
    """What a state has of its parts: their own `states`, by name, and the kind of accelerator on which each of
    their tensors lies that is on one, by path. States travel in the host's memory, and a part may keep the tensors
    that it is given."""
    _, tensors = dismantle(states)
    devices = {path: one.device.type for path, one in tensors.items() if one.device.type != "cpu"}
    return {"parts": dict(states), "devices": devices}


def restore(task: Task, state: State, parts: Mapping[str, Stateful]) -> Cursor:
    """Put the state into the task and the other `parts`; tensors are copied. Returns its cursor.

    A part that is not in the state stays as it is: it was added to the task later. Raises `CheckpointError` if the
    state belongs to another model, optimizer or scheduler.
    """
    with _fitting():
        task.model.load_state_dict(state["model"])
        _restore_optimizer(task, state["optimizer"])
    return restore_rest(task, state, parts)


def restore_rest(
    task: Task, state: Mapping[str, Any], parts: Mapping[str, Stateful], *, with_scheduler: bool = True
) -> Cursor:
    """Restore the scheduler and the other `parts` from the state, but neither model nor optimizer. With
    `with_scheduler` False the scheduler stays as it is, too. Returns the state's cursor. Raises `CheckpointError`
    if the state does not fit."""
    with _fitting():
        cursor = Cursor(**state["cursor"])
        if task.scheduler is not None and with_scheduler:
            task.scheduler.load_state_dict(state["scheduler"])
        saved, devices = state.get("parts", {}), state.get("devices", {})
        for name, part in parts.items():
            if name in saved:
                part.load_state_dict(_copied(saved[name], name, devices))
    return cursor


def adopt(task: Task, state: State, parts: Mapping[str, Stateful]) -> Cursor:
    """Begin from another trainer's state, with the hyper-parameters of this task, which is as it was built.

    Weights, the optimizer's moments, the cursor and the other parts are the state's. Learning rates and the other
    options of the groups of parameters are the task's own, after as many steps of its scheduler as the state has
    had, or as many as its finished steps or epochs where its scheduler counted the other. Returns the cursor.
    Raises `CheckpointError` where the state belongs to another model, optimizer or scheduler.
    """
    with _fitting():
        saved, own = state["optimizer"], _capture_optimizer(task)["param_groups"]
        if [group["params"] for group in saved["param_groups"]] != [group["params"] for group in own]:
            raise ValueError("the optimizer has other groups of parameters")
        task.model.load_state_dict(state["model"])
        _restore_optimizer(task, {**saved, "param_groups": own})
        if task.scheduler is not None and state["scheduler"] is not None:
            _advance(task, state)
    return restore_rest(task, state, parts, with_scheduler=False)


def _advance(task: Task, state: State) -> None:
    """Step the task's scheduler until it has taken as many steps as the scheduler of the state; where one does not
    tell its steps, load its state instead."""
    scheduler: Any = task.scheduler
    own, theirs = _steps_of(scheduler.state_dict()), _steps_of(state["scheduler"])
    if own is None or theirs is None:
        scheduler.load_state_dict(state["scheduler"])  # Not a scheduler of torch: its settings are unknown.
        return
    cursor = state["cursor"]
    if task.scheduler_by_epoch:
        theirs = cursor["epoch"]
    elif theirs == cursor["epoch"]:
        theirs = cursor["step"]  # It counted epochs.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the optimizer has not taken these steps.
        for _ in range(theirs - own):
            scheduler.step()


def _steps_of(scheduler: Mapping[str, Any]) -> int | None:
    inner = scheduler if "last_epoch" in scheduler else next(iter(scheduler.get("_schedulers", ())), {})
    steps = inner.get("last_epoch")
    return steps if isinstance(steps, int) else None


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


def _copied(value: Any, name: str, devices: Mapping[str, str]) -> Any:
    """The state of the part of this name with copied tensors, since a part may keep those that it is given: on
    this process's accelerator where it is of the kind that `devices` has for their paths."""
    document, tensors = dismantle(value, name)
    here = accelerator() if devices else None
    copies = {
        path: tensor.to(here, copy=True) if here and devices.get(path) == here else tensor.clone()
        for path, tensor in tensors.items()
    }
    return assemble(document, copies)


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
