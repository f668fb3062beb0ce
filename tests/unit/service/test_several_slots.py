"""Fragments with several slots of one node: their names, what a plan may give them, what they count."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from cells import each
from oakum_service.control.decide import decide
from oakum_service.control.fragment_ends import end_fragment
from oakum_service.control.fragment_view import FragmentView, Membership
from oakum_service.control.hosts import in_bundles, sizes_of
from oakum_service.control.ledger import ledger
from oakum_service.control.new_trainers import add_trainer
from oakum_service.control.usage import usage_since
from oakum_service.db.engine import Sessions
from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.documents.slots import bundle_name, is_part, node_of, slots_in
from oakum_service.orders.quotas import node_hours_used
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import NodeState
from oakum_solver.forecast import IdleNode
from oakum_solver.hosts import hosts_of, leaving_together, within_hosts
from oakum_solver.problem import Bundle, Curve, Host, PlannedTrainer
from oakum_worker.protocol import Phase
from oakum_worker.spec import TrainerSpec

HOLE, TAKEN = NodeState.HOLE, NodeState.FOREGROUND
NOW = 1_800_000_000.0


def slots(node: str, *states: NodeState) -> tuple[Node, ...]:
    return tuple(Node(f"{node}:{number}", state, "10.0.0.1") for number, state in enumerate(states))


def idle(*nodes: Node) -> list[IdleNode]:
    return [idle_node(node.name, 600.0, node_type=node.node_type) for node in nodes if node.state is HOLE]


def idle_node(name: str, horizon_s: float, **fields: str) -> IdleNode:
    return IdleNode(name, horizon_s, host=node_of(name) if is_part(name) else None, **fields)


@each("names", [("n1",), ("n1:3",), ("n1:0", "n1:2"), ("n1:2", "n1:9", "n1:10")])
def test_slots_that_are_named_together_are_found_again(names: tuple[str, ...]) -> None:
    name = bundle_name(names)
    assert slots_in(name) == names
    assert (node_of(name), is_part(name)) == ("n1", names != ("n1",))


def test_slots_together_are_idle_only_if_each_is() -> None:
    snapshot = Snapshot(NOW, (*slots("n1", HOLE, TAKEN, HOLE), Node("n2", HOLE, "10.0.0.2")), ())
    assert [node and node.state for node in map(snapshot.node, ("n1:0+2", "n1:0+1", "n2"))] == [HOLE, TAKEN, HOLE]
    assert snapshot.node("n1:0+7") is None


@each(
    ("bundle", "max_nodes", "sizes", "limit"),
    [
        (2, 4, (2, 4), ""),
        (2, 64, (2, 4, 6, 8, 10), "2 slots of one node, and only 3 nodes have so many idle"),
        (3, 4, (3,), ""),
        (4, 8, (4, 8), ""),
        (4, 12, (4, 8), "4 slots of one node, and only 2 nodes have so many idle"),
        (5, 5, (), "5 slots of one node, and no node has more than 4 idle"),
        ("host", 8, (1, 4, 5, 8), ""),
        ("host", 64, (1, 4, 5, 8, 9), "all slots of a node, and of only 3 nodes are they all idle"),
    ],
)
def test_a_trainer_is_offered_the_sizes_that_nodes_make_up(
    bundle: Bundle, max_nodes: int, sizes: tuple[int, ...], limit: str
) -> None:
    """n1 and n2 are wholly idle, n3 is so by half, n4 is given as a whole."""
    present = (
        *slots("n1", *[HOLE] * 4),
        *slots("n2", *[HOLE] * 4),
        *slots("n3", HOLE, HOLE, TAKEN, TAKEN),
        Node("n4", HOLE, "10.0.0.4"),
    )
    offered = idle(*present)
    hosts = hosts_of(offered, sizes_of(present), [])
    assert [(len(host.nodes), host.size) for host in hosts] == [(4, 4), (4, 4), (2, 4)]
    asked = PlannedTrainer("a", Curve(((1, 1.0),)), max_nodes=max_nodes, bundle=bundle)
    got = within_hosts(asked, hosts, offered)
    if sizes:
        assert (got.sizes, got.min_nodes, got.max_nodes) == (sizes, sizes[0], sizes[-1])
    else:
        assert got.min_nodes > len(offered), "no plan can give it so many"
    assert (got.limit.endswith(limit), bool(got.limit)) == (True, bool(limit))


def test_a_host_knows_which_of_its_slots_are_held_together() -> None:
    present = slots("n1", HOLE, HOLE, HOLE, TAKEN)
    hosts = hosts_of(idle(*present), sizes_of(present), [("n1:0", "n1:2"), ("n1:1", "n1:3"), ("n2:0", "n2:1")])
    assert hosts == (Host(("n1:0", "n1:1", "n1:2"), 4, (("n1:0", "n1:2"),)),)


def test_slots_of_one_node_are_expected_to_leave_together() -> None:
    slots = [idle_node("n1:0", 600.0, cohort="x"), idle_node("n1:1", 60.0, cohort="y"), idle_node("n2:0", 5.0)]
    got = [(slot.node, slot.horizon_s, slot.cohort) for slot in leaving_together(slots)]
    assert got == [("n1:0", 60.0, "y"), ("n1:1", 60.0, "y"), ("n2:0", 5.0, None)]


def test_a_fragment_is_launched_on_slots_of_one_node_and_one_type() -> None:
    other = tuple(Node(f"n1:{number}", HOLE, "10.0.0.1", node_type="h100") for number in (4, 5))
    present = (*slots("n1", HOLE, TAKEN, HOLE, HOLE), *other, *slots("n2", HOLE, HOLE), Node("n3", HOLE, ""))
    free = [node for node in present if node.state is HOLE]

    def launched(number: int | str) -> list[str]:
        found = in_bundles(free, present, number)  # type: ignore[arg-type]
        return [bundle_name([node.name for node in bundle]) for bundle in found]

    assert launched(2) == ["n1:0+2", "n1:4+5", "n2:0+1"]
    assert launched("node") == ["n1:4+5", "n2:0+1", "n3"]
    assert len(launched(1)) == len(free)


def fragment(id_: str, num_slots: int, **fields: object) -> FragmentView:
    values: dict[str, object] = {
        "phase": Phase.READY,
        "alive": True,
        "slots": num_slots,
        "ready_at": float(len(id_)),
    }
    return FragmentView(id_, **(values | fields))  # type: ignore[arg-type]


@each(
    ("least", "sizes", "members"),
    [(4, (), ("a", "bb")), (5, (), ()), (1, (1, 2), ("a",)), (1, (2, 4), ("a", "bb")), (1, (1,), ())],
)
def test_members_count_by_their_slots(least: int, sizes: tuple[int, ...], members: tuple[str, ...]) -> None:
    both = fragment("a", 2), fragment("bb", 2)
    decision = decide(Membership(0, (), 0), both, least, sizes)
    assert (decision.members if decision else ()) == members


def test_node_time_counts_slots_while_a_fragment_runs_and_when_it_has_ended(sessions: Sessions) -> None:
    with sessions.begin() as session:
        spec = TrainerSpec(
            name="a", entrypoint="a:b", global_batch=96, epochs=1, slots_per_fragment=3, max_nodes=6
        )
        trainer = add_trainer(session, spec, "ulla")
        row = {"trainer_id": trainer.id, "state": FragmentState.LIVE}
        session.add(Fragment(id="f", node="n1:0+1+2", launched_at=NOW - 3600, training_at=NOW - 1800, **row))
        holes = [NodeInterval(node=f"n1:{slot}", state=NodeState.HOLE, start_at=NOW - 3600) for slot in range(3)]
        session.add_all(holes)
        session.flush()
        assert session.scalars(select(Fragment.num_slots)).one() == 3
    for ended in (False, True):
        with sessions.begin() as session:
            if ended:
                one = session.get_one(Fragment, "f")
                one.cause = "released"
                end_fragment(session, one, NOW)
            [sums] = ledger(session, "2027-01", "2027-01", "ulla", NOW).values()
            assert (sums.lent_node_s, sums.warm_up_node_s) == (3 * 3600, 3 * 1800)
            assert node_hours_used(session, NOW)["ulla"] == pytest.approx(3.0)
            assert usage_since(session, NOW - 3600, NOW).used_node_s == 3 * 1800
    with sessions.begin() as session:
        assert session.scalars(select(Trainer.past_node_s)).one() == 3 * 3600
