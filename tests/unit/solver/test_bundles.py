"""Trainers whose fragments have several slots of one host each."""

from dataclasses import replace
from random import Random

import pytest

from cells import each
from oakum_solver.bundles import possible_sizes
from oakum_solver.errors import InfeasiblePlanError, ProblemError
from oakum_solver.plan import Plan, Why
from oakum_solver.problem import Bundle, Curve, Host, NodeGroup, PlannedTrainer, Problem
from oakum_solver.solve import POLICIES, Policy, solve
from oakum_solver.verify import verify


def trainer(id_: str, bundle: Bundle, *sizes: int, rate: float = 1.0, **settings: object) -> PlannedTrainer:
    """Linear, without stalls or start-up."""
    free = {"startup_s": 0.0, "grow_stall_s": 0.0, "shrink_stall_s": 0.0}
    bounds = {"min_nodes": sizes[0], "max_nodes": sizes[-1]} if sizes else {}
    curve = Curve(((1, rate), (64, 64 * rate)))
    return PlannedTrainer(id_, curve, sizes=sizes, bundle=bundle, **{**free, **bounds, **settings})  # type: ignore[arg-type]


def slots(node: str, first: int, last: int) -> tuple[str, ...]:
    return tuple(f"{node}:{number}" for number in range(first, last + 1))


def granted(plan: Plan) -> dict[str, list[str]]:
    return {allocation.trainer: sorted(allocation.nodes) for allocation in plan.allocations}


def shared_nodes(num: int, *groups: NodeGroup, size: int = 4) -> tuple[Host, ...]:
    idle = [node for group in groups for node in group.nodes]
    names = [f"n{number}" for number in range(1, num + 1)]
    return tuple(Host(tuple(node for node in idle if node.startswith(f"{name}:")), size) for name in names)


@each("policy", POLICIES)
def test_a_bundle_is_never_made_of_slots_of_two_nodes(policy: Policy) -> None:
    free = NodeGroup((*slots("n1", 0, 2), *slots("n2", 0, 2)))
    plan = solve(Problem((trainer("a", 2, 2, 4, 6),), (free,), hosts=shared_nodes(2, free)), policy)
    got = granted(plan)["a"]
    assert len(got) == 4
    assert sum(node.startswith("n1:") for node in got) == 2


@each("policy", POLICIES)
def test_whole_nodes_are_those_of_which_every_slot_is_idle(policy: Policy) -> None:
    free = NodeGroup((*slots("n1", 0, 3), *slots("n2", 0, 2), *slots("n3", 0, 3)))
    plan = solve(Problem((trainer("a", "host", 4, 8),), (free,), hosts=shared_nodes(3, free)), policy)
    assert granted(plan)["a"] == [*slots("n1", 0, 3), *slots("n3", 0, 3)]


@each("policy", POLICIES)
def test_single_slots_are_put_where_no_bundle_fits(policy: Policy) -> None:
    free = NodeGroup((*slots("n1", 0, 3), *slots("n2", 0, 0)))
    both = trainer("a", 4, 4), trainer("b", 1, max_nodes=1, rate=0.1)
    plan = solve(Problem(both, (free,), hosts=shared_nodes(2, free)), policy)
    assert granted(plan) == {"a": [*slots("n1", 0, 3)], "b": ["n2:0"]}


def test_a_node_is_cleared_of_single_slots_where_a_bundle_is_worth_more() -> None:
    """In numbers of slots six are free, but only where b gives its own up has a node four together."""
    held = NodeGroup(("n1:0", "n2:0"), owner="b")
    free = NodeGroup((*slots("n1", 1, 3), *slots("n2", 1, 3)))
    both = trainer("a", 4, 4, 8, rate=1.0), trainer("b", 1, max_nodes=2, rate=0.1)
    problem = Problem(both, (held, free), hosts=shared_nodes(2, held, free))
    plan = solve(problem)
    assert (len(granted(plan)["a"]), granted(plan)["b"], plan.optimal) == (8, [], True)
    dearer = replace(problem, trainers=(both[0], replace(both[1], weight=1000.0)))
    plan = solve(dearer)
    assert (granted(plan)["a"], granted(plan)["b"], plan.optimal) == ([], ["n1:0", "n2:0"], True)


@each("policy", ("milp", "greedy"))
def test_a_trainer_keeps_its_bundles_whole_when_it_shrinks(policy: Policy) -> None:
    held = NodeGroup(slots("n1", 0, 3), owner="a")
    host = Host(held.nodes, 4, (("n1:0", "n1:2"), ("n1:1", "n1:3")))
    both = trainer("a", 2, 2, 4, rate=0.5), trainer("b", 1, max_nodes=2, rate=1.0, weight=9.0)
    plan = solve(Problem(both, (held,), hosts=(host,)), policy)
    assert granted(plan) == {"a": ["n1:0", "n1:2"], "b": ["n1:1", "n1:3"]}


def test_it_is_said_that_the_free_slots_are_on_different_nodes() -> None:
    held = NodeGroup(("n1:0", "n2:0"), owner="b")
    free = NodeGroup((*slots("n1", 1, 3), *slots("n2", 1, 3)))
    both = trainer("a", 4, 4, 8, rate=0.1), trainer("b", 1, max_nodes=2, rate=1.0, weight=1000.0)
    plan = solve(Problem(both, (held, free), hosts=shared_nodes(2, held, free)))
    reason = plan.allocations[0].reason
    assert reason.why is Why.BELOW_NEXT_SIZE
    assert reason.text.endswith(
        "a fragment of it needs 4 slots of one node, and of the 6 free slots no node has more than 3"
    )


def test_where_too_few_slots_are_idle_at_all_the_given_limit_is_the_reason() -> None:
    free = NodeGroup(slots("n1", 0, 2))
    asks = trainer("a", 4, 4, limit="no node has 4 idle slots")
    plan = solve(Problem((asks,), (free,), hosts=(Host(free.nodes, 4),)))
    assert (plan.allocations[0].nodes, plan.allocations[0].reason.text) == ((), "no node has 4 idle slots")


def test_a_trainer_does_not_wait_for_what_it_could_have_more() -> None:
    """It could have only one node, and that one is another's."""
    free = NodeGroup(slots("n1", 0, 3))
    both = trainer("a", "host", 4, limit="only 1 node"), trainer("b", "host", 4, rate=2.0)
    plan = solve(Problem(both, (free,), hosts=shared_nodes(1, free)))
    reason = plan.allocations[0].reason
    assert (plan.allocations[0].nodes, reason.why) == ((), Why.BELOW_MINIMUM)
    assert (
        reason.text == "it needs at least 4 nodes, which would add 480 samples in the 2 min after the plan, "
        "but no node is free"
    )


@each(
    ("bundle", "most", "expected"),
    [
        (1, 3, (1, 2, 3)),
        (2, 64, (2, 4, 6, 8)),
        (2, 5, (2, 4)),
        (3, 64, (3, 6)),
        (5, 64, ()),
        ("host", 64, (2, 4, 6)),
        ("host", 5, (2, 4)),
    ],
)
def test_which_sizes_are_possible(bundle: Bundle, most: int, expected: tuple[int, ...]) -> None:
    hosts = Host(slots("n1", 0, 3), 4), Host(slots("n2", 0, 2), 4), Host(slots("n3", 0, 1), 2)
    assert possible_sizes(bundle, hosts, most) == expected


def test_a_plan_that_cuts_a_bundle_or_mixes_nodes_is_refused() -> None:
    held, free = NodeGroup(slots("n1", 0, 1), owner="a"), NodeGroup((*slots("n1", 2, 3), "n2:0", "n2:1"))
    hosts = Host((*held.nodes, "n1:2", "n1:3"), 4, (held.nodes,)), Host(("n2:0", "n2:1"), 4)
    problem = Problem((trainer("a", 2, 2, 4, 6),), (held, free), hosts=hosts)
    plan = solve(problem)
    for nodes, message in (
        ((*held.nodes, "n1:2", "n2:0"), "expected 2 together"),
        (("n1:0", "n1:2"), "expected it to keep"),
    ):
        [allocation] = plan.allocations
        with pytest.raises(InfeasiblePlanError, match=message):
            verify(problem, replace(plan, allocations=(replace(allocation, nodes=nodes),)))
    one = replace(problem, trainers=(trainer("a", 2, 1, 2, 4, 6),))
    with pytest.raises(InfeasiblePlanError, match="a part of its bundle"):
        verify(one, replace(plan, allocations=(replace(allocation, nodes=("n1:0",)),)))


def test_a_host_has_slots_that_are_there_once() -> None:
    free = NodeGroup(slots("n1", 0, 1))
    for hosts in ((Host(("n1:5",), 4),), (Host(free.nodes, 4), Host(("n1:0",), 4))):
        with pytest.raises(ProblemError, match="in no group, or in another host"):
            Problem((trainer("a", 2, 2),), (free,), hosts=hosts)
    with pytest.raises(ProblemError, match="bundle is 0"):
        trainer("a", 0)


def test_two_hundred_nodes_of_eight_slots_are_planned_in_time() -> None:
    random = Random(1)
    ids = [f"t{number}" for number in range(20)]
    names = [node for number in range(200) for node in slots(f"n{number}", 0, random.randint(2, 7))]
    owners = {node: random.choice([None, None, "t0", "t1", "t2"]) for node in names}
    groups = tuple(
        NodeGroup(tuple(node for node in names if owners[node] == owner), owner)
        for owner in (None, "t0", "t1", "t2")
    )
    hosts = tuple(Host(tuple(n for n in names if n.startswith(f"n{number}:")), 8) for number in range(200))
    kinds: dict[int, Bundle] = {0: 1, 1: 2, 2: 4, 3: "host"}
    trainers = tuple(
        trainer(id_, kinds[k % 4], *possible_sizes(kinds[k % 4], hosts, 64), rate=random.uniform(0.5, 2.0))
        for k, id_ in enumerate(ids)
    )
    trainers = tuple(replace(t, bundle=1, sizes=(), min_nodes=1) if t.id in ("t1", "t2") else t for t in trainers)
    plan = solve(Problem(trainers, groups, hosts=hosts, time_limit_s=5.0))
    assert plan.solve_s < 6.0
    assert sum(len(allocation.nodes) for allocation in plan.allocations) > 0.8 * len(names)
