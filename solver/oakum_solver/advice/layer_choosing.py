"""The choice of algorithms that is told: found by two methods where both finish."""

from __future__ import annotations

from dataclasses import dataclass

from oakum_solver.advice.layer_options import LayerChoice, Layers
from oakum_solver.advice.layer_programme import TooManyStatesError, choose_by_dynamic_programme, choose_by_milp
from oakum_solver.errors import MilpError

_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class AlgorithmChoice:
    """The fastest choice within the memory, and how it was found."""

    choice: LayerChoice | None
    """None where no choice fits."""
    by: tuple[str, ...]
    """The methods that found it, of `CBC` and `dynamic programme`."""


def choose_algorithms(layers: Layers, left_bytes: int, *, shared: bool = True) -> AlgorithmChoice:
    """The fastest option of each layer within `left_bytes`, by the dynamic programme and by CBC.

    A method that does not finish is left out; a disagreement of the two is an error. Raises `MilpError` where
    neither finishes or they disagree, and `ProblemError` for a layer without options.
    """
    exact: LayerChoice | None = None
    methods: list[str] = []
    try:
        exact = choose_by_dynamic_programme(layers, left_bytes, shared=shared)
        methods.append("dynamic programme")
    except TooManyStatesError:
        pass
    try:
        by_milp = choose_by_milp(layers, left_bytes, shared=shared)
        methods.append("CBC")
    except MilpError:
        if not methods:
            raise
        return AlgorithmChoice(exact, tuple(methods))
    if len(methods) == 1:
        return AlgorithmChoice(by_milp, tuple(methods))
    if (exact is None) != (by_milp is None) or (
        exact is not None
        and by_milp is not None
        and abs(exact.seconds - by_milp.seconds) > _SAME * exact.seconds + 1e-12
    ):
        raise MilpError(f"CBC chooses {by_milp} and the dynamic programme {exact}: one of them is wrong")
    return AlgorithmChoice(exact, tuple(methods))
