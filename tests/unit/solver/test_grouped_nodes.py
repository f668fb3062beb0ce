"""Which idle nodes a plan counts as alike."""

import math

from oakum_solver.forecast import IdleNode, group_nodes
from oakum_solver.problem import NodeGroup


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
