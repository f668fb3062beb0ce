"""f_j(n), worked out by hand."""

import pytest

from oakum_solver.objectives import Objective
from oakum_solver.problem import Curve, NodeGroup, Problem, Trainer
from oakum_solver.value import allowed_sizes, trainer_value, value_table

CURVE = Curve(((1, 100.0), (2, 180.0), (4, 300.0)))


def problem(held: int, objective: Objective = Objective.THROUGHPUT, **trainer: float) -> Problem:
    """One trainer that holds `held` of four nodes, looked at for 100 s."""
    settings = {"min_nodes": 1, "max_nodes": 4, "grow_stall_s": 3.0, "shrink_stall_s": 2.0, "startup_s": 10.0}
    nodes = ("n1", "n2", "n3", "n4")
    return Problem(
        trainers=(Trainer("a", CURVE, **{**settings, **trainer}),),  # type: ignore[arg-type]
        groups=(NodeGroup(nodes[:held], owner="a"), NodeGroup(nodes[held:])),
        look_ahead_s=100.0,
        objective=objective,
    )


def worth(problem: Problem, nodes: int) -> float:
    return trainer_value(problem, problem.trainers[0], nodes)


def test_staying_costs_nothing() -> None:
    assert worth(problem(held=2), 2) == 100 * 180


def test_growing_counts_the_new_rate_after_the_start_up_and_pays_the_stall_at_the_old_rate() -> None:
    assert worth(problem(held=2), 4) == 10 * 180 + 90 * 300 - 3 * 180


def test_shrinking_pays_its_stall_at_the_old_rate() -> None:
    assert worth(problem(held=2), 1) == 100 * 100 - 2 * 180


def test_giving_up_every_node_pays_a_shrink_stall() -> None:
    assert worth(problem(held=2), 0) == -2 * 180


def test_starting_from_nothing_pays_the_start_up_and_no_stall() -> None:
    assert worth(problem(held=0), 1) == 90 * 100


def test_without_start_up_the_value_is_the_published_one() -> None:
    assert worth(problem(held=2, startup_s=0.0), 4) == 100 * 300 - 3 * 180


def test_a_start_up_longer_than_the_look_ahead_leaves_no_gain() -> None:
    assert worth(problem(held=0, startup_s=500.0), 4) == 0.0


def test_a_trainer_below_its_minimum_has_no_rate_to_lose() -> None:
    below = problem(held=1, min_nodes=2)
    assert worth(below, 0) == 0.0
    assert worth(below, 2) == 90 * 180


def test_speedup_counts_in_units_of_the_rate_on_one_node() -> None:
    assert worth(problem(held=2, objective=Objective.SPEEDUP), 2) == pytest.approx(100 * 1.8)


def test_speedup_of_a_curve_that_is_flat_at_zero_first_takes_its_first_rate_per_node() -> None:
    trainer = Trainer("a", Curve(((2, 0.0), (4, 40.0))), max_nodes=4, startup_s=0.0)
    asked = Problem((trainer,), (NodeGroup(("n1",)),), look_ahead_s=100.0, objective=Objective.SPEEDUP)
    assert trainer_value(asked, trainer, 4) == pytest.approx(100 * 4.0)


def test_a_weight_multiplies_the_value() -> None:
    assert worth(problem(held=2, weight=2.5), 2) == 2.5 * 100 * 180


def test_allowed_are_zero_and_the_minimum_up_to_the_nodes_there_are() -> None:
    trainer = Trainer("a", CURVE, min_nodes=2, max_nodes=8)
    assert allowed_sizes(trainer, num_nodes=4) == [0, 2, 3, 4]
    assert allowed_sizes(trainer, num_nodes=1) == [0]


def test_the_table_holds_every_allowed_size() -> None:
    assert value_table(problem(held=0, min_nodes=3)).keys() == {"a"}
    assert list(value_table(problem(held=0, min_nodes=3))["a"]) == [0, 3, 4]
