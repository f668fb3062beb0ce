"""What a plan maximises: what a trainer's samples over the look-ahead are worth.

With x the samples made in the look-ahead T (stalls taken off, so x may be negative), r1 the samples/s on one node,
rb those at the trainer's maximum, w its weight and x+ = max(x, 0):

    throughput   w x
    speedup      w x / r1
    weighted     w x / rb
    fair-share   w T log(1 + y / (T + a))            y = x / r1,  a = samples attained / r1
    deadline     w min(x+ / rho, T) + w e max(x - rho T, 0) / rb + w min(x, 0) / rb        e = 0.05

**fair-share** is proportional fairness (Kelly, Maulloo and Tan, J. Oper. Res. Soc. 49(3), 1998: maximise
sum_j w_j log of what j gets) over all that a trainer will have had, in seconds of one node. A second more is
worth w T / (T + a + y): it falls as 1 / (had + gets). Who has had little outbids who has had much until it has
caught up, and in the long run trainers have had seconds in proportion to their weights. Counting T as had by
everybody makes the first sample worth as much as in `speedup` instead of infinitely more. Below y = -(T + a) / 2,
towards the pole of the logarithm, the curve goes on straight.

**deadline** counts in full what a trainer needs to be on schedule, rho = remaining / max(deadline_in_s, T) but at
most rb, and anything beyond at 5 % of its best rate's price; T on schedule is worth w T for every trainer. Who is
late, or cannot make it, counts at the best rate's price all the way; who has no deadline or no end counts at 5 %
of it. Samples lost count at the best rate's price and not at 1 / rho: or the stall of a trainer far ahead of its
deadline would weigh more than its whole training.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oakum_solver.errors import ProblemError
from oakum_solver.expressions import ALLOWED, QUANTITIES, Program, Values, compile_formula, evaluate, names_in

SPARE_WORTH: Final = 0.05
"""What a sample that no deadline asks for is worth, of one made at the best rate for a deadline."""
_LEAST_S: Final = 1e-6
"""Seconds that keep a quotient finite at a look-ahead of 0."""
_BARE_WORD: Final = re.compile(r"[A-Za-z_][\w-]*")


class Objective(StrEnum):
    """What a plan maximises, summed over trainers and the look-ahead."""

    THROUGHPUT = "throughput"
    """weight x samples."""
    SPEEDUP = "speedup"
    """weight x samples, in units of the trainer's own rate on one node (BFTrainer's scaling efficiency)."""
    WEIGHTED = "weighted"
    """weight x samples, in units of the trainer's own best rate: weights alone decide between models."""
    FAIR_SHARE = "fair-share"
    """Proportional fairness over all that a trainer has had and gets."""
    DEADLINE = "deadline"
    """Keep as many trainers as possible on schedule for their deadlines."""


LINEAR: Final = (Objective.THROUGHPUT, Objective.SPEEDUP, Objective.WEIGHTED)
"""Objectives that are linear in samples, whatever a trainer has had before."""


@dataclass(frozen=True)
class Expression:
    """An administrator's own metric: a formula of `oakum_solver.expressions.QUANTITIES`.

    Expressions of the same text are equal. Raises `ProblemError` that names the part that is not allowed.
    """

    source: str
    """The text, its white space reduced; in parentheses where it would read as an objective's name."""
    program: Program = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        source = " ".join(self.source.split())
        program = compile_formula(source)
        object.__setattr__(self, "source", f"({source})" if source in list(Objective) else source)
        object.__setattr__(self, "program", program)

    def __str__(self) -> str:
        return self.source


Metric = Objective | Expression
"""What a trainer is worth at n nodes over the look-ahead."""


@dataclass(frozen=True, eq=False)
class Facts:
    """What a metric may know of each trainer beside its samples: scalars, or arrays (trainers, 1)."""

    weight: Values
    rate_one: Values
    """Samples/s on one node; where that is 0, the rate per node of the curve's first point that has one."""
    best_rate: Values
    """Samples/s at its maximum."""
    attained_samples: Values = 0.0
    remaining_samples: Values = math.inf
    """Infinite for an endless trainer."""
    deadline_in_s: Values = math.inf
    """Infinite without one, negative when it has passed."""
    waited_s: Values = 0.0
    priority: Values = 0.0


def worth(
    metric: Metric, facts: Facts, look_ahead_s: float, samples: NDArray[np.float64], nodes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """What each trainer is worth to the metric, in `unit(metric)`, where it makes `samples` on `nodes`.

    `samples` (net of stalls, so some are negative) and `nodes` broadcast with each other and with the facts, as
    (trainers, sizes) does. An objective never falls in samples; an expression may. Raises `ProblemError` where an
    expression has no finite value.
    """
    match metric:
        case Objective.THROUGHPUT:
            value = facts.weight * samples
        case Objective.SPEEDUP:
            value = facts.weight / _nonzero(facts.rate_one) * samples
        case Objective.WEIGHTED:
            value = facts.weight / _nonzero(facts.best_rate) * samples
        case Objective.FAIR_SHARE:
            value = _fair_share(facts, look_ahead_s, samples)
        case Objective.DEADLINE:
            value = _deadline(facts, look_ahead_s, samples)
        case Expression():
            value = _expression(metric, facts, look_ahead_s, samples, nodes)
    shape = np.broadcast_shapes(*(np.shape(given) for given in (samples, nodes, *vars(facts).values())))
    return np.asarray(value) if np.shape(value) == shape else np.broadcast_to(value, shape).copy()


def unit(metric: Metric) -> str:
    """What the metric counts, for a sentence: `would add 120 samples`."""
    match metric:
        case Objective.THROUGHPUT:
            return "samples"
        case Objective.SPEEDUP:
            return "s of training on one node"
        case Objective.WEIGHTED:
            return "s of training at the best rate"
        case Objective.FAIR_SHARE:
            return "s of training on one node, less for who has had more"
        case Objective.DEADLINE:
            return "s on schedule"
        case Expression():
            return "points"


def parse_metric(text: str) -> Metric:
    """The objective of that name, or else the expression, tried on trainers as every site has them.

    `str` of a metric gives a text that parses to it. Raises `ProblemError` where it is neither, or where the
    expression has no finite value for a trainer that stalls, waits for its first node, is endless or is late.
    """
    text = text.strip()
    if text in list(Objective):
        return Objective(text)
    if _BARE_WORD.fullmatch(text) and not set(text.split("-")) <= QUANTITIES.keys():
        raise ProblemError(
            f"objective {text!r}: expected {', '.join(Objective)}, or an expression such as "
            f"'weight * samples / rate_one'. An expression may use {ALLOWED}"
        )
    expression = Expression(text)
    _try_out(expression)
    return expression


def _nonzero(rate: Values) -> Values:
    """The rate; 1 where it is 0, which no samples are divided by."""
    return np.where(np.greater(rate, 0.0), rate, 1.0)


def _fair_share(facts: Facts, look_ahead_s: float, samples: NDArray[np.float64]) -> NDArray[np.float64]:
    rate_one = _nonzero(facts.rate_one)
    had_s = np.maximum(look_ahead_s + facts.attained_samples / rate_one, _LEAST_S)
    growth = samples / (rate_one * had_s)
    # The slope of log1p is 2 at -1/2, where the straight line takes over.
    utility = np.log1p(np.maximum(growth, -0.5)) + 2.0 * np.minimum(growth + 0.5, 0.0)
    value: NDArray[np.float64] = facts.weight * max(look_ahead_s, _LEAST_S) * utility
    return value


def _deadline(facts: Facts, look_ahead_s: float, samples: NDArray[np.float64]) -> NDArray[np.float64]:
    best_rate, remaining, due_in_s = _nonzero(facts.best_rate), facts.remaining_samples, facts.deadline_in_s
    due = np.less(due_in_s, math.inf) & np.isfinite(remaining) & np.greater(remaining, 0.0)
    still_s = np.where(due, np.maximum(due_in_s, max(look_ahead_s, _LEAST_S)), 1.0)
    asked_rate = np.where(due, remaining, 0.0) / still_s
    late = due & np.less_equal(due_in_s, 0.0)
    required_rate = np.where(late, best_rate, np.minimum(asked_rate, best_rate))
    made = np.maximum(samples, 0.0)
    needed = np.minimum(made, required_rate * look_ahead_s)
    on_schedule_s = needed / _nonzero(required_rate)
    spare_s = SPARE_WORTH * (made - needed) / best_rate
    lost_s = np.where(due, 1.0, SPARE_WORTH) * np.minimum(samples, 0.0) / best_rate
    value: NDArray[np.float64] = facts.weight * (on_schedule_s + spare_s + lost_s)
    return value


def _expression(
    expression: Expression,
    facts: Facts,
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
    """Which trainer and size the first such value belongs to, and what the expression saw there."""
    names = names_in(expression.program)
    seen = np.broadcast_arrays(value, quantities["nodes"], *(quantities[name] for name in names))
    first = tuple(np.argwhere(~np.isfinite(seen[0]))[0])
    result, size, *rest = (float(array[first]) for array in seen)
    where = ", ".join(f"{name} = {number:g}" for name, number in zip(names, rest, strict=True))
    row = f"trainer {first[0]} (counted from 0) at " if len(first) == 2 else ""
    return ProblemError(
        f"objective '{expression}' is {result:g} for {row}{size:g} nodes{', where ' if where else ''}{where}: "
        "expected a finite number at every size; guard it with max(...), clip(...) or a if c else b"
    )


def _try_out(expression: Expression) -> None:
    """Raise `ProblemError` now where the expression could not be planned with later."""
    column = np.array([[0.0], [1.0], [2.0], [3.0]])
    facts = Facts(
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
