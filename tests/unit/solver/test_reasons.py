"""The reason for a trainer's size, with the model's own numbers."""

from oakum_solver.objectives import Objective
from oakum_solver.plan import Reason, Why
from oakum_solver.problem import Curve, NodeGroup, Problem, Trainer
from oakum_solver.solve import solve

LINEAR = Curve(((8, 80.0),))


def trainer(id_: str, curve: Curve = LINEAR, **settings: float) -> Trainer:
    """No start-up and no stalls unless asked for, so that the numbers are round."""
    free = {"startup_s": 0.0, "grow_stall_s": 0.0, "shrink_stall_s": 0.0, "max_nodes": 8}
    return Trainer(id_, curve, **{**free, **settings})  # type: ignore[arg-type]


def reason(
    trainers: tuple[Trainer, ...], *groups: NodeGroup, objective: Objective = Objective.THROUGHPUT
) -> Reason:
    """The first trainer's reason over 60 s."""
    return solve(Problem(trainers, groups, look_ahead_s=60.0, objective=objective)).allocations[0].reason


def test_at_its_maximum() -> None:
    given = reason((trainer("a", max_nodes=2),), NodeGroup(("n1", "n2", "n3")))
    assert given == Reason(Why.AT_MAXIMUM, "has 2 nodes, its maximum")


def test_no_idle_node_at_all() -> None:
    assert reason((trainer("a"),)) == Reason(Why.NO_IDLE_NODE, "no node is idle")


def test_every_idle_node_already() -> None:
    given = reason((trainer("a"),), NodeGroup(("n1", "n2")))
    assert given == Reason(Why.NO_IDLE_NODE, "has every idle node: 2")


def test_a_flat_curve() -> None:
    flat = Curve(((1, 10.0), (2, 20.0)))
    given = reason((trainer("a", flat),), NodeGroup(("n1", "n2", "n3")))
    assert given == Reason(Why.CURVE_FLAT, "has 2 nodes: a third would not make it faster")


def test_a_stall_that_costs_more_than_the_node_adds() -> None:
    given = reason((trainer("a", grow_stall_s=40.0),), NodeGroup(("n1", "n2"), owner="a"), NodeGroup(("n3",)))
    assert given == Reason(
        Why.STALL_NOT_WORTH_IT,
        "has 2 nodes: a third would add 600 samples in the next 60 s, but the stall would cost 800 samples",
        gain=600.0,
        cost=800.0,
    )


def test_a_start_up_longer_than_the_look_ahead() -> None:
    given = reason((trainer("a", startup_s=90.0),), NodeGroup(("n1",)))
    assert given.why is Why.STALL_NOT_WORTH_IT
    assert given.text == "has no node: a first would still be starting up when the next 60 s are over"


def test_others_gain_more_names_who() -> None:
    fast = Curve(((8, 160.0),))
    given = reason((trainer("a"), trainer("b", fast), trainer("c", fast, weight=2)), NodeGroup(("n1", "n2")))
    assert given.why is Why.OTHERS_GAIN_MORE
    assert given.other == "c"
    assert given.text == (
        "has no node: a first would add 600 weighted samples in the next 60 s, "
        "but c, which would miss it least, would lose 2,400 weighted samples"
    )
    assert (given.gain, given.cost) == (600.0, 2400.0)


def test_below_the_minimum() -> None:
    given = reason((trainer("a", min_nodes=4), trainer("b")), NodeGroup(("n1", "n2", "n3")))
    assert given.why is Why.BELOW_MINIMUM
    assert given.text == (
        "has no node: its minimum of 4 would add 2,400 samples in the next 60 s, but only 0 are free"
    )


def test_the_objectives_unit_is_named() -> None:
    given = reason((trainer("a"), trainer("b", weight=2)), NodeGroup(("n1",)), objective=Objective.SPEEDUP)
    assert given.text == (
        "has no node: a first would add 60 weighted s of training on one node in the next 60 s, "
        "but b, which would miss it least, would lose 120 weighted s of training on one node"
    )
