"""Formulas from the literature for bubbles and memory of schedules, with which tests compare the simulation.

Chimera and its table of others: Li and Hoefler, arXiv:2107.06925, table 2 and section 3.5. Interleaved: Narayanan
et al., arXiv:2104.04473, section 2.2. Zero bubble (ZB-H1): Qi et al., arXiv:2401.10241, with equal times for F and
both halves of B.
D workers, N micro-batches, v stages on each worker, 2f pipes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Formula:
    """A bubble ratio: as text in the letters of the module's docstring, and as a number."""

    text: str
    value: float


@dataclass(frozen=True, slots=True)
class FormulaTerms:
    """The numbers that the formulas take."""

    num_workers: int
    num_micro_batches: int
    stages_per_worker: int = 1
    num_pipes: int = 2
    backward: Literal[1, 2] = 2
    """Time of a backward pass relative to a forward pass."""


def one_pipe_bubble(terms: FormulaTerms) -> Formula:
    """Bubble ratio (share of time in which workers are idle) of GPipe and of 1F1B."""
    size, number = terms.num_workers, terms.num_micro_batches
    return Formula("(D-1)/(N+D-1)", (size - 1) / (number + size - 1))


def gems_bubble(num_workers: int) -> Formula:
    """Bubble ratio of the GEMS schedule, for comparison: Oakum cannot build this schedule."""
    return Formula("(D-1)/(D+1/2)", (num_workers - 1) / (num_workers + 0.5))


def interleaved_bubble(terms: FormulaTerms) -> Formula | None:
    """Bubble ratio of the interleaved schedule; None unless N is a multiple of D."""
    size, number = terms.num_workers, terms.num_micro_batches
    if number % size:
        return None
    return Formula("(D-1)/(vN+D-1)", (size - 1) / (terms.stages_per_worker * number + size - 1))


def zero_bubble(terms: FormulaTerms) -> Formula | None:
    """Bubble ratio of the zero-bubble schedule ZB-H1; None unless B = 2F and N is a multiple of D."""
    size, number = terms.num_workers, terms.num_micro_batches
    if terms.backward != 2 or number % size:
        return None
    return Formula("(D-1)/(3vN+D-1)", (size - 1) / (3 * terms.stages_per_worker * number + size - 1))


def zero_bubble_v(terms: FormulaTerms) -> Formula | None:
    """Bubble ratio of the zero-bubble V schedule: that of `zero_bubble` for N >= 2D - 1, else None."""
    return zero_bubble(terms) if terms.num_micro_batches >= 2 * terms.num_workers - 1 else None


def chimera_bubble(terms: FormulaTerms) -> Formula | None:
    """Bubble ratio of Chimera: by concatenation with B = F, or by forward doubling (or N = D) with B = 2F.

    None unless N is a multiple of D; with B = 2F and more than two pipes, only for N = D.
    """
    size, number, pairs = terms.num_workers, terms.num_micro_batches, terms.num_pipes // 2
    if number % size:
        return None
    idle = size - 2 * pairs
    if terms.backward == 1:
        return Formula("(D-2f)/(2fN+D-2f)", idle / (2 * pairs * number + idle))
    if number == size or terms.num_pipes == 2:
        return Formula("(D-2f)/(1.5fN+D-2f)", idle / (1.5 * pairs * number + idle))
    return None


def gpipe_activations(terms: FormulaTerms) -> tuple[int, int]:
    """Micro-batches whose activations a worker of GPipe holds at its peak: (of the worker with the fewest, of the
    one with the most). Every worker holds all N."""
    return terms.num_micro_batches, terms.num_micro_batches


def one_f_one_b_activations(terms: FormulaTerms) -> tuple[int, int]:
    """As `gpipe_activations`, of 1F1B, for N >= D."""
    return 1, terms.num_workers


def chimera_activations(terms: FormulaTerms) -> tuple[int, int]:
    """As `gpipe_activations`, of Chimera by concatenation, for N >= D."""
    return terms.num_workers - terms.num_workers // terms.num_pipes + 1, terms.num_workers
