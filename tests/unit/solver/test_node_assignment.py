"""Counts on nodes: no migration, own nodes first, then free ones, then those that others give up."""

import pytest

from oakum_solver.node_assignment import assign_nodes
from oakum_solver.pools import Composition
from oakum_solver.problem import Curve, NodeGroup, PlannedTrainer, Problem
from oakum_solver.value import ValueModel

CURVE = Curve(((1, 1.0),))
LINEAR = Curve(((1, 1.0), (2, 2.0)))


def group(nodes: str, owner: str | None = None, horizon_s: float = 600.0) -> NodeGroup:
    return NodeGroup(tuple(nodes.split()), owner=owner, horizon_s=horizon_s)


def placed(*groups: NodeGroup, a: Composition | None = None, b: Composition | None = None) -> tuple[str, str]:
    """Nodes of two trainers that get these counts of each pool."""
    problem = Problem((PlannedTrainer("a", CURVE), PlannedTrainer("b", CURVE)), groups)
    grants = assign_nodes(ValueModel(problem), (a or {}, b or {}))
    assert list(grants) == ["a", "b"]
    return " ".join(grants["a"]), " ".join(grants["b"])


def test_a_trainer_that_grows_keeps_its_nodes_and_adds_free_ones() -> None:
    assert placed(group("n1 n2", "a"), group("n3 n4"), a={0: 3}) == ("n1 n2 n3", "")


def test_a_trainer_that_shrinks_keeps_its_first_nodes() -> None:
    assert placed(group("n1 n2 n3", "a"), a={0: 2}) == ("n1 n2", "")


def test_a_trainer_that_stays_keeps_its_nodes_in_their_order() -> None:
    assert placed(group("n2", "b"), group("n9 n1", "a"), group("n3", "b"), a={0: 2}, b={0: 2}) == (
        "n9 n1",
        "n2 n3",
    )


def test_nodes_come_from_the_pools_that_were_chosen() -> None:
    groups = (group("n1 n2"), group("n3 n4", horizon_s=60.0), group("n5", "a", horizon_s=60.0))
    assert placed(*groups, a={0: 1, 1: 2}, b={0: 1}) == ("n5 n2 n3", "n1")


def test_a_shrinking_trainer_keeps_nodes_of_the_pools_that_were_chosen() -> None:
    groups = (group("n1 n2", "a"), group("n3 n4", "a", horizon_s=60.0))
    assert placed(*groups, a={1: 1}) == ("n3", "")


def test_a_node_that_one_trainer_releases_goes_to_another_after_the_free_ones() -> None:
    groups = (group("n1 n2", "a"), group("n3"))
    assert placed(*groups, a={0: 1}, b={0: 1}) == ("n1", "n3")
    assert placed(*groups, a={0: 1}, b={0: 2}) == ("n1", "n3 n2")


def test_a_trainer_gets_no_other_nodes_for_those_that_it_gives_up() -> None:
    assert placed(group("n1 n2 n3", "a"), group("n4 n5"), a={0: 1}, b={0: 4}) == ("n1", "n4 n5 n2 n3")


def test_the_first_trainer_takes_the_first_free_nodes() -> None:
    assert placed(group("n1"), group("n2 n3"), group("n4"), a={0: 2}, b={0: 2}) == ("n1 n2", "n3 n4")


def test_more_nodes_than_a_pool_has_are_never_granted() -> None:
    with pytest.raises(AssertionError, match="more nodes are granted than the pool has"):
        placed(group("n1"), group("n2", horizon_s=60.0), a={0: 2})


def test_the_trainer_that_a_stall_costs_most_takes_the_nodes_that_stay_the_longest() -> None:
    trainers = (
        PlannedTrainer("cheap", LINEAR, shrink_stall_s=1.0),
        PlannedTrainer("dear", LINEAR, shrink_stall_s=5.0),
    )
    problem = Problem(trainers, (group("n1 n2 n3 n4"),))
    assert assign_nodes(ValueModel(problem), ({0: 2}, {0: 2})) == {"cheap": ("n3", "n4"), "dear": ("n1", "n2")}


@pytest.mark.parametrize(
    ("grow_s", "shrink_s", "nodes"),
    [(1.0, 1.0, {"wide": ("n2", "n3", "n4"), "single": ("n1",)}),
     (18.0, 12.0, {"wide": ("n1", "n2", "n3"), "single": ("n4",)})],
    ids=["stalls are short", "stalls are long"],
)  # fmt: skip
def test_where_stalls_are_short_the_trainer_that_would_be_given_another_node_comes_first(
    grow_s: float, shrink_s: float, nodes: dict[str, tuple[str, ...]]
) -> None:
    """A node adds 1 to the single trainer and 0.5 to the wide one, which would have to give one up in exchange."""
    stalls = {"grow_stall_s": grow_s, "shrink_stall_s": shrink_s, "startup_s": 20.0}
    wide = PlannedTrainer("wide", Curve(((1, 1.0), (2, 1.9), (3, 2.4))), max_nodes=3, **stalls)
    problem = Problem(
        (wide, PlannedTrainer("single", CURVE, **stalls)), (group("n1 n2 n3 n4"),), look_ahead_s=60.0
    )
    assert assign_nodes(ValueModel(problem), ({0: 3}, {0: 1})) == nodes


def test_while_nodes_are_left_over_nobody_has_to_give_one_up() -> None:
    """Then a loss costs what it takes to let an idle node join, here more for the wide trainer."""
    stalls = {"grow_stall_s": 10.0, "shrink_stall_s": 0.0, "startup_s": 0.0}
    wide = PlannedTrainer("wide", Curve(((1, 1.0), (2, 1.5))), **stalls)
    trainers = (PlannedTrainer("single", CURVE, **stalls), wide)
    for spare, first in (("", "single"), (" n4", "wide")):
        problem = Problem(trainers, (group("n1 n2 n3" + spare),), look_ahead_s=1000.0)
        grants = assign_nodes(ValueModel(problem), ({0: 1}, {0: 2}))
        assert grants[first][0] == "n1"


def test_a_stall_is_weighed_in_the_trainer_s_own_scale_and_not_in_samples() -> None:
    fast, scales = Curve(((1, 9000.0), (2, 9001.0))), Curve(((1, 1.0), (2, 2.0)))
    problem = Problem((PlannedTrainer("fast", fast), PlannedTrainer("scales", scales)), (group("n1 n2 n3 n4"),))
    assert assign_nodes(ValueModel(problem), ({0: 2}, {0: 2})) == {"fast": ("n3", "n4"), "scales": ("n1", "n2")}
