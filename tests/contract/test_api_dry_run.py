"""Dry runs: what a trainer would get, and that asking changes nothing; and which users may give priorities."""

from __future__ import annotations

import time
from typing import Any

import pytest

from api_under_test import SPEC, ApiUnderTest, FakeScheduler, problem_of
from oakum_service.control.observe import write_snapshot
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.orders import hold
from oakum_service.states import NodeState

CURVE = {"curve": [[1, 100.0], [2, 190.0], [3, 270.0]], "max_nodes": 3}


@pytest.fixture
def scheduler() -> FakeScheduler:
    busy = Node("n4", NodeState.FOREGROUND, "10.0.0.4", job="7")
    holes = [Node(f"n{number}", NodeState.HOLE, f"10.0.0.{number}") for number in (1, 2, 3)]
    return FakeScheduler(nodes=(*holes, busy))


@pytest.fixture
def looked(api: ApiUnderTest) -> ApiUnderTest:
    """An API whose controller has recorded one snapshot of the nodes."""
    with api.sessions.begin() as session:
        write_snapshot(session, api.scheduler.snapshot(), None)
    return api


def asked(api: ApiUnderTest, total_samples: int | None = None, **fields: Any) -> dict[str, Any]:
    response = api.user.post("/v1/trainers/dry-run", json={"spec": SPEC | fields, "total_samples": total_samples})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def rows(api: ApiUnderTest) -> list[int]:
    with api.sessions.begin() as session:
        return [session.query(kind).count() for kind in (Trainer, PlanRecord, EventRecord)]


def test_alone_it_gets_what_it_may_have_and_ends_by_its_curve(looked: ApiUnderTest) -> None:
    before = rows(looked)
    answer = asked(looked, 27_000, **CURVE)
    assert (answer["nodes"], answer["num_idle"]) == (["n1", "n2", "n3"], 3)
    assert (answer["samples_per_s"], answer["changed"], answer["held"]) == (270.0, [], False)
    assert answer["finish_in_s"] == pytest.approx(answer["start_in_s"] + 100.0)
    assert rows(looked) == before
    assert looked.trainer_names() == []


def test_what_is_not_known_is_not_made_up(looked: ApiUnderTest) -> None:
    answer = asked(looked, 27_000)
    assert answer["nodes"]
    assert (answer["samples_per_s"], answer["finish_in_s"]) == (None, None)
    assert asked(looked, None, **CURVE)["finish_in_s"] is None


def test_who_would_have_to_shrink_is_named(looked: ApiUnderTest) -> None:
    other = looked.submit(name="other", **CURVE)
    for node in ("n1", "n2", "n3"):
        looked.add_fragment(other["id"], node, training_at=time.time())
    answer = asked(looked, None, **CURVE, weight=50.0)
    assert len(answer["nodes"]) >= 1
    assert answer["changed"] == [{"name": "other", "nodes_now": 3, "nodes_then": 3 - len(answer["nodes"])}]


def test_one_that_gets_nothing_is_told_why(looked: ApiUnderTest) -> None:
    answer = asked(looked, 27_000, min_nodes=4, max_nodes=8)
    assert (answer["nodes"], answer["start_in_s"], answer["finish_in_s"]) == ([], None, None)
    assert answer["why"] == "below_minimum"
    assert answer["reason"]


def test_a_hold_and_a_hole_that_ends_are_told(looked: ApiUnderTest, scheduler: FakeScheduler) -> None:
    soon = time.time() + 5000.0
    scheduler.nodes = tuple(
        Node(n.name, n.state, n.address, n.node_type, n.job, "", soon) for n in scheduler.nodes
    )
    with looked.sessions.begin() as session:
        write_snapshot(session, scheduler.snapshot(), None)
        hold.begin(session, "", "anna")
    answer = asked(looked, None, **CURVE)
    assert answer["held"]
    assert answer["hole_ends_in_s"] == pytest.approx(5000.0, abs=400.0)


def test_before_the_first_look_there_is_no_answer(api: ApiUnderTest) -> None:
    problem_of(api.user.post("/v1/trainers/dry-run", json={"spec": SPEC}), 409)


def test_a_dry_run_is_refused_as_a_submission_is(looked: ApiUnderTest) -> None:
    looked.submit()
    path = "/v1/trainers/dry-run"
    assert "is waiting" in problem_of(looked.user.post(path, json={"spec": SPEC}), 409)["detail"]
    faulty = problem_of(looked.user.post(path, json={"spec": SPEC | {"batch_size": 3}}), 422)
    assert faulty["errors"] == ["unknown field 'batch_size': did you mean `global_batch`?"]
    problem_of(looked.user.post(path, json={"spec": SPEC | {"name": "new", "priority": 1}}), 403)
    problem_of(looked.viewer.post(path, json={"spec": SPEC}), 403)


def test_a_check_refuses_what_a_submission_would_and_submits_nothing(api: ApiUnderTest) -> None:
    path = "/v1/trainers/check"
    accepted = api.user.post(path, json=SPEC)
    assert (accepted.status_code, accepted.content, api.trainer_names()) == (204, b"", [])
    api.submit()
    for spec in (SPEC, SPEC | {"batch_size": 3}, SPEC | {"name": "new", "priority": 1}):
        refused, checked = (api.user.post(where, json=spec) for where in ("/v1/trainers", path))
        assert checked.status_code == refused.status_code >= 400
        assert checked.json() == refused.json()
    assert api.trainer_names() == ["digits"]


def test_only_one_dry_run_is_computed_at_a_time(looked: ApiUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = looked.context.trial_plans
    with plans.one(), monkeypatch.context() as patched:
        patched.setattr(plans, "_patience_s", 0.01)
        problem_of(looked.user.post("/v1/trainers/dry-run", json={"spec": SPEC}), 429)
    assert asked(looked)["nodes"]


@pytest.mark.parametrize(("who", "priority", "status"), [("user", 1, 403), ("user", -5, 200), ("admin", 9, 200)])
def test_a_priority_above_0_is_the_admins_to_give(api: ApiUnderTest, who: str, priority: int, status: int) -> None:
    api.submit()
    response = getattr(api, who).patch("/v1/trainers/digits", json={"priority": priority})
    assert response.status_code == status, response.text
    assert api.viewer.get("/v1/trainers/digits").json()["spec"]["priority"] == (priority if status == 200 else 0)
