"""What a plan is worth and how good it is, in words. API, page and command line all tell it from here."""

from __future__ import annotations

from oakum_solver.named_objectives import POINTS, UNITS, NamedObjective, Unit
from oakum_solver.wording import amount, duration

_WHOLE_FROM_S = 100.0
"""From here on amounts have no decimals."""
_FOUND_BY = {
    "greedy": "the greedy search",
    "exact": "dynamic programming",
    "prices": "Lagrangian prices",
    "cbc": "CBC",
    "highs": "HiGHS",
    "equal-share": "equal shares",
}


def unit_of(objective: str) -> str:
    """The unit of the values of plans under the objective, told by its text."""
    return str(_unit(objective))


def quality_of(objective: str, value: float, bound: float, *, optimal: bool) -> str:
    """How good the plan is proven to be: `the best possible`, or how far below the best it may be."""
    if optimal or bound <= value:
        return "the best possible"
    gap = (bound - value) / max(abs(bound), 1e-12)
    if gap >= 1:
        return f"the best possible is worth at most {amount(bound)} {_unit(objective).short}"
    return f"at most {amount(max(100 * gap, 0.01))} % below the best possible"


def worth_of(objective: str, value: float, look_ahead_s: float) -> str:
    """What the plan is worth, whose values were added up, and over how long a time."""
    whose = "models" if objective == NamedObjective.THROUGHPUT else "trainers"
    # With as many digits as the value, which is often as many seconds.
    ahead = f"{amount(look_ahead_s)} s" if look_ahead_s < _WHOLE_FROM_S else duration(look_ahead_s)
    over = f" over the next {ahead}" if look_ahead_s > 0 else ""
    return f"{amount(value)} {unit_of(objective)}{over}, the sum over all {whose}, each times its weight"


def found(solver: str, solve_s: float) -> str:
    """Which method has found the plan, and in what time."""
    return f"found by {_FOUND_BY.get(solver, solver)} in {duration(solve_s)}"


def _unit(objective: str) -> Unit:
    return UNITS[NamedObjective(objective)] if objective in list(NamedObjective) else POINTS
