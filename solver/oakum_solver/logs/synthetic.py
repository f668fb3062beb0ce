"""Draws random idle logs of a given size from a model, for tests and benchmarks.

Nodes become idle in batches, when a job ends, and leave in batches, when jobs start: two nodes that became idle
together leave together with a probability of 80 %. Hole lengths are lognormal with a median of 10 min and a mean
of 20 min, so that a node's expected remaining idle time grows with the time for which it has been idle. Both agree
with what Liu et al. report of Summit ("BFTrainer", arXiv:2106.12091: mean residual life of 19, 30 and 38 min at an
age of 1 min, 10 min and 1 h; the model's is 20, 26 and 57 min). Batches begin at random times, with geometrically
distributed sizes and nodes chosen at random among the busy ones.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from oakum_solver.errors import ProblemError
from oakum_solver.logs.holes import HoleLog

_SIGMA = 1.2
_MEAN_HOLE_S = 600.0 * math.exp(_SIGMA**2 / 2)
_MAIN_PART = (1.0 + math.sqrt(0.6)) / 2
"""Each batch leaves in two parts. A node is in the main part with this probability p, so that two nodes are in the
same part with the probability p^2 + (1 - p)^2 = 0.8."""
_BATCHES_OF_BUSY = 4
"""Least number of batches of mean size that the busy nodes make up; larger batches would often lack nodes."""
_WARM_UP_HOLES = 20
"""Length of the discarded beginning, in mean hole lengths, after which the number of idle nodes is steady."""


def random_hole_log(num_nodes: int, days: float, events_per_day: float, idle_share: float, seed: int) -> HoleLog:
    """A random idle log in which nodes become idle or leave at about `events_per_day` times a day.

    On average about the share `idle_share` of the nodes is idle; less where it is so large that batches find too
    few busy nodes. Equal seeds give equal logs. Raises `ProblemError` for arguments that allow no log.
    """
    if num_nodes < 1 or not (0 < days < math.inf and 0 < events_per_day < math.inf and 0 < idle_share < 1):
        raise ProblemError(
            f"{num_nodes} nodes, {days} days, {events_per_day} events a day, an idle share of {idle_share}: "
            "expected at least one node, positive numbers and a share between 0 and 1"
        )
    rng = np.random.default_rng(seed)
    between_s, mean_nodes, mean_hole_s = _rates(num_nodes, idle_share, events_per_day / 86400.0)
    warm_up_s, duration_s = _WARM_UP_HOLES * mean_hole_s, days * 86400.0
    num_batches = rng.poisson((warm_up_s + duration_s) / between_s)
    start_s = np.sort(rng.uniform(0.0, warm_up_s + duration_s, num_batches))
    sizes = rng.geometric(1.0 / mean_nodes, num_batches)
    node, start_s, end_s = _draw_holes(rng, start_s, sizes, num_nodes, mean_hole_s)
    log = HoleLog(
        name=f"random-{num_nodes}-nodes-seed-{seed}",
        nodes=tuple(f"n{number:0{len(str(num_nodes - 1))}d}" for number in range(num_nodes)),
        node=node,
        start_s=start_s,
        end_s=end_s,
        duration_s=warm_up_s + duration_s,
    )
    settled = log.clipped(warm_up_s, warm_up_s + duration_s)
    return replace(settled, duration_s=duration_s, notes=("drawn from a model",))


def _rates(num_nodes: int, idle_share: float, events_per_s: float) -> tuple[float, float, float]:
    """(seconds between batches, mean nodes of a batch, mean length of a hole in seconds).

    Little's law: idle nodes = batches per second * mean nodes * mean length. How many events a batch of n
    nodes makes depends on n: 2, and one more unless all leave with the same part.
    """
    idle_nodes = idle_share * num_nodes
    most_nodes = max(1.0, (num_nodes - idle_nodes) / _BATCHES_OF_BUSY)
    mean_nodes = 1.0
    for _ in range(50):
        # E[p^n] of a geometric n with mean m is p / (m - (m - 1) p).
        alone = sum(p / (mean_nodes - (mean_nodes - 1.0) * p) for p in (_MAIN_PART, 1.0 - _MAIN_PART))
        between_s = (3.0 - alone) / events_per_s
        mean_nodes = min(most_nodes, max(1.0, idle_nodes * between_s / _MEAN_HOLE_S))
    # Where that would take batches of less than a node or of too many, the mean length gives way.
    return between_s, mean_nodes, idle_nodes * between_s / mean_nodes


def _draw_holes(
    rng: np.random.Generator,
    batch_start_s: NDArray[np.float64],
    sizes: NDArray[np.int64],
    num_nodes: int,
    mean_hole_s: float,
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """(node, start, end) of each hole, in order of start, drawn for batches of nodes that become idle at
    `batch_start_s`. `sizes` are the batches' numbers of nodes."""
    idle_until_s = np.zeros(num_nodes)
    nodes, ends = [np.empty(0, dtype=np.int32)], [np.empty(0)]
    lengths_s = rng.lognormal(math.log(mean_hole_s) - _SIGMA**2 / 2, _SIGMA, (len(sizes), 2))
    for now_s, size, (main_s, other_s) in zip(batch_start_s.tolist(), sizes.tolist(), lengths_s, strict=True):
        busy = np.flatnonzero(idle_until_s < now_s)
        batch = rng.choice(busy, min(size, len(busy)), replace=False)
        idle_until_s[batch] = now_s + np.where(rng.random(len(batch)) < _MAIN_PART, main_s, other_s)
        nodes.append(batch.astype(np.int32))
        ends.append(idle_until_s[batch])
    start_s = np.repeat(batch_start_s, [len(batch) for batch in nodes[1:]])
    return np.concatenate(nodes), start_s, np.concatenate(ends)
