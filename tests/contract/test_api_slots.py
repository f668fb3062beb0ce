"""Trainers whose fragments have several slots of one node: what is refused, foreseen, planned and shown."""

from __future__ import annotations

from typing import Any

import pytest

from api_under_test import SPEC, ApiUnderTest, FakeScheduler
from cells import each
from oakum_service.control.observe import newest_observation, write_snapshot
from oakum_service.control.planner import Planner
from oakum_service.db.lease import LeaseHolder
from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.states import NodeState

HOLE, TAKEN = NodeState.HOLE, NodeState.FOREGROUND
FAST = {"curve": [[1, 100.0], [8, 800.0]]}


def slots(node: str, *states: NodeState) -> list[Node]:
    return [Node(f"{node}:{number}", state, "10.0.0.1", job="7" if state is TAKEN else None)
            for number, state in enumerate(states)]  # fmt: skip


@pytest.fixture
def scheduler() -> FakeScheduler:
    return FakeScheduler(nodes=(*slots("n1", HOLE, HOLE, HOLE, HOLE), *slots("n2", HOLE, HOLE, HOLE, TAKEN)))


@pytest.fixture
def looked(api: ApiUnderTest) -> ApiUnderTest:
    """An API whose controller has recorded one snapshot of the nodes."""
    with api.sessions.begin() as session:
        write_snapshot(session, api.scheduler.snapshot(), None)
    return api


def foreseen(api: ApiUnderTest, **fields: Any) -> dict[str, Any]:
    response = api.user.post("/v1/trainers/dry-run", json={"spec": SPEC | FAST | fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@each(
    ("slots_per_fragment", "nodes", "reason"),
    [
        (1, 7, ""),
        (2, 6, "2 slots of one node, and only 2 nodes have so many idle"),
        (3, 6, "its maximum is 6 nodes"),
        (4, 4, "4 slots of one node, and only 1 node has so many idle"),
        ("node", 4, "all slots of a node, and of only 1 node are they all idle"),
    ],
)
def test_what_it_would_get_is_made_of_whole_fragments(
    looked: ApiUnderTest, slots_per_fragment: int | str, nodes: int, reason: str
) -> None:
    answer = foreseen(looked, max_nodes=8, slots_per_fragment=slots_per_fragment)
    assert len(answer["nodes"]) == nodes
    assert answer["reason"].endswith(reason)


def test_more_slots_than_any_node_has_are_refused_by_name(looked: ApiUnderTest) -> None:
    response = looked.user.post("/v1/trainers", json=SPEC | {"max_nodes": 8, "slots_per_fragment": 5})
    assert response.status_code == 409
    assert response.json()["detail"] == (
        "slots_per_fragment: a fragment would need 5 slots of one node, and no node has more than 4 slots of a "
        "type: give at most 4, or node for all that a node has"
    )


@each(
    ("spec", "words"),
    [
        ({"sizes": [3, 5]}, "sizes: with slots_per_fragment node"),
        ({"min_nodes": 5, "max_nodes": 7}, "min_nodes, max_nodes: with slots_per_fragment node"),
    ],
)
def test_numbers_that_no_whole_nodes_have_are_refused(
    looked: ApiUnderTest, spec: dict[str, Any], words: str
) -> None:
    asked = SPEC | {"slots_per_fragment": "node"} | spec
    response = looked.user.post("/v1/trainers", json=asked)
    assert (response.status_code, response.json()["detail"][: len(words)]) == (409, words)
    assert "nodes have 4 here" in response.json()["detail"]


@each(
    ("spec", "words"),
    [
        (
            {"curve": [[1, 400.0], [2, 800.0]], "ranks_per_node": 4},
            "curve: its points count nodes of 4 ranks (ranks_per_node), and nodes are given in slots of one rank "
            "here: give points over slots, and leave ranks_per_node out",
        ),
        (
            {"curves_by_type": {"cpu:4": [[1, 400.0]]}},
            "curves_by_type: no node is of type cpu:4, since nodes are given in slots of type cpu here: give a "
            "curve over such slots as cpu",
        ),
    ],
)
def test_a_curve_over_nodes_is_refused_where_nodes_are_given_in_slots(
    looked: ApiUnderTest, spec: dict[str, Any], words: str
) -> None:
    response = looked.user.post("/v1/trainers", json=SPEC | {"max_nodes": 2} | spec)
    assert (response.status_code, response.json()["detail"]) == (409, words)


def test_a_what_if_keeps_to_whole_fragments(looked: ApiUnderTest) -> None:
    spec = SPEC | FAST | {"max_nodes": 4, "slots_per_fragment": 2}
    looked.user.post("/v1/trainers", json=spec)
    for hypothesis, nodes in (
        ({"change": [{"trainer": spec["name"], "max_nodes": 7}]}, 6),
        ({"change": [{"trainer": spec["name"], "max_nodes": 3}]}, 2),
        ({"drain": ["n1:0", "n2"]}, 2),
    ):
        response = looked.user.post("/v1/plans/preview", json=hypothesis)
        assert response.status_code == 200, response.text
        [trainer] = response.json()["allocations"]
        assert trainer["nodes_then"] == nodes


def test_a_fragment_of_several_slots_is_shown_on_each(looked: ApiUnderTest) -> None:
    spec = SPEC | FAST | {"max_nodes": 4, "slots_per_fragment": 2}
    name = looked.user.post("/v1/trainers", json=spec).json()["name"]
    with looked.sessions.begin() as session:
        trainer = session.query(Trainer).one()
        trainer.members = ("f",)
        values = {"trainer_id": trainer.id, "state": FragmentState.LIVE, "launched_at": 1.0, "training_at": 2.0}
        session.add(Fragment(id="f", node="n1:1+3", **values))
    assert looked.user.get(f"/v1/trainers/{name}").json()["nodes"] == ["n1:1", "n1:3"]
    listed = {node["name"]: node["trainer"] for node in looked.user.get("/v1/nodes").json()["nodes"]}
    assert [node for node, trainer in listed.items() if trainer == name] == ["n1:1", "n1:3"]
    window = {"node": ["n1:1", "n1:2", "n1:3"], "from_at": 0, "to_at": 10, "resolution_s": 0}
    rows = looked.user.get("/v1/timeline/rows", params=window).json()
    assert sorted(rows["nodes"][place] for place in rows["fragments"]["node"]) == ["n1:1", "n1:3"]
    assert looked.user.get("/v1/quotas/ulla").json()["used"]["nodes"] == 2


def test_where_jobs_took_whole_nodes_a_trainer_is_planned_in_whole_nodes_and_told_why(
    looked: ApiUnderTest,
) -> None:
    why = "Each fragment takes all 4 slots of a node: of 40 foreground jobs here 38 took whole nodes."
    with looked.sessions.begin() as session:
        for number in range(39):  # and the job that has a slot of n2 now
            taken = range(4 if number < 38 else 1)
            past = {"job": f"past {number}", "state": TAKEN, "start_at": 1e9 + number, "end_at": 1e9 + 60.0}
            session.add_all([NodeInterval(node=f"n1:{slot}", **past) for slot in taken])
    spec = {"max_nodes": 8, "slots_per_fragment": "auto"}
    answer = foreseen(looked, **spec)
    assert (sorted(answer["nodes"]), answer["slots_reason"]) == ([f"n1:{slot}" for slot in range(4)], why)
    name = looked.submit(**FAST, **spec)["name"]
    lease = LeaseHolder(looked.sessions, alone=True)
    assert lease.acquire()
    with looked.sessions.begin() as session:
        observed = newest_observation(session)
    assert observed is not None
    Planner(looked.settings, looked.context.readers, lease).plan(observed)
    shown = looked.user.get(f"/v1/trainers/{name}").json()
    assert (shown["slots_per_fragment"], shown["slots_reason"]) == ("node", why)
    assert sorted(shown["granted"]) == [f"n1:{slot}" for slot in range(4)]
    assert looked.user.get(f"/v1/trainers/{name}/explain").json()["slots_reason"] == why
    assert foreseen(looked, **spec | {"slots_per_fragment": 1}, name="other")["slots_reason"] == ""
