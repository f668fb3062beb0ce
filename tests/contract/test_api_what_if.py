"""Previews: the plan that would be made, also under other circumstances; and that asking changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event

from api_under_test import SPEC, ApiUnderTest, FakeScheduler, problem_of
from oakum_service.control.observe import write_snapshot
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.orders import hold
from oakum_service.states import NodeState, TrainerState

CURVE = {"curve": [[1, 100.0], [2, 190.0], [3, 270.0]], "max_nodes": 3}


@pytest.fixture
def scheduler() -> FakeScheduler:
    holes = [Node(f"n{number}", NodeState.HOLE, f"10.0.0.{number}") for number in (1, 2, 3)]
    return FakeScheduler(nodes=(*holes, Node("n4", NodeState.FOREGROUND, "10.0.0.4", job="7")))


@pytest.fixture
def looked(api: ApiUnderTest) -> ApiUnderTest:
    """An API whose controller has recorded one snapshot of the nodes."""
    with api.sessions.begin() as session:
        write_snapshot(session, api.scheduler.snapshot(), None)
    return api


def test_a_trainer_of_certain_sizes_is_promised_no_other(looked: ApiUnderTest) -> None:
    looked.submit(name="first", curve=CURVE["curve"], sizes=[1, 2, 4])
    assert sizes(asked(looked)) == {"first": (0, 2)}
    assert sizes(asked(looked, change=[{"trainer": "first", "max_nodes": 1}])) == {"first": (0, 1)}
    change = [{"trainer": "first", "max_nodes": 3}]
    refused = problem_of(looked.viewer.post("/v1/plans/preview", json={"change": change}), 409)
    assert "max_nodes is 3: expected one of its sizes, 1, 2, 4" in refused["detail"]
    for other, then in (("any", 3), ("powers_of_two", 2), ([1], 1), ([3, 5], 3)):
        assert sizes(asked(looked, change=[{"trainer": "first", "sizes": other}])) == {"first": (0, then)}, other


@pytest.fixture
def training(looked: ApiUnderTest) -> ApiUnderTest:
    """An API whose trainer `first` holds n1 and n2."""
    first = looked.submit(name="first", **CURVE)["id"]
    for node in ("n1", "n2"):
        looked.add_fragment(first, node=node)
    return looked


def asked(api: ApiUnderTest, **request: object) -> dict[str, Any]:
    response = api.viewer.post("/v1/plans/preview", json=request)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def sizes(answer: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Trainer -> nodes now and then."""
    return {each["trainer"]: (each["nodes_now"], each["nodes_then"]) for each in answer["allocations"]}


def rows(api: ApiUnderTest) -> list[int]:
    with api.sessions.begin() as session:
        return [session.query(kind).count() for kind in (Trainer, PlanRecord, EventRecord)]


def test_without_assumptions_it_is_the_next_plan(training: ApiUnderTest) -> None:
    before = rows(training)
    answer = asked(training)
    assert sizes(answer) == {"first": (2, 3)}
    [first] = answer["allocations"]
    assert (first["gained"], first["lost"], first["is_new"]) == (["n3"], [], False)
    assert (answer["num_idle"], answer["held"], answer["optimal"]) == (3, False, True)
    assert answer["objective"] == "speedup"
    assert rows(training) == before


def test_a_trainer_that_would_be_added_is_marked(training: ApiUnderTest) -> None:
    asked_for = SPEC | CURVE | {"name": "second", "priority": 50}
    answer = asked(training, add=[asked_for, asked_for | {"name": "third", "priority": -5}])
    assert sizes(answer) == {"first": (2, 0), "second": (0, 3), "third": (0, 0)}
    assert {each["trainer"]: each["is_new"] for each in answer["allocations"]} == {
        "first": False,
        "second": True,
        "third": True,
    }
    assert training.trainer_names() == ["first"]


def test_the_nodes_of_a_removed_trainer_are_free(training: ApiUnderTest) -> None:
    training.submit(name="last", **CURVE)
    answer = asked(training, remove=["first"])
    assert sizes(answer) == {"last": (0, 3)}
    assert answer["num_idle"] == 3


def test_other_bounds_are_assumed_and_not_kept(training: ApiUnderTest) -> None:
    change = {"trainer": "first", "max_nodes": 1, "priority": 9}
    assert sizes(asked(training, change=[change])) == {"first": (2, 1)}
    assert training.viewer.get("/v1/trainers/first").json()["spec"]["max_nodes"] == 3


@pytest.mark.parametrize(
    ("drained", "left", "then"),
    [
        ({"drain": ["n1"]}, 2, 2),
        ({"drain_count": 1}, 2, 2),
        ({"drain": ["n3"], "drain_count": 1}, 1, 1),
        ({"drain": ["n1", "n2", "n3"]}, 0, 0),
        ({"drain_count": 3}, 0, 0),
        ({"drain": ["n3"], "drain_count": 1000}, 0, 0),
    ],
)
def test_drained_nodes_are_nobodys(training: ApiUnderTest, drained: dict[str, Any], left: int, then: int) -> None:
    answer = asked(training, **drained)
    assert (answer["num_idle"], sizes(answer)) == (left, {"first": (2, then)})


def test_free_nodes_are_drained_before_others(training: ApiUnderTest) -> None:
    [first] = asked(training, drain_count=1)["allocations"]
    assert (first["gained"], first["lost"]) == ([], [])


def test_another_objective_is_assumed(training: ApiUnderTest) -> None:
    answer = asked(training, objective="weight * samples")
    assert answer["objective"] == "weight * samples"
    assert answer["value"] != asked(training)["value"]


def test_a_hold_is_told(training: ApiUnderTest) -> None:
    with training.sessions.begin() as session:
        hold.begin(session, "repair", "anna")
    assert asked(training)["held"] is True


def test_before_the_first_snapshot_there_is_no_plan(api: ApiUnderTest) -> None:
    detail = problem_of(api.viewer.post("/v1/plans/preview", json={}), 409)["detail"]
    assert detail == "the scheduler has not been read yet: ask again in a moment"


@pytest.mark.parametrize(
    ("request_", "status", "told"),
    [
        ({"remove": ["nobody"]}, 404, "nobody"),
        ({"remove": ["ended"]}, 409, "only live trainers"),
        ({"change": [{"trainer": "first", "min_nodes": 5}]}, 409, "min_nodes 5 and max_nodes 3"),
        ({"change": [{"trainer": "first", "colour": 5}]}, 422, "colour"),
        ({"change": [{"trainer": "first", "sizes": [2, 1]}]}, 422, "change.0: sizes: 1 nodes follow 2"),
        ({"change": [{"trainer": "first", "epochs": 5}]}, 422, "epochs"),
        ({"change": [{"trainer": "first", "slurm": {"qos": "low"}}]}, 422, "slurm"),
        ({"drain": ["n4"]}, 409, "no plan can give n4"),
        ({"objective": "weight *"}, 422, "objective"),
        ({"add": [{"name": "x"}]}, 422, "add.0"),
        ({"whatever": 1}, 422, "whatever"),
    ],
)
def test_what_cannot_be_assumed_is_refused(
    training: ApiUnderTest, request_: dict[str, Any], status: int, told: str
) -> None:
    training.end(training.submit(name="ended")["id"], TrainerState.FAILED)
    problem = problem_of(training.viewer.post("/v1/plans/preview", json=request_), status)
    assert told in " ".join([problem["detail"], *problem["errors"]])


def test_many_trainers_take_as_many_statements_as_one(looked: ApiUnderTest) -> None:
    names = [looked.submit(name=f"t{number}")["name"] for number in range(12)]
    counts = []

    def count(*_: object) -> None:
        counts[-1] += 1

    event.listen(looked.engine, "before_cursor_execute", count)
    for some in (names[:1], names):
        counts.append(0)
        asked(looked, remove=some[::2], change=[{"trainer": name, "weight": 2.0} for name in some[1::2]])
    event.remove(looked.engine, "before_cursor_execute", count)
    assert counts[1] <= counts[0]
