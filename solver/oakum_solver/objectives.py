"""The objectives that a plan can maximise: each turns a trainer's samples over the look-ahead into worth.

Let x be the samples trained in the look-ahead of T seconds, stalls taken off (so x may be negative), r1 the
trainer's samples/s on one node, rb those on its maximum number of nodes, w its weight and x+ = max(x, 0). The
worth is then

    throughput   w x
    speedup      w x / r1
    weighted     w x / rb
    fair-share   w T log(1 + y / (T + a))            y = x / r1,  a = samples attained / r1
    deadline     w min(x+ / rho, T) + w e max(x - rho T, 0) / rb + w min(x, 0) / rb        e = 0.05

**fair-share** is proportional fairness (Kelly, Maulloo and Tan, J. Oper. Res. Soc. 49(3), 1998: maximise
sum_j w_j log of what j gets), applied to all samples of a trainer from its start to the end of the look-ahead, in
seconds of training on one node. One second more is worth w T / (T + a + y), so a trainer that has trained little
outbids one that has trained much until it has caught up; in the long run trainers get seconds in proportion to
their weights. Adding T to what every trainer has had makes the first sample worth as much as in `speedup` instead
of infinitely more. Below y = -(T + a) / 2 the function continues as a straight line, away from the logarithm's
pole.

**deadline** needs the rate at which a trainer is on schedule: rho = remaining samples / max(deadline_in_s, T), but
at most rb. Samples up to rho T count in full, so that T seconds on schedule are worth w T for every trainer;
samples beyond count 5 % of 1 / rb each. For a trainer that is late or cannot meet its deadline, rho is rb. A
trainer without a deadline or without an end counts 5 % of 1 / rb for each sample. Lost samples cost 1 / rb each
and not 1 / rho: otherwise the stall of a trainer far ahead of its deadline would weigh more than its whole
training.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oakum_solver.errors import ProblemError
from oakum_solver.expressions import ALLOWED, QUANTITIES, Program, Values, compile_formula, evaluate, names_in
from oakum_solver.named_objectives import POINTS, UNITS, Unit
from oakum_solver.named_objectives import NamedObjective as NamedObjective

SPARE_WORTH: Final = 0.05
"""e: worth of a sample that no deadline needs, relative to a sample made at the best rate for a deadline."""
_LEAST_S: Final = 1e-6
"""Least divisor in seconds, which keeps quotients finite for a look-ahead of 0."""
_BARE_WORD: Final = re.compile(r"[A-Za-z_][\w-]*")


LINEAR: Final = (NamedObjective.THROUGHPUT, NamedObjective.SPEEDUP, NamedObjective.WEIGHTED)
"""Objectives whose worth is linear in a trainer's samples."""


@dataclass(frozen=True)
class Expression:
    """An administrator's own objective: a formula in the quantities of `oakum_solver.expressions.QUANTITIES`.

    Two expressions with the same text are equal. Raises `ProblemError` that names the part that is not allowed.
    """

    source: str
    """The formula with single spaces; in parentheses where it would otherwise read as the name of an objective."""
    program: Program = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        source = " ".join(self.source.split())
        program = compile_formula(source)
        object.__setattr__(self, "source", f"({source})" if source in list(NamedObjective) else source)
        object.__setattr__(self, "program", program)

    def __str__(self) -> str:
        return self.source


Objective = NamedObjective | Expression
"""What a plan maximises: an objective known by name, or a formula."""


@dataclass(frozen=True, eq=False)
class TrainerFacts:
    """What an objective may use of each trainer besides its samples: scalars, or arrays of shape (trainers, 1)."""

    weight: Values
    rate_one: Values
    """Samples/s on one node; where that is 0, the rate per node of the curve's first point with a rate above 0."""
    best_rate: Values
    """Samples/s on the trainer's maximum number of nodes."""
    attained_samples: Values = 0.0
    remaining_samples: Values = math.inf
    """Infinite for an endless trainer."""
    deadline_in_s: Values = math.inf
    """Infinite without a deadline, negative after it."""
    waited_s: Values = 0.0
    priority: Values = 0.0


def worth(
    objective: Objective,
    facts: TrainerFacts,
    look_ahead_s: float,
    samples: NDArray[np.float64],
    nodes: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Worth of training `samples` on `nodes` nodes, in `unit(objective)`.

    `samples` are net of stalls and may be negative. `samples`, `nodes` and the facts broadcast, usually to the
    shape (trainers, sizes). Worth never falls in samples, except under an expression. Raises `ProblemError` where
    an expression has no finite value.
    """
    match objective:
        case NamedObjective.THROUGHPUT:
            value = facts.weight * samples
        case NamedObjective.SPEEDUP:
            value = facts.weight / _nonzero(facts.rate_one) * samples
        case NamedObjective.WEIGHTED:
            value = facts.weight / _nonzero(facts.best_rate) * samples
        case NamedObjective.FAIR_SHARE:
            value = _fair_share(facts, look_ahead_s, samples)
        case NamedObjective.DEADLINE:
            value = _deadline(facts, look_ahead_s, samples)
        case Expression():
            value = _expression(objective, facts, look_ahead_s, samples, nodes)
    shape = np.broadcast_shapes(*(np.shape(values) for values in (samples, nodes, *vars(facts).values())))
    return np.asarray(value) if np.shape(value) == shape else np.broadcast_to(value, shape).copy()


def unit(objective: Objective, weighted: bool = False) -> Unit:
    """The unit in which `worth` gives its values, for a sentence such as `would add 120 samples`. `weighted`: some
    trainer's weight is not 1."""
    known = POINTS if isinstance(objective, Expression) else UNITS[objective]
    return replace(known, notes=(*known.notes, "times its weight")) if weighted else known


def parse_objective(text: str) -> Objective:
    """The objective of the name `text`, or the expression that it spells.

    An expression is tried on made-up trainers: one that stalls, one that waits for its first node, an endless and
    a late one. `parse_objective(str(objective))` equals `objective`. Raises `ProblemError` where the text is
    neither a name nor a formula, or has no finite value for one of these trainers.
    """
    text = text.strip()
    if text in list(NamedObjective):
        return NamedObjective(text)
    if _BARE_WORD.fullmatch(text) and not set(text.split("-")) <= QUANTITIES.keys():
        raise ProblemError(
            f"objective {text!r}: expected {', '.join(NamedObjective)}, or an expression such as "
            f"'weight * samples / rate_one'. An expression may use {ALLOWED}"
        )
    expression = Expression(text)
    _try_out(expression)
    return expression


def _nonzero(rate: Values) -> Values:
    """The rate, or 1 where it is 0, as a divisor for samples: a trainer with rate 0 has 0 samples."""
    return np.where(np.greater(rate, 0.0), rate, 1.0)


def _fair_share(facts: TrainerFacts, look_ahead_s: float, samples: NDArray[np.float64]) -> NDArray[np.float64]:
    rate_one = _nonzero(facts.rate_one)
    had_s = np.maximum(look_ahead_s + facts.attained_samples / rate_one, _LEAST_S)
    growth = samples / (rate_one * had_s)
    # The slope of log1p is 2 at -1/2, where the straight line takes over.
    utility = np.log1p(np.maximum(growth, -0.5)) + 2.0 * np.minimum(growth + 0.5, 0.0)
    value: NDArray[np.float64] = facts.weight * max(look_ahead_s, _LEAST_S) * utility
    return value


def _deadline(facts: TrainerFacts, look_ahead_s: float, samples: NDArray[np.float64]) -> NDArray[np.float64]:
    best_rate, remaining, due_in_s = _nonzero(facts.best_rate), facts.remaining_samples, facts.deadline_in_s
    due = np.less(due_in_s, math.inf) & np.isfinite(remaining) & np.greater(remaining, 0.0)
    still_s = np.where(due, np.maximum(due_in_s, max(look_ahead_s, _LEAST_S)), 1.0)
    asked_rate = np.where(due, remaining, 0.0) / still_s
    late = due & np.less_equal(due_in_s, 0.0)
    required_rate = np.where(late, best_rate, np.minimum(asked_rate, best_rate))
    trained = np.maximum(samples, 0.0)
    needed = np.minimum(trained, required_rate * look_ahead_s)
    on_schedule_s = needed / _nonzero(required_rate)
    spare_s = SPARE_WORTH * (trained - needed) / best_rate
    lost_s = np.where(due, 1.0, SPARE_WORTH) * np.minimum(samples, 0.0) / best_rate
    value: NDArray[np.float64] = facts.weight * (on_schedule_s + spare_s + lost_s)
    return value


def _expression(
    expression: Expression,
    facts: TrainerFacts,
    look_ahead_s: float,
    samples: NDArray[np.float64],
    nodes: NDArray[np.int64],
) -> NDArray[np.float64]:
    per_s = 1.0 / look_ahead_s if look_ahead_s > 0 else 0.0
    rate = np.asarray(samples, dtype=np.float64) * per_s
    quantities: dict[str, Values] = {
        "samples": samples,
        "nodes": np.asarray(nodes, dtype=np.float64),
        "rate": rate,
        "speedup": rate / _nonzero(facts.rate_one),
        "rate_one": facts.rate_one,
        "best_rate": facts.best_rate,
        "weight": facts.weight,
        "priority": facts.priority,
        "attained": facts.attained_samples,
        "remaining": facts.remaining_samples,
        "deadline_in_s": facts.deadline_in_s,
        "waited_s": facts.waited_s,
        "look_ahead_s": look_ahead_s,
    }
    value = evaluate(expression.program, quantities)
    if not np.isfinite(value).all():
        raise _not_finite(expression, value, quantities)
    return value


def _not_finite(expression: Expression, value: NDArray[np.float64], quantities: dict[str, Values]) -> ProblemError:
    """An error that tells for which trainer and size the value is not finite, and the quantities there."""
    names = names_in(expression.program)
    arrays = np.broadcast_arrays(value, quantities["nodes"], *(quantities[name] for name in names))
    first = tuple(np.argwhere(~np.isfinite(arrays[0]))[0])
    result, size, *rest = (float(array[first]) for array in arrays)
    where = ", ".join(f"{name} = {number:g}" for name, number in zip(names, rest, strict=True))
    row = f"trainer {first[0]} (counted from 0) at " if len(first) == 2 else ""
    return ProblemError(
        f"objective '{expression}' is {result:g} for {row}{size:g} nodes{', where ' if where else ''}{where}: "
        "expected a finite number at every size; guard it with max(...), clip(...) or a if c else b"
    )


def _try_out(expression: Expression) -> None:
    """Raise `ProblemError`, which names the trainer's facts, if the expression has no finite value for one of
    the made-up trainers; else do nothing."""
    column = np.array([[0.0], [1.0], [2.0], [3.0]])
    facts = TrainerFacts(
        weight=1.0,
        rate_one=100.0,
        best_rate=5000.0,
        attained_samples=np.where(column == 0, 0.0, 1e6),
        remaining_samples=np.where(column == 1, math.inf, 1e5),
        deadline_in_s=np.where(column == 2, -3600.0, np.where(column == 3, 3600.0, math.inf)),
        waited_s=np.where(column == 0, 3600.0, 0.0),
    )
    samples = np.array([-500.0, 0.0, 1e4, 6e5])
    try:
        worth(expression, facts, 120.0, samples, np.array([0, 0, 1, 64]))
    except ProblemError as error:
        raise ProblemError(f"tried on made-up trainers: {error}") from None
