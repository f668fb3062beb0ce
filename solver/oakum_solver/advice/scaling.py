"""How much faster n nodes are than one, from a step's compute T_C and its overhead T_O.

With a fixed global batch the compute of a step is shared among n nodes and the overhead is not, so a step takes
T_C / n + T_O. With a fixed batch for each node a step takes T_C + n T_O and trains n times as many samples. Both
give the same speed-up. Zou et al. (arXiv:1709.06622, section on the number of GPUs) write it in two ways that are
easily mixed up:

    R  = T_O / (T_C + T_O):   speed-up n / (1 + (n - 1) R),   efficiency >= a  iff  n <= 1 + (1 - a) / (a R)
    R' = T_O / T_C:           efficiency (1 + R') / (1 + n R'),   >= a  iff  n <= ((1 + R') / a - 1) / R'

R = R' / (1 + R'), and with that both say the same. An overhead of "10 %" read as R allows 3.5 nodes at an
efficiency of 80 %, read as R' 3.75. So everything here starts from T_C and T_O.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from oakum_solver.advice.exact import exact, not_negative, positive
from oakum_solver.errors import ProblemError


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The times T_C (compute) and T_O (overhead) of a step of the global batch on one node, in seconds. Raises
    `ProblemError` for times that are negative or not finite."""

    compute_s: float
    """T_C: seconds that nodes share among them; above 0."""
    overhead_s: float
    """T_O: seconds that each step takes whatever the number of nodes; at least 0."""

    def __post_init__(self) -> None:
        positive("compute_s", self.compute_s)
        not_negative("overhead_s", self.overhead_s)

    @property
    def share(self) -> float:
        """R = T_O / (T_C + T_O): the share of a step on one node that is overhead, from 0 to below 1."""
        return self.overhead_s / (self.compute_s + self.overhead_s)

    @property
    def ratio(self) -> float:
        """R' = T_O / T_C: the overhead beside the compute of a step on one node, 0 or more."""
        return self.overhead_s / self.compute_s

    def step_s(self, nodes: int) -> float:
        """Seconds of a step of the global batch on so many nodes."""
        return self.compute_s / nodes + self.overhead_s

    def speedup(self, nodes: int) -> float:
        """The rate on `nodes` nodes divided by the rate on one node."""
        return speedup_by_share(nodes, self.share)

    def efficiency(self, nodes: int) -> float:
        """The speed-up divided by the number of nodes: 1 where nothing is lost."""
        return efficiency_by_ratio(nodes, self.ratio)

    def most_nodes(self, efficiency: float) -> int | None:
        """The largest number of nodes with at least that efficiency, above 0 and at most 1; None if any number.

        The result is exact for the numbers' decimal forms. Raises `ProblemError` for another efficiency.
        """
        compute, overhead, asked = exact(self.compute_s), exact(self.overhead_s), _asked(efficiency)
        return None if overhead == 0 else int(_limit_by_share(overhead / (compute + overhead), asked))


def speedup_by_share(nodes: int, share: float) -> float:
    """The rate on n nodes beside the rate on one, n / (1 + (n - 1) R); R is the overhead's share of a step."""
    return nodes / (1 + (nodes - 1) * share)


def efficiency_by_ratio(nodes: int, ratio: float) -> float:
    """The speed-up for each of n nodes, (1 + R') / (1 + n R'), where R' is the overhead beside the compute."""
    return (1 + ratio) / (1 + nodes * ratio)


def limit_by_share(share: float, efficiency: float) -> float | None:
    """The number of nodes, not rounded, above which the efficiency is below `efficiency`: 1 + (1 - a) / (a R),
    with a = `efficiency` and R = `share`, the overhead's share of a step on one node. None if R is 0: the
    efficiency is then 1 on any number of nodes.

    Raises `ProblemError` for a negative share, or an efficiency that is not above 0 and at most 1.
    """
    fraction, asked = not_negative("R", share), _asked(efficiency)
    return None if fraction == 0 else float(_limit_by_share(fraction, asked))


def limit_by_ratio(ratio: float, efficiency: float) -> float | None:
    """The number of nodes, not rounded, above which the efficiency is below `efficiency`:
    ((1 + R') / a - 1) / R', with a = `efficiency` and R' = `ratio`, the overhead divided by the compute of a step
    on one node. None if R' is 0: the efficiency is then 1 on any number of nodes.

    Raises `ProblemError` for a negative ratio, or an efficiency that is not above 0 and at most 1.
    """
    fraction, asked = not_negative("R'", ratio), _asked(efficiency)
    return None if fraction == 0 else float(((1 + fraction) / asked - 1) / fraction)


def _limit_by_share(share: Fraction, efficiency: Fraction) -> Fraction:
    return 1 + (1 - efficiency) / (efficiency * share)


def _asked(efficiency: float) -> Fraction:
    if not 0 < efficiency <= 1:
        raise ProblemError(f"an efficiency of {efficiency} is asked for: give one above 0, at most 1, such as 0.8")
    return exact(efficiency)
