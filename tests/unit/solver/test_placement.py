"""Sizes on nodes: no migration, and nodes that leave together stay together."""

import math

from oakum_solver.place import place
from oakum_solver.problem import Curve, NodeGroup, Problem, Trainer

CURVE = Curve(((1, 1.0),))


def problem(*groups: NodeGroup) -> Problem:
    return Problem((Trainer("a", CURVE), Trainer("b", CURVE)), groups)


def group(nodes: str, horizon_s: float = math.inf, owner: str | None = None) -> NodeGroup:
    return NodeGroup(tuple(nodes.split()), owner=owner, horizon_s=horizon_s)


def test_a_trainer_that_grows_keeps_its_nodes_and_adds_free_ones() -> None:
    asked = problem(group("n1 n2", owner="a"), group("n3 n4"))
    assert place(asked, {"a": 3, "b": 0}) == {"a": ("n1", "n2", "n3"), "b": ()}


def test_a_trainer_that_shrinks_gives_up_the_nodes_that_leave_first() -> None:
    asked = problem(group("n1", 60, "a"), group("n2", 600, "a"), group("n3", 300, "a"))
    assert place(asked, {"a": 2, "b": 0})["a"] == ("n2", "n3")


def test_a_newcomer_takes_the_longest_hole() -> None:
    asked = problem(group("n1", 60), group("n2", 600), group("n3", 300))
    assert place(asked, {"a": 1, "b": 0})["a"] == ("n2",)


def test_a_newcomer_takes_one_group_where_that_costs_no_time() -> None:
    asked = problem(group("n1", 600), group("n2 n3 n4", 300), group("n5 n6 n7", 60))
    assert place(asked, {"a": 2, "b": 0})["a"] == ("n2", "n3")


def test_a_newcomer_spreads_over_groups_rather_than_take_a_short_one() -> None:
    asked = problem(group("n1", 600), group("n2", 300), group("n3 n4", 60))
    assert place(asked, {"a": 2, "b": 0})["a"] == ("n1", "n2")


def test_a_node_that_one_trainer_releases_goes_to_another_after_the_free_ones() -> None:
    asked = problem(group("n1 n2", owner="a"), group("n3"))
    assert place(asked, {"a": 1, "b": 1}) == {"a": ("n1",), "b": ("n3",)}
    assert place(asked, {"a": 1, "b": 2}) == {"a": ("n1",), "b": ("n3", "n2")}


def test_the_trainer_that_needs_most_chooses_first() -> None:
    asked = problem(group("n1 n2", 600), group("n3", 60))
    assert place(asked, {"a": 1, "b": 2}) == {"a": ("n3",), "b": ("n1", "n2")}
