"""How long nodes take to exchange gradients, and whether that hides behind the compute of a step.

With parameter servers (Zou et al., arXiv:1709.06622) each of N_w workers pushes and pulls S_p bytes a step over
N_ps servers of bandwidth B_ps, which hides iff 2 S_p N_w / (N_ps B_ps) <= T_C. Today's trainers have no servers:
a ring or a torus of the nodes themselves sums the gradients, and each node sends and receives 2 S_p (N - 1) / N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from oakum_solver.advice.exact import not_negative, positive
from oakum_solver.errors import ProblemError


@dataclass(frozen=True, slots=True)
class Link:
    """Latency and bandwidth of a node's connection to the others. Raises `ProblemError` for a negative or
    infinite latency, or a bandwidth that is not above 0."""

    latency_s: float
    """Seconds that a message takes whatever its size."""
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        not_negative("latency_s", self.latency_s)
        positive("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s)


def num_servers(gradient_bytes: int, workers: int, server_bytes_per_s: float, compute_s: float) -> int:
    """N_ps = ceil(2 S_p N_w / (B_ps T_C)): the fewest parameter servers whose traffic hides behind the compute.

    `gradient_bytes` is S_p, `server_bytes_per_s` B_ps of one server, `compute_s` T_C of one worker's step. At
    least 1. Raises `ProblemError` for numbers that are too small or not finite.
    """
    if workers < 1:
        raise ProblemError(f"{workers} workers: expected at least 1")
    traffic = 2 * not_negative("gradient_bytes", gradient_bytes) * workers
    capacity = positive("server_bytes_per_s", server_bytes_per_s) * positive("compute_s", compute_s)
    return max(1, math.ceil(traffic / capacity))


def ring_s(gradient_bytes: int, nodes: int, link: Link) -> float:
    """Seconds of a ring all-reduce: 2 (N - 1) messages of S_p / N bytes, one after the other; 0 on one node."""
    each = gradient_bytes / nodes / link.bandwidth_bytes_per_s
    return 2 * (nodes - 1) * (link.latency_s + each)


def torus_s(gradient_bytes: int, row: int, column: int, link: Link) -> float:
    """Seconds of a torus all-reduce over `row` x `column` nodes (Mikami et al., arXiv:1811.05233, section 3.1).

    As many bytes as in a ring of all nodes, in 2 (X - 1) + 2 (Y - 1) messages: reduce-scatter along rows of X,
    all-reduce of a share of 1 / X along columns of Y, all-gather along rows.
    """
    share = gradient_bytes / row
    return ring_s(gradient_bytes, row, link) + (ring_s(math.ceil(share), column, link) if column > 1 else 0.0)


def nearest_grid(nodes: int) -> tuple[int, int]:
    """(nodes in a row, rows) of a grid of `nodes` nodes whose rows are as near to the square root as divisors
    allow; (nodes, 1) for a prime number."""
    divisors = [row for row in range(1, nodes + 1) if nodes % row == 0]
    row = min(divisors, key=lambda row: (abs(row - math.sqrt(nodes)), -row))
    return (nodes, 1) if row == 1 else (row, nodes // row)
