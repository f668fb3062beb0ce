"""How long a hole lasts on, and which nodes are alike."""

import math

from oakum_solver.forecast import HoleForecast, IdleNode, group_nodes
from oakum_solver.problem import NodeGroup


def test_the_mean_of_what_longer_holes_had_still_to_come() -> None:
    forecast = HoleForecast((10.0, 100.0, 200.0, 300.0), least=1)
    assert forecast.remaining_s(age_s=0.0) == 152.5
    assert forecast.remaining_s(age_s=50.0) == 150.0
    assert forecast.remaining_s(age_s=250.0) == 50.0


def test_too_few_longer_holes_give_the_default() -> None:
    forecast = HoleForecast((10.0, 100.0, 200.0, 300.0), default_s=77.0, least=3)
    assert forecast.remaining_s(age_s=99.0) == (1 + 101 + 201) / 3
    assert forecast.remaining_s(age_s=100.0) == 77.0
    assert HoleForecast(default_s=77.0, least=0).remaining_s(age_s=0.0) == 77.0


def test_an_announced_start_outweighs_experience() -> None:
    forecast = HoleForecast((1000.0,) * 9)
    assert forecast.remaining_s(age_s=0.0, announced_in_s=30.0) == 30.0
    assert forecast.remaining_s(age_s=0.0, announced_in_s=-5.0) == 0.0


def test_only_the_newest_holes_count() -> None:
    forecast = HoleForecast((5.0, 5.0), keep=3, least=1).having_seen(20.0, 20.0, 20.0)
    assert forecast.past_s == (20.0, 20.0, 20.0)
    assert forecast.remaining_s(age_s=0.0) == 20.0


def test_nodes_that_leave_at_about_the_same_time_are_one_group() -> None:
    nodes = [IdleNode("n1", 70.0), IdleNode("n2", 650.0), IdleNode("n3", 110.0), IdleNode("n4", math.inf)]
    assert group_nodes(nodes) == (
        NodeGroup(("n1", "n3"), horizon_s=70.0),
        NodeGroup(("n2",), horizon_s=650.0),
        NodeGroup(("n4",), horizon_s=math.inf),
    )


def test_owner_and_type_separate_groups() -> None:
    nodes = [IdleNode("n1", 70.0), IdleNode("n2", 70.0, owner="a"), IdleNode("n3", 70.0, node_type="gpu")]
    assert [group.nodes for group in group_nodes(nodes)] == [("n1",), ("n2",), ("n3",)]
