"""Jobs as a main scheduler's users submit them: the workload model of Lublin and Feitelson.

"The workload on parallel supercomputers: modeling the characteristics of rigid jobs", JPDC 63(11), 2003,
with the published parameters for typeless data (interactive and batch jobs together). The model's daily cycle of
arrivals is left out. The model has no run-time estimates; here an estimate is the run time times a uniform random
number from 1 to 3. That is an assumption: users overestimate, by a factor that differs from site to site.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from oakum_solver.errors import ProblemError

_SERIAL_PROBABILITY = 0.244
_POWER_OF_TWO_PROBABILITY = 0.576
_LOW, _MEDIUM, _LOW_PROBABILITY = 0.8, 4.5, 0.86
"""log2 of a job's size is uniform from low to medium with the probability `_LOW_PROBABILITY`, else uniform from
medium to the machine's size."""
_SHORT_GAMMA, _LONG_GAMMA = (4.2, 0.94), (312.0, 0.03)
"""(shape, scale) of the gamma distributions of ln(run time in seconds), for short and for long jobs."""
_SHORT_PER_NODE, _SHORT_OF_NONE = -0.0054, 0.78
"""Slope and intercept of the share of short jobs, which falls linearly with the job's nodes."""
_LONGEST_LN_S = 12.0
_ARRIVAL_GAMMA = (10.2303 * 1.0225, 0.4871)
"""(shape, scale) of the gamma distribution of ln(seconds between arrivals)."""
_LONGEST_BETWEEN_LN_S = 13.0
_MOST_OVERESTIMATED = 3.0


@dataclass(frozen=True, slots=True)
class ModelJob:
    """A job drawn from the model: when it is submitted, how long it runs, and on how many nodes."""

    id: int
    """1, 2, 3, ... in order of arrival."""
    submit_s: float
    """Seconds since the model's start."""
    run_s: float
    nodes: int
    requested_s: float
    """The user's run-time estimate, never below the run time."""


def lublin_jobs(num_nodes: int, seed: int, arrival_stretch: float = 1.0) -> Iterator[ModelJob]:
    """Yield jobs for a machine of `num_nodes` nodes without end; equal seeds yield equal jobs.

    `arrival_stretch` multiplies the times between arrivals and so sets the load. At 1 the load is about 0.6 for a
    machine of 128 nodes and 1.5 for one of 4 nodes. Raises `ProblemError` for a machine without nodes.
    """
    if num_nodes < 1:
        raise ProblemError(f"a machine of {num_nodes} nodes: expected at least 1")
    return _jobs(num_nodes, random.Random(seed), arrival_stretch)


def _jobs(num_nodes: int, rng: random.Random, arrival_stretch: float) -> Iterator[ModelJob]:
    submit_s = 0.0
    for id_ in itertools.count(1):
        submit_s += arrival_stretch * _exp_gamma_s(rng, _ARRIVAL_GAMMA, _LONGEST_BETWEEN_LN_S)
        nodes = _nodes(rng, num_nodes)
        run_s = _run_s(rng, nodes)
        yield ModelJob(id_, submit_s, run_s, nodes, run_s * rng.uniform(1.0, _MOST_OVERESTIMATED))


def _nodes(rng: random.Random, num_nodes: int) -> int:
    """Draw a size: 1, a power of two, or any, by a two-stage uniform distribution of log2 (section 3.1 of the
    paper)."""
    kind = rng.random()
    if kind <= _SERIAL_PROBABILITY:
        return 1
    high = math.log2(num_nodes)
    low = min(_LOW, high)
    # The paper asks for a medium in [high - 3.5, high - 1.5]; on a machine of a few nodes that lies below
    # low.
    medium = max(low, min(max(_MEDIUM, high - 3.5), high - 1.5))
    in_low = rng.random() <= _LOW_PROBABILITY
    log2_nodes = rng.uniform(low, medium) if in_low else rng.uniform(medium, high)
    if kind <= _SERIAL_PROBABILITY + _POWER_OF_TWO_PROBABILITY:
        log2_nodes = round(log2_nodes)
    return min(num_nodes, max(1, round(2**log2_nodes)))


def _run_s(rng: random.Random, nodes: int) -> float:
    """Draw a run time: its logarithm is hyper-gamma distributed, with more long run times for larger jobs."""
    short = min(1.0, max(0.0, _SHORT_PER_NODE * nodes + _SHORT_OF_NONE))
    gamma = _SHORT_GAMMA if rng.random() <= short else _LONG_GAMMA
    return _exp_gamma_s(rng, gamma, _LONGEST_LN_S)


def _exp_gamma_s(rng: random.Random, gamma: tuple[float, float], longest_ln_s: float) -> float:
    """Draw seconds whose natural logarithm is gamma distributed; draw anew while it exceeds `longest_ln_s`."""
    while (ln_s := rng.gammavariate(*gamma)) > longest_ln_s:
        pass
    return math.exp(ln_s)
