"""The whole document that each route but trainers' answers, for a cluster small enough to check by hand."""

from __future__ import annotations

import time

import pytest

from api_under_test import ApiUnderTest, problem_of
from cells import each
from oakum_service.control.retention import HISTORY_S
from oakum_service.db import event_log
from oakum_service.db.models.cluster import ForegroundStart, NodeInterval
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.fragments import FragmentState
from trained_scene import Scene, about


def test_the_nodes(scene: Scene) -> None:
    def node(name: str, since: float, **fields: object) -> dict[str, object]:
        return {
            "name": name,
            "state": "hole",
            "since": since,
            "node_type": "cpu",
            "foreground_job": None,
            "trainer": None,
            "fragment_phase": None,
            "hole_ends_at": None,
            "avoided_until": None,
            "avoided_because": "",
        } | fields

    document = scene.get("/v1/nodes")
    assert document.pop("version")
    assert document == {
        "snapshot": 2,
        "taken_at": scene.now - 40.0,
        "is_difference": False,
        "gone": [],
        "nodes": [
            node("n1", scene.now - 100.0, trainer="digits", fragment_phase="training"),
            node("n2", scene.now - 40.0, trainer="digits", fragment_phase="starting"),
            node("n3", scene.now - 100.0, state="foreground", foreground_job="j7"),
        ],
    }


def test_the_holes(scene: Scene) -> None:
    holes = [
        {"node": "n1", "start_at": scene.now - 100.0, "end_at": None},
        {"node": "n2", "start_at": scene.now - 40.0, "end_at": None},
    ]
    document = scene.get("/v1/holes?since_s=600")
    went = document.pop("idle_time")
    # Losses are kept by the hour, so what was before the hour of the first one is left out.
    idle_s = sum(scene.now - max(float(str(hole["start_at"])), went["since"]) for hole in holes)
    assert went["idle_node_s"] == about(idle_s)
    assert document == {"holes": holes, "next": None}


def test_the_timeline(scene: Scene) -> None:
    first, second, lost = scene.fragments
    now = scene.now

    def fragment(node: str, id_: str, start: float, training: float, **fields: object) -> dict[str, object]:
        return {
            "node": node,
            "start_at": now + start,
            "end_at": None,
            "fragment": id_,
            "trainer": "digits",
            "training_at": now + training,
        } | fields

    def job(node: str, end_at: float | None) -> dict[str, object]:
        return {"node": node, "start_at": now - 100.0, "end_at": end_at, "job": "j7", "name": "cfd"}

    document = scene.get("/v1/timeline?since_s=600")
    assert document.pop("from_at") == about(now - 600.0)
    assert document.pop("to_at") == about(now)
    document["foreground"].sort(key=lambda interval: interval["node"])
    assert document == {
        "is_shortened": False,
        "nodes": ["n1", "n2", "n3"],
        "foreground": [job("n2", now - 40.0), job("n3", None)],
        "holes": scene.get("/v1/holes")["holes"],
        "fragments": [
            fragment("n3", lost, -130.0, -120.0, end_at=now - 100.0, phase="preempted"),
            fragment("n1", first, -90.0, -80.0, phase="training"),
            fragment("n2", second, -30.0, -20.0, phase="starting"),
        ],
    }


def test_the_timeline_shows_no_more_than_was_asked_for(scene: Scene) -> None:
    document = scene.get("/v1/timeline?since_s=30")
    assert [(job["node"], job["end_at"]) for job in document["foreground"]] == [("n3", None)]
    assert [fragment["node"] for fragment in document["fragments"]] == ["n1", "n2"]


def test_the_cluster_at_a_glance(scene: Scene) -> None:
    cluster = scene.get("/v1/cluster")
    went = cluster.pop("idle_time")
    assert went.pop("since") <= scene.now
    assert went == {
        "idle_node_s": about(140.0),
        "trained_node_s": about(120.0),
        "stalled_node_s": 0.0,
        "start_up_node_s": 0.0,
        "late_node_s": 0.0,
        "unwanted_node_s": about(20.0),
    }
    assert cluster == {
        "scheduler": "fake",
        "num_nodes": 3,
        "num_foreground": 1,
        "num_holes": 2,
        "num_training": 2,
        "idle_node_s": about(140.0),
        "used_node_s": about(120.0),
        "harvested_node_s": about(100.0),
        "foreground_jobs_started": 1,
        "foreground_delay_p50_s": 0.25,
        "foreground_delay_p99_s": 0.25,
        "foreground_delay_max_s": 0.25,
        "foreground_delay_last_s": 0.25,
        "limit_delay_p99_s": None,
        "exceeds_delay_p99": False,
        "lost_share": pytest.approx(1 / 6, abs=0.1),
        "limit_lost_share": None,
        "exceeds_lost_share": False,
        "num_fragments": 2,
        "held": False,
        "hold": None,
        "fault": None,
        "dry_run": False,
        "snapshot_age_s": about(0.0),
        "silence": None,
    }


def test_sums_go_no_further_back_than_what_is_known(scene: Scene) -> None:
    """Intervals of nodes from before that time are deleted, those of fragments are not: a share of both has to
    leave it out."""
    begin = scene.now - HISTORY_S
    spans = [(begin - 100.0, begin + 30.0), (begin - 100.0, begin - 50.0)]
    with scene.api.sessions.begin() as session:
        for start, end in spans:
            session.add(NodeInterval(node="n9", state="hole", start_at=start, end_at=end))
        session.add(ForegroundStart(job="j1", started_at=begin - 50.0, num_nodes=1, delay_s=9.0))
    for start, end in spans:
        scene.api.add_fragment(
            scene.trainer,
            "n9",
            state=FragmentState.ENDED,
            launched_at=start,
            training_at=start,
            ended_at=end,
            cause="released",
        )
    cluster = scene.get("/v1/cluster")
    assert cluster["idle_node_s"] == about(140.0 + 30.0)
    assert cluster["used_node_s"] == about(120.0 + 30.0)
    assert (cluster["foreground_jobs_started"], cluster["foreground_delay_max_s"]) == (1, 0.25)


def test_the_plans(scene: Scene) -> None:
    plan = {
        "id": 1,
        "parent": None,
        "snapshot": 2,
        "made_at": scene.now - 35.0,
        "solver": "cbc",
        "value": 75.0,
        "bound": 100.0,
        "gap": 0.25,
        "optimal": False,
        "solve_s": 0.01,
        "look_ahead_s": 30.0,
        "look_ahead_reason": "",
        "objective": "throughput",
        "unit": "samples",
        "quality": "at most 25 % below the best possible",
        "summary": "Worth 75 samples over the next 30 s, the sum over all models, each times its weight: "
        "at most 25 % below the best possible, found by CBC in 10 ms.",
        "allocations": [
            {"trainer": "digits", "nodes": ["n1", "n2"], "why": "all_idle", "reason": "no other node is idle"}
        ],
    }
    assert scene.get("/v1/plans/current") == plan
    assert scene.get("/v1/plans/1") == plan
    assert scene.get("/v1/plans") == {"plans": [plan]}


def test_before_the_first_snapshot_and_plan_there_is_nothing_to_show(api: ApiUnderTest) -> None:
    nodes = api.viewer.get("/v1/nodes").json()
    assert (nodes["snapshot"], nodes["taken_at"], nodes["nodes"]) == (0, 0.0, [])
    holes = api.viewer.get("/v1/holes").json()
    assert (holes["holes"], holes["next"], holes["idle_time"]["idle_node_s"]) == ([], None, 0.0)
    assert api.viewer.get("/v1/plans").json() == {"plans": []}
    assert api.viewer.get("/v1/cluster").json()["foreground_delay_max_s"] is None
    detail = problem_of(api.viewer.get("/v1/plans/current"), 404)["detail"]
    assert detail == "no plan has been made yet: one is made as soon as a trainer is submitted"


def test_the_newest_events_in_order_of_time(api: ApiUnderTest) -> None:
    with api.sessions.begin() as session:
        for number in range(3):
            event_log.record(session, "node.hole", f"n{number}", f"n{number} is idle", number=number)
    events = api.viewer.get("/v1/events/recent?limit=2").json()["events"]
    assert events == [
        {
            "id": number + 1,
            "at": about(time.time()),
            "kind": "node.hole",
            "subject": f"n{number}",
            "message": f"n{number} is idle",
            "data": {"number": number},
        }
        for number in (1, 2)
    ]


BOUNDS = {
    "/v1/trainers/digits/series": ("limit", 1, 5000),
    "/v1/trainers/digits/evaluations": ("limit", 1, 5000),
    "/v1/trainers/digits/logs": ("tail", 1, 10_000),
    "/v1/events/recent": ("limit", 1, 1000),
    "/v1/plans": ("limit", 1, 500),
    "/v1/holes": ("since_s", 0.001, 7 * 24 * 3600),
    "/v1/timeline": ("since_s", 0.001, 7 * 24 * 3600),
}


@each("path", BOUNDS)
def test_no_listing_can_be_made_to_return_more_than_its_bound(api: ApiUnderTest, path: str) -> None:
    name, least, most = BOUNDS[path]
    if api.trainer_names() == []:
        api.submit()
    for good in (least, most):
        assert api.viewer.get(path, params={name: good}).status_code == 200
    for bad in (least - 1, most + 1, "many", "nan", "inf", 10**400):
        (line,) = problem_of(api.viewer.get(path, params={name: bad}), 422)["errors"]
        assert line.startswith(f"query.{name}: ")


def test_a_listing_returns_no_more_than_its_default_bound(api: ApiUnderTest) -> None:
    with api.sessions.begin() as session:
        session.add_all(
            EventRecord(at=0.0, kind="node.hole", subject="n1", message="", data={}) for _ in range(60)
        )
    assert len(api.viewer.get("/v1/events/recent").json()["events"]) == 50


def test_anybody_may_ask_whether_the_service_answers(api: ApiUnderTest) -> None:
    response = api.anonymous.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
