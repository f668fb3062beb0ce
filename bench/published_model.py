"""BFTrainer's MILP as published (Liu, Kettimuthu, Papka and Foster, arXiv:2106.12091), for comparisons.

For trainer j and node n, with c_jn the present map, C_j = sum_n c_jn, breakpoints (N_ji, O_ji) from (0, 0) on, and
r_j the rate at C_j, 0 below the minimum:

    maximise    sum_j T S_j - r_j (up_j u_j + dw_j d_j)
    subject to  N_j = sum_n x_jn,   sum_j x_jn <= 1
                N_j = 0  or  jmin_j <= N_j <= jmax_j
                z_jn = x_jn xor c_jn,   sum_n z_jn = |N_j - C_j|      (nobody gains and loses nodes in one step)
                N_j = sum_i N_ji w_ji,  S_j = sum_i O_ji w_ji,  sum_i w_ji = 1,  at most two neighbouring w_ji > 0
                u_j = 1 iff N_j > C_j,   d_j = 1 iff N_j < C_j

Each "or", "iff" and absolute value is a pair of big-M constraints. The published M is N + 1. The sum of z less
-|N_j - C_j| reaches 2N, though, so that M forbids moves by more than (N + 1) / 2 nodes, and leaves states without
any solution where such a move is forced; 2N is the smallest M that cuts nothing off. Both are here.

SOS2 is modelled with a binary for each segment: CBC crashes on SOS2 sections.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import pulp

from oakum_solver.cbc import run_cbc
from oakum_solver.errors import MilpError
from oakum_solver.problem import PlannedTrainer, Problem
from oakum_solver.solver_process import MilpSolution

_COEFFICIENT = 1e4
"""Largest coefficient of the objective, as in `oakum_solver.milp`: CBC ignores absolute differences below 1e-5.
Without scaling, CBC takes as long or longer on most instances."""


@dataclass(frozen=True)
class PublishedAnswer:
    """The solver's result for the published model."""

    nodes: dict[str, tuple[str, ...]] | None
    """Trainer id -> nodes; None where the solver found no plan in time, or none exists."""
    value: float | None
    """The published objective at these nodes, recomputed from their numbers."""
    bound: float | None
    """Upper bound on all plans of this model; None where the solver gave none."""
    optimal: bool
    build_s: float
    solve_s: float
    """Seconds of the solver, with writing and reading its files."""
    num_binaries: int
    num_constraints: int
    failure: str = ""
    """Why there is no plan; empty if there is one."""

    @property
    def sizes(self) -> dict[str, int]:
        """Trainer id -> number of nodes."""
        return {trainer: len(nodes) for trainer, nodes in (self.nodes or {}).items()}


def published_big_m(problem: Problem) -> int:
    """M as published, which is too small for the constraints of the exclusive or."""
    return problem.num_nodes + 1


def corrected_big_m(problem: Problem) -> int:
    """The smallest M that excludes no plan, provided that no trainer's minimum is larger."""
    return 2 * problem.num_nodes


def solve_published(
    problem: Problem,
    big_m: int,
    time_limit_s: float,
    run: Callable[[pulp.LpProblem, float], MilpSolution] = run_cbc,
) -> PublishedAnswer:
    """Build the model and solve it by `run` (CBC or HiGHS) within `time_limit_s` seconds, to a gap of 0.

    Uses the problem's trainers, holders of nodes and look-ahead; the objective is always throughput.
    """
    started_s = time.perf_counter()
    model = _Model(problem, big_m)
    build_s = time.perf_counter() - started_s
    nodes, value, bound, optimal, failure = None, None, None, False, ""
    try:
        answer = run(model.lp, time_limit_s)
    except MilpError as error:
        failure = str(error)
    else:
        nodes = model.read(answer.values)
        value = published_value(problem, {trainer: len(granted) for trainer, granted in nodes.items()})
        optimal = answer.optimal
        bound = answer.bound / model.scale if answer.bound is not None else None
    return PublishedAnswer(
        nodes,
        value,
        value if optimal else bound,
        optimal,
        build_s,
        time.perf_counter() - started_s - build_s,
        sum(variable.cat == pulp.LpInteger for variable in model.lp.variables()),
        model.lp.numConstraints(),
        failure,
    )


def published_value(problem: Problem, sizes: dict[str, int]) -> float:
    """The published objective at these sizes."""
    value = 0.0
    for trainer in problem.trainers:
        before, after = len(problem.held[trainer.id]), sizes[trainer.id]
        stall_s = trainer.grow_stall_s * (after > before) + trainer.shrink_stall_s * (after < before)
        gained = problem.look_ahead_s * trainer.curve.rate(after) - stall_s * _rate_now(problem, trainer)
        value += trainer.weight * gained
    return value


def _rate_now(problem: Problem, trainer: PlannedTrainer) -> float:
    """r_j, in samples/s."""
    held = len(problem.held[trainer.id])
    return trainer.curve.rate(held) if held >= trainer.min_nodes else 0.0


def _breakpoints(trainer: PlannedTrainer) -> list[tuple[int, float]]:
    """(N_ji, O_ji) up to the trainer's maximum; a curve that ends earlier is continued flat."""
    points = [(0, 0.0), *trainer.curve.points]
    if points[-1][0] < trainer.max_nodes:
        points.append((trainer.max_nodes, points[-1][1]))
    return points


class _Model:
    """The model being built: one method for each line of the formulation."""

    def __init__(self, problem: Problem, big_m: int) -> None:
        self.problem = problem
        self.big_m = big_m
        self.scale = _COEFFICIENT / max(
            (problem.look_ahead_s * t.weight * t.curve.points[-1][1] for t in problem.trainers), default=1.0
        )
        self.lp = pulp.LpProblem("published", pulp.LpMaximize)
        self.nodes = [node for group in problem.groups for node in group.nodes]
        self.granted: dict[str, list[pulp.LpVariable]] = {}
        objective = []
        for index, trainer in enumerate(problem.trainers):
            size = self.lp.add_variable(f"N{index}", 0)
            self._map_nodes(index, trainer, size)
            self._bound_size(index, trainer, size)
            speed = self._follow_curve(index, trainer, size)
            stall_s = self._flag_rescale(index, trainer, size)
            gained = problem.look_ahead_s * speed - _rate_now(problem, trainer) * stall_s
            objective.append(self.scale * trainer.weight * gained)
        for x in zip(*self.granted.values(), strict=True):
            self.lp += pulp.lpSum(x) <= 1
        self.lp += pulp.lpSum(objective)

    def read(self, values: dict[str, float]) -> dict[str, tuple[str, ...]]:
        """Trainer id -> nodes, from CBC's values."""
        return {
            trainer: tuple(node for node, x in zip(self.nodes, row, strict=True) if values[x.name] > 0.5)
            for trainer, row in self.granted.items()
        }

    def _binary(self, name: str) -> pulp.LpVariable:
        return self.lp.add_variable(name, cat=pulp.LpBinary)

    def _map_nodes(self, index: int, trainer: PlannedTrainer, size: pulp.LpVariable) -> None:
        """x_jn, and z_jn = x_jn xor c_jn with sum_n z_jn = |N_j - C_j|."""
        held = set(self.problem.held[trainer.id])
        granted, changed = [], []
        for n, node in enumerate(self.nodes):
            x, z, c = self._binary(f"x{index}_{n}"), self._binary(f"z{index}_{n}"), int(node in held)
            self.lp += z <= x + c
            self.lp += z >= x - c
            self.lp += z >= c - x
            self.lp += z <= 2 - x - c
            granted.append(x)
            changed.append(z)
        self.granted[trainer.id] = granted
        self.lp += pulp.lpSum(granted) == size
        grows, moved, step = self._binary(f"g{index}"), pulp.lpSum(changed), size - len(held)
        self.lp += moved <= step + self.big_m * (1 - grows)
        self.lp += moved <= -step + self.big_m * grows

    def _bound_size(self, index: int, trainer: PlannedTrainer, size: pulp.LpVariable) -> None:
        """N_j = 0 or jmin_j <= N_j <= jmax_j."""
        runs = self._binary(f"a{index}")
        self.lp += size <= self.big_m * runs
        self.lp += size >= trainer.min_nodes - self.big_m * (1 - runs)
        self.lp += size <= trainer.max_nodes + self.big_m * (1 - runs)

    def _follow_curve(self, index: int, trainer: PlannedTrainer, size: pulp.LpVariable) -> pulp.LpVariable:
        """S_j, on the segment of the curve on which N_j lies."""
        points = _breakpoints(trainer)
        weights = [self.lp.add_variable(f"w{index}_{i}", 0, 1) for i in range(len(points))]
        segments = [self._binary(f"s{index}_{i}") for i in range(len(points) - 1)]
        speed = self.lp.add_variable(f"S{index}", 0)
        self.lp += pulp.lpSum(weights) == 1
        self.lp += pulp.lpSum(segments) == 1
        for w, touching in zip(weights, itertools.pairwise([None, *segments, None]), strict=True):
            self.lp += w <= pulp.lpSum(segment for segment in touching if segment is not None)
        self.lp += pulp.lpSum(nodes * w for (nodes, _), w in zip(points, weights, strict=True)) == size
        self.lp += pulp.lpSum(rate * w for (_, rate), w in zip(points, weights, strict=True)) == speed
        return speed

    def _flag_rescale(self, index: int, trainer: PlannedTrainer, size: pulp.LpVariable) -> pulp.LpAffineExpression:
        """u_j and d_j, as the seconds of stall that they cost."""
        up, down = self._binary(f"u{index}"), self._binary(f"d{index}")
        step = size - len(self.problem.held[trainer.id])
        self.lp += step <= self.big_m * up
        self.lp += step >= 1 - self.big_m * (1 - up)
        self.lp += -step <= self.big_m * down
        self.lp += -step >= 1 - self.big_m * (1 - down)
        return trainer.grow_stall_s * up + trainer.shrink_stall_s * down
