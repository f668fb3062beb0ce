"""What a session refuses: what it is made of, calls at the wrong moment, and gradients that are not the step's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer, SparseAdam

from oakum_worker.errors import SessionError
from oakum_worker.session.iteration import Iteration
from oakum_worker.task import Task
from oakum_worker.task_checks import first_complaint

IN_PARTS = (
    "this rank computes its samples in several parts, of which others may have more: compute them at once, by a "
    "larger batch_size of the data loader and less accumulation"
)


def find_complaint(task: Task, optimizers: Sequence[Optimizer]) -> str | None:
    """Why a session cannot train this; None where it can."""
    if any(isinstance(one, SparseAdam) for one in optimizers):
        return "SparseAdam takes sparse gradients alone, and gradients summed over ranks are dense: use Adam"
    if any(isinstance(one, LBFGS) for one in optimizers):
        return "LBFGS evaluates the loss several times in a step: use an optimizer that does so once"
    earlier: set[int] = set()
    for one in optimizers:
        own = {id(p) for group in one.param_groups for p in group["params"]}
        if own & earlier:
            return "two optimizers have a parameter in common: give each parameter to one of them"
        earlier |= own
    for part in task.extra_state.values():
        if part in optimizers or part is task.model:
            return f"state has the {type(part).__name__} that the session has already: leave it out"
    return first_complaint(task)


def refuse_losses(*_: Any) -> torch.Tensor:
    """The loss of a task whose script computes its losses. Raises `SessionError`."""
    raise SessionError("a session's losses are computed by its script")


def under_way(iteration: Iteration | None, what: str, *, is_over: bool) -> Iteration:
    """The iteration in which the script calls the session's `what`. Raises `SessionError` where there is none, or
    its step was taken."""
    if is_over:
        raise SessionError(f"session.{what}() after the end of training: call it in the loop over the session")
    if iteration is None:
        raise SessionError(f"session.{what}() outside of the loop: call it in `for batch in session:`")
    if iteration.is_stepped:
        raise SessionError(
            f"session.{what}() after session.step() in the same iteration: one iteration is one step; add up "
            "losses with several calls of backward() before it"
        )
    return iteration


def refuse_stranger(optimizer: Optimizer, members: Sequence[Optimizer]) -> None:
    """Raise `SessionError` for an optimizer that is none of the session's `members`."""
    if not any(optimizer is one for one in members):
        raise SessionError(f"this {type(optimizer).__name__} is not the session's: give it to session(...)")


def refuse_backward(iteration: Iteration, loss: Any, *, is_weighted: bool) -> None:
    """Raise `SessionError` for a loss whose gradient cannot be added to those of the step."""
    if iteration.is_reduced:
        raise SessionError("session.backward() after session.reduce() in the same iteration: call it before")
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise SessionError(f"backward() got {_describe(loss)}: give the mean loss over the batch, a scalar")
    if not loss.requires_grad:
        raise SessionError(
            "backward() got a loss that does not depend on any parameter: compute it with the model that the "
            "session has, with gradients"
        )
    if iteration.is_weighted not in (None, is_weighted):
        raise SessionError(
            "backward() was given a weight in one call of this iteration and none in another. All that is "
            "given with weights is divided by their sum: compute one loss, or give each of them a weight"
        )


def refuse_sum(iteration: Iteration, *, has_gradients: bool) -> None:
    """Raise `SessionError` where this rank's gradients are not those of its samples. `has_gradients`: whether a
    parameter of the session's has one."""
    if iteration.num_counted and not has_gradients:
        raise SessionError(
            "no parameter of the session's model has a gradient: the loss is that of another model; compute "
            "it with the model that session(...) was given"
        )
    refuse_own_gradients(iteration)


def refuse_own_gradients(iteration: Iteration) -> None:
    """Raise `SessionError` where the script itself has computed or changed gradients in the present step, before
    they were summed over the ranks."""
    if iteration.has_changed_gradients:
        raise SessionError(
            "gradients were made or changed otherwise than by session.backward() before the sum over the ranks, "
            "such as by loss.backward() or clipping: they are those of this rank's samples alone. Give each loss "
            "to session.backward(), and call session.reduce() before you change gradients"
        )


def refuse_other_parameters(model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
    """Raise `SessionError` where the model's parameters are not these, which it had when the session began."""
    present = [*model.parameters()]
    if len(present) != len(parameters) or any(a is not b for a, b in zip(present, parameters, strict=True)):
        raise SessionError(
            "the model's parameters were replaced since the session began: build the model first, and change "
            "values in place (`load_state_dict`, `p.data.copy_`)"
        )


def refuse_early_end(iteration: Iteration | None) -> None:
    """Raise `SessionError` where the script has left its loop in an iteration whose step was undone."""
    if iteration is not None and iteration.is_done and iteration.result is None:
        why = "it was one of the rehearsal" if iteration.is_rehearsal else "a rank was lost"
        raise SessionError(
            f"the loop was left in an iteration whose step was undone, because {why}: decide on the end where "
            "`session.step()` has returned True"
        )


def _describe(value: Any) -> str:
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
    return f"a {type(value).__name__}{shape}"
