"""What a trainer is worth at n nodes over the look-ahead.

BFTrainer (arXiv:2106.12091, the MILP's objective) counts for trainer j that holds C nodes and is given n

    T * S_j(n) - r_j * (up_j  if n > C,  dw_j  if n < C),       r_j = S_j(C), 0 if C < min_nodes

with T the look-ahead, S_j the scalability curve and up_j, dw_j the grow and shrink stalls. We depart from
it in one place: a node that joins is not productive at once. While it starts up, for s = min(startup_s, T)
seconds, the trainer runs on at C. So

    f_j(n) = w_j * [ T * r_j                                          if n = C
                     s * r_j + (T - s) * S_j(n) - grow_stall_s * r_j  if n > C
                     T * S_j(n) - shrink_stall_s * r_j                if n < C ]

which is the published form at startup_s = 0. Starting from zero nodes, free there, costs the start-up here.
Giving up every node costs a shrink stall, as it does there: what keeps a plan from stopping one trainer to
start another that is worth as much. A trainer left with fewer than `min_nodes` by departing nodes does not
run: its r_j is 0, and it must grow to its minimum or give up the rest.

w_j is the trainer's weight, divided for `Objective.SPEEDUP` by its rate on one node.
"""

from __future__ import annotations

from oakum_solver.objectives import Objective
from oakum_solver.problem import Curve, Problem, Trainer

ValueTable = dict[str, dict[int, float]]
"""Trainer id -> allowed number of nodes, rising -> f_j, in the objective's unit. 0 is always allowed."""


def allowed_sizes(trainer: Trainer, num_nodes: int) -> list[int]:
    """0 and min..max nodes, as far as there are nodes."""
    return [0, *range(trainer.min_nodes, min(trainer.max_nodes, num_nodes) + 1)]


def worth_of_a_sample(problem: Problem, trainer: Trainer) -> float:
    """What one of the trainer's samples adds to the objective."""
    if problem.objective is Objective.SPEEDUP:
        return trainer.weight / _rate_per_node(trainer.curve)
    return trainer.weight


def current_rate(problem: Problem, trainer: Trainer) -> float:
    """r_j: samples/s that the trainer makes now, 0 below its minimum."""
    held = len(problem.held[trainer.id])
    return trainer.curve.rate(held) if held >= trainer.min_nodes else 0.0


def stall_samples(problem: Problem, trainer: Trainer, nodes: int) -> float:
    """Samples that the step from the present size to `nodes` costs in stalls."""
    held = len(problem.held[trainer.id])
    if nodes == held:
        return 0.0
    stall_s = trainer.grow_stall_s if nodes > held else trainer.shrink_stall_s
    return stall_s * current_rate(problem, trainer)


def trainer_value(problem: Problem, trainer: Trainer, nodes: int) -> float:
    """f_j(nodes), in the objective's unit, whether or not that many nodes exist."""
    look_ahead_s = problem.look_ahead_s
    starting_s = 0.0
    if nodes > len(problem.held[trainer.id]):
        starting_s = min(trainer.startup_s, look_ahead_s)
    samples = (
        starting_s * current_rate(problem, trainer)
        + (look_ahead_s - starting_s) * trainer.curve.rate(nodes)
        - stall_samples(problem, trainer, nodes)
    )
    return samples * worth_of_a_sample(problem, trainer)


def value_table(problem: Problem) -> ValueTable:
    """f_j for every trainer and every size it may be given."""
    return {
        trainer.id: {
            nodes: trainer_value(problem, trainer, nodes) for nodes in allowed_sizes(trainer, problem.num_nodes)
        }
        for trainer in problem.trainers
    }


def total_value(values: ValueTable, sizes: dict[str, int]) -> float:
    """Sum of f_j over the trainers at these sizes."""
    return sum(table[sizes[trainer]] for trainer, table in values.items())


def _rate_per_node(curve: Curve) -> float:
    """Samples/s on one node; where that is 0, the rate per node of the curve's first point that has one."""
    if curve.rate(1) > 0:
        return curve.rate(1)
    return next((rate / nodes for nodes, rate in curve.points if rate > 0), 1.0)
