"""Why a trainer has n nodes and not more, in the model's own numbers and in one sentence.

The step looked at is the one to the next allowed size: n + 1 nodes, or from none to the minimum. What lies
in the trainer itself (its maximum, a flat curve, a stall that outweighs the gain) is named before what lies
in others.
"""

from __future__ import annotations

from dataclasses import dataclass

from oakum_solver.greedy import Sizes
from oakum_solver.objectives import Objective
from oakum_solver.plan import Reason, Why
from oakum_solver.problem import Problem, Trainer
from oakum_solver.value import stall_samples, trainer_value, worth_of_a_sample

_ORDINALS = ("a first", "a second", "a third", "a fourth", "a fifth", "a sixth", "a seventh", "an eighth")
_ROUNDING = 1e-6
"""Relative difference of two values that counts as none."""


def explain(problem: Problem, sizes: Sizes) -> dict[str, Reason]:
    """Trainer id -> the reason for its size, in a plan of these sizes."""
    return {trainer.id: _reason(problem, sizes, trainer) for trainer in problem.trainers}


@dataclass(frozen=True)
class _Step:
    """From a trainer's size to its next allowed one; values in the objective's unit, over the look-ahead."""

    end: int
    gain: float
    """f_j at the next size less f_j at the present one."""
    stall: float
    """What the step costs in stalls."""

    @property
    def gross(self) -> float:
        """What the step would add if rescaling were free."""
        return self.gain + self.stall


def _reason(problem: Problem, sizes: Sizes, trainer: Trainer) -> Reason:
    size = sizes[trainer.id]
    if size == trainer.max_nodes:
        return Reason(Why.AT_MAXIMUM, f"has {_nodes(size)}, its maximum")
    if size == problem.num_nodes:
        return Reason(Why.NO_IDLE_NODE, f"has every idle node: {size}" if size else "no node is idle")
    step = _next_step(problem, trainer, size)
    return _own_reason(problem, trainer, size, step) or _others_reason(problem, sizes, trainer, step)


def _next_step(problem: Problem, trainer: Trainer, size: int) -> _Step:
    end = max(size + 1, trainer.min_nodes)
    stall_samples_more = stall_samples(problem, trainer, end) - stall_samples(problem, trainer, size)
    return _Step(
        end,
        gain=trainer_value(problem, trainer, end) - trainer_value(problem, trainer, size),
        stall=stall_samples_more * worth_of_a_sample(problem, trainer),
    )


def _own_reason(problem: Problem, trainer: Trainer, size: int, step: _Step) -> Reason | None:
    """Why the trainer would not take the step even if the nodes were free; None where it would."""
    has = f"has {_nodes(size)}: {_more(size, step)}"
    if trainer.curve.rate(step.end) <= trainer.curve.rate(size):
        return Reason(Why.CURVE_FLAT, f"{has} would not make it faster", step.gross, step.stall)
    if step.gain > 0:
        return None
    if step.gross > 0:
        stall = _amount(problem, step.stall)
        text = f"{has} would add {_amount(problem, step.gross)} {_when(problem)}, but the stall would cost {stall}"
    else:
        text = f"{has} would still be starting up when the next {problem.look_ahead_s:g} s are over"
    return Reason(Why.STALL_NOT_WORTH_IT, text, step.gross, step.stall)


def _others_reason(problem: Problem, sizes: Sizes, trainer: Trainer, step: _Step) -> Reason:
    """Why the trainer does not get the nodes that it would gain from."""
    size = sizes[trainer.id]
    free = problem.num_nodes - sum(sizes.values())
    would_add = f"would add {_amount(problem, step.gain)} {_when(problem)}"
    if size == 0 and free < trainer.min_nodes and trainer.min_nodes > 1:
        text = f"has no node: its minimum of {trainer.min_nodes} {would_add}, but only {free} are free"
        return Reason(Why.BELOW_MINIMUM, text, step.gain)
    text = f"has {_nodes(size)}: {_more(size, step)} {would_add}"
    loss, donor = min(
        (_loss_of_a_node(problem, other, sizes[other.id]), other.id)
        for other in problem.trainers
        if other is not trainer and sizes[other.id] > 0
    )
    if loss < step.gain * (1 - _ROUNDING):
        text += ", but every idle node is granted and no better split was found in the time given"
        return Reason(Why.NO_IDLE_NODE, text, step.gain, loss)
    text += f", but {donor}, which would miss it least, would lose {_amount(problem, loss)}"
    return Reason(Why.OTHERS_GAIN_MORE, text, step.gain, loss, donor)


def _loss_of_a_node(problem: Problem, trainer: Trainer, size: int) -> float:
    """What the trainer would lose with one node less, or with none where that is below its minimum."""
    smaller = size - 1 if size > trainer.min_nodes else 0
    return trainer_value(problem, trainer, size) - trainer_value(problem, trainer, smaller)


def _nodes(count: int) -> str:
    return {0: "no node", 1: "1 node"}.get(count, f"{count} nodes")


def _more(size: int, step: _Step) -> str:
    """The nodes of the step, as the subject of a sentence."""
    if step.end > size + 1:
        return _nodes(step.end)
    return _ORDINALS[size] if size < len(_ORDINALS) else f"node number {step.end}"


def _when(problem: Problem) -> str:
    return f"in the next {problem.look_ahead_s:g} s"


def _amount(problem: Problem, value: float) -> str:
    """A value of the objective, with its unit."""
    number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    weighted = "weighted " if any(trainer.weight != 1 for trainer in problem.trainers) else ""
    if problem.objective is Objective.SPEEDUP:
        return f"{number} {weighted}s of training on one node"
    return f"{number} {weighted}samples"
