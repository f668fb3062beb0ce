"""What the literature says of schedules, to be held against the simulation.

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
    """A bubble ratio, in the letters above and for the numbers given."""

    text: str
    value: float


def bubble_formula(
    name: str,
    num_workers: int,
    num_micro_batches: int,
    *,
    stages_per_worker: int = 1,
    num_pipes: int = 2,
    backward: Literal[1, 2] = 2,
) -> Formula | None:
    """The bubble ratio where a backward pass takes `backward` times a forward pass; None where none is known.

    Chimera's are of the concatenation with B = F, of N = D or forward doubling with B = 2F; N is a multiple of D.
    """
    size, number, pairs = num_workers, num_micro_batches, num_pipes // 2
    match name:
        case "gpipe" | "1f1b":
            return Formula("(D-1)/(N+D-1)", (size - 1) / (number + size - 1))
        case "gems":
            return Formula("(D-1)/(D+1/2)", (size - 1) / (size + 0.5))
        case "interleaved" if number % size == 0:
            return Formula("(D-1)/(vN+D-1)", (size - 1) / (stages_per_worker * number + size - 1))
        case "zero-bubble" | "zero-bubble-v" if backward == 2 and number % size == 0:
            if name == "zero-bubble-v" and number < 2 * size - 1:
                return None
            return Formula("(D-1)/(3vN+D-1)", (size - 1) / (3 * stages_per_worker * number + size - 1))
        case "chimera" if number % size == 0 and backward == 1:
            idle = size - 2 * pairs
            return Formula("(D-2f)/(2fN+D-2f)", idle / (2 * pairs * number + idle))
        case "chimera" if number % size == 0 and (number == size or num_pipes == 2):
            idle = size - 2 * pairs
            return Formula("(D-2f)/(1.5fN+D-2f)", idle / (1.5 * pairs * number + idle))
        case _:
            return None


def activation_range(
    name: str, num_workers: int, num_micro_batches: int, *, num_pipes: int = 2
) -> tuple[int, int]:
    """The fewest and the most micro-batches that a worker holds at once: N >= D, Chimera by concatenation."""
    if name == "gpipe":
        return (num_micro_batches, num_micro_batches)
    if name == "1f1b":
        return (1, num_workers)
    if name == "chimera":
        return (num_workers - num_workers // num_pipes + 1, num_workers)
    raise ValueError(f"no formula for the activations of {name!r}: ask for gpipe, 1f1b or chimera")
