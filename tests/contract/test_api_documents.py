"""The whole document that each route answers, for a cluster small enough to check by hand."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api_under_test import ApiUnderTest, full_spec, problem_of, report
from oakum_service.control.observe import write_snapshot
from oakum_service.control.retention import HISTORY_S
from oakum_service.db import event_log
from oakum_service.db.models.cluster import ForegroundStart, NodeInterval
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.plans import PlanRecord
from oakum_service.db.models.progress import EvaluationRecord, MeasuredRate, ProgressSample
from oakum_service.documents.grant import Grant
from oakum_service.documents.node import Node
from oakum_service.documents.time_account import TimeAccount
from oakum_service.schedulers.port import JobStart, Snapshot
from oakum_service.states import NodeState, TimeUse, TrainerState
from oakum_worker.protocol import Phase
from plan_records import plan_record

PROGRESS = {
    "generation": 3,
    "nodes": 2,
    "step": 30,
    "total_steps": 40,
    "epoch": 1,
    "samples": 2880,
    "loss": 0.25,
    "samples_per_s": 9.5,
    "total_samples": 3840,
    "global_batch": 192,
    "learning_rate": 0.01,
    "checkpoint_step": 10,
    "metrics": {"accuracy": 0.9},
    "best": None,
}


@dataclass(frozen=True)
class Scene:
    """A trainer on two of three nodes; a foreground job is on the third, and one was on the second until 60 s
    ago."""

    api: ApiUnderTest
    now: float
    trainer: str
    fragments: tuple[str, str, str]
    """Two members, and one that has been preempted."""

    def get(self, path: str) -> Any:
        response = self.api.viewer.get(path)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture
def scene(api: ApiUnderTest) -> Scene:
    now = time.time()
    trainer = api.submit(max_nodes=4)["id"]
    observe_foreground_jobs(api, now)
    lost = api.add_fragment(
        trainer,
        "n3",
        state=FragmentState.ENDED,
        launched_at=now - 130.0,
        training_at=now - 120.0,
        ended_at=now - 100.0,
        cause="preempted",
    )
    first = api.add_fragment(trainer, "n1", launched_at=now - 90.0, training_at=now - 80.0)
    second = api.add_fragment(trainer, "n2", launched_at=now - 30.0, training_at=now - 20.0)
    with api.sessions.begin() as session:
        session.add(Report(fragment_id=first, sequence=1, received_at=now, body=report(phase=Phase.TRAINING)))
        session.add(plan_of_two_nodes(trainer, now))
        session.add(
            MeasuredRate(
                trainer_id=trainer, nodes=2, seconds=60.0, samples=570.0, explored_s=0.0, recent=[[60.0, 9.5]]
            )
        )
        for step, loss in ((10, 0.5), (20, 0.25), (30, None)):
            session.add(
                ProgressSample(trainer_id=trainer, at=now + step, step=step, nodes=2, loss=loss, samples_per_s=9.5)
            )
    api.change_row(trainer, **trained_for_two_minutes(now), members=[second, first])
    return Scene(api, now, trainer, (first, second, lost))


def observe_foreground_jobs(api: ApiUnderTest, now: float) -> None:
    """Write the two snapshots in which j7 takes n2 and n3, and gives n2 back."""
    nodes = {name: Node(name, NodeState.HOLE, f"10.0.0.{name[1:]}") for name in ("n1", "n2", "n3")}
    busy = {
        name: Node(name, NodeState.FOREGROUND, node.address, job="j7", job_name="cfd")
        for name, node in nodes.items()
    }
    start = JobStart("j7", now - 100.0, 2, 0.25)
    earlier = Snapshot(now - 100.0, (nodes["n1"], busy["n2"], busy["n3"]), (), (start,))
    later = Snapshot(now - 40.0, (nodes["n1"], nodes["n2"], busy["n3"]), (), (start,))
    with api.sessions.begin() as session:
        write_snapshot(session, later, write_snapshot(session, earlier, None))


def plan_of_two_nodes(trainer: str, now: float) -> PlanRecord:
    """A plan that grants the trainer n1 and n2."""
    grant = Grant(("n1", "n2"), "all_idle", "no other node is idle")
    return plan_record({trainer: grant}, snapshot=2, made_at=now - 35.0, value=75.0, bound=100.0, optimal=False)


def trained_for_two_minutes(now: float) -> dict[str, Any]:
    """The columns of a trainer that began 120 s ago and is at step 30 of 40."""
    return {
        "state": TrainerState.RUNNING,
        "started_at": now - 120.0,
        "generation": 3,
        "progress": PROGRESS,
        "pace": {"steps": 2, "seconds": 40.0, "reading_s": 10.0, "waiting_s": 4.0},
        "checkpoint_step": 20,
        "checkpoint_at": now - 15.0,
        "durations": {"grow": [0.25, 0.1, 0.5], "loss": [2.0], "start_up": [4.0]},
        "account": account_of_two_minutes(now),
        "steps_at_size": {1: 10, 2: 20},
        "past_node_s": 30.0,
        "past_warm_up_node_s": 10.0,
        "nodes_lost": 1,
        "nodes_gained": 2,
        "rescales": 2,
        "stall_s": 0.75,
        "last_stall_s": 0.25,
    }


def account_of_two_minutes(now: float) -> TimeAccount:
    return TimeAccount(
        began_at=now - 120.0,
        since=now - 50.0,
        use=TimeUse.TRAINING,
        seconds={
            TimeUse.TRAINING: 60.25,
            TimeUse.GROW: 0.75,
            TimeUse.LOSS: 2.0,
            TimeUse.COLD_START: 3.0,
            TimeUse.WAITING: 4.0,
        },
        redone_steps=3,
        redone_s=1.5,
    )


def about(seconds: float) -> object:
    """The value, compared with a tolerance for the time that the test itself takes."""
    return pytest.approx(seconds, abs=30.0)


def test_a_submitted_trainer_is_shown_as_it_waits(api: ApiUnderTest) -> None:
    submitted = api.submit(workdir="/home/ulla")
    expected = {
        "id": submitted["id"],
        "name": "digits",
        "state": "waiting",
        "message": "",
        "attempt": None,
        "traceback": "",
        "spec": full_spec(workdir="/home/ulla"),
        "user": "ulla",
        "is_private": False,
        "submitted_at": about(time.time()),
        "started_at": None,
        "ended_at": None,
        "waiting_since": about(time.time()),
        "status_since": about(time.time()),
        "generation": 0,
        "nodes": [],
        "granted": [],
        "warming": [],
        "step": 0,
        "total_steps": None,
        "epoch": 0,
        "samples": 0,
        "total_samples": None,
        "global_batch": 96,
        "learning_rate": None,
        "loss": None,
        "stepped_at": None,
        "samples_per_s": None,
        "samples_per_s_below": None,
        "pace": None,
        "checkpoint_step": None,
        "checkpoint_at": None,
        "checkpoint_folder": "",
        "metrics": {},
        "best": None,
        "steps_at_size": {},
        "measured_rates": [],
        "nodes_lost": 0,
        "nodes_gained": 0,
        "rescales": 0,
        "stall_s": 0.0,
        "last_stall_s": None,
        "stalls": {},
        "start_up": None,
        "time_spent": None,
        "status": "waiting",
        "reason": "Waits: no plan has considered it yet.",
        "condition": "",
        "joining": [],
        "leaving": [],
    }
    assert submitted == expected
    assert api.viewer.get("/v1/trainers/digits").json() == submitted
    assert api.viewer.get(f"/v1/trainers/{submitted['id']}").json() == submitted


def test_what_a_spec_says_of_sharing_is_shown_with_its_deadline_in_utc(api: ApiUnderTest) -> None:
    curves = {"gpu": [[1, 90.0], [2, 170.0]], "cpu": [[1, 10.0]]}
    sharing = {"priority": -2, "curves_by_type": curves, "mixes_types": True}
    submitted = api.submit(**sharing, deadline="2027-03-31T18:00:00+02:00")
    assert submitted["spec"] == full_spec() | sharing | {"deadline": "2027-03-31T16:00:00Z"}
    assert api.viewer.get("/v1/trainers/digits").json() == submitted


def test_submitting_wakes_the_controller_and_is_written_down(api: ApiUnderTest) -> None:
    before = api.news_for_controller.version
    api.submit()
    assert api.news_for_controller.version > before
    (event,) = api.viewer.get("/v1/events/recent").json()["events"]
    assert (event["kind"], event["subject"]) == ("trainer.submitted", "digits")


def test_a_running_trainer(scene: Scene) -> None:
    expected = {
        "id": scene.trainer,
        "name": "digits",
        "state": "running",
        "message": "",
        "attempt": None,
        "traceback": "",
        "spec": full_spec(max_nodes=4),
        "user": "ulla",
        "is_private": False,
        "submitted_at": about(scene.now),
        "started_at": scene.now - 120.0,
        "ended_at": None,
        "waiting_since": None,
        "status_since": scene.now - 50.0,
        "generation": 3,
        "nodes": ["n2", "n1"],
        "granted": ["n1", "n2"],
        "warming": [],
        "step": 30,
        "total_steps": 40,
        "epoch": 1,
        "samples": 2880,
        "total_samples": 3840,
        "global_batch": 192,
        "learning_rate": 0.01,
        "loss": 0.25,
        "stepped_at": None,
        "samples_per_s": 9.5,
        "samples_per_s_below": None,
        "pace": {"step_s": 20.0, "reading_share": 0.25, "waiting_share": 0.1},
        "checkpoint_step": 20,
        "checkpoint_at": scene.now - 15.0,
        "checkpoint_folder": str(scene.api.settings.checkpoints_dir / scene.trainer),
        "metrics": {"accuracy": 0.9},
        "best": None,
        "steps_at_size": {"1": 10, "2": 20},
        "measured_rates": [{"nodes": 2, "samples_per_s": 9.5, "seconds": 60.0}],
        "nodes_lost": 1,
        "nodes_gained": 2,
        "rescales": 2,
        "stall_s": 0.75,
        "last_stall_s": 0.25,
        "stalls": {
            "grow": {"median_s": 0.25, "last_s": 0.5, "count": 3},
            "loss": {"median_s": 2.0, "last_s": 2.0, "count": 1},
        },
        "start_up": {"median_s": 4.0, "last_s": 4.0, "count": 1},
        "time_spent": {
            "since_at": scene.now - 120.0,
            "training_s": about(110.25),
            "grow_s": 0.75,
            "shrink_s": 0.0,
            "loss_s": 2.0,
            "cold_start_s": 3.0,
            "waiting_s": 4.0,
            "redone_s": 1.5,
            "redone_steps": 3,
            "warm_up_node_s": pytest.approx(30.0),
        },
        "status": "running",
        "reason": "Trains on 2 nodes: no other node is idle.",
        "condition": "",
        "joining": [],
        "leaving": [],
    }
    assert scene.get("/v1/trainers/digits") == expected
    assert scene.get("/v1/trainers") == {
        "trainers": [expected],
        "next": None,
        "hold": None,
        "fault": None,
    }


def test_while_held_every_document_says_so_and_no_plan_speaks(scene: Scene) -> None:
    hold = scene.api.admin.put("/v1/hold", json={"reason": "maintenance at 8"}).json()
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(hold["since"]))
    said = f"Held since {day} by anna: maintenance at 8"
    assert hold["sentence"] == f"{said}. `oakum resume` ends the hold."
    shown = scene.get("/v1/trainers/digits")
    assert {name: shown[name] for name in ("status", "granted", "joining", "leaving", "reason")} == {
        "status": "held",
        "granted": [],
        "joining": [],
        "leaving": ["n2", "n1"],
        "reason": f"{said}; it gives its 2 nodes back. `oakum resume` ends the hold.",
    }
    listed = scene.get("/v1/trainers")
    assert (listed["hold"], listed["trainers"][0]["reason"]) == (hold, shown["reason"])
    assert scene.get("/v1/cluster")["hold"] == hold
    explained = scene.get("/v1/trainers/digits/explain")
    assert (explained["why"], explained["reason"], explained["plan"]) == ("held", shown["reason"], None)


def test_fragments_that_have_not_joined_yet_are_shown_until_they_have_or_are_not_wanted(scene: Scene) -> None:
    scene.api.add_fragment(scene.trainer, "n5", launched_at=scene.now - 4.0)
    older = scene.api.add_fragment(scene.trainer, "n4", launched_at=scene.now - 10.0)
    scene.api.add_fragment(scene.trainer, "n6", launched_at=scene.now - 3.0, released=True)
    assert scene.get("/v1/trainers/digits")["warming"] == [
        {"node": "n4", "launched_at": scene.now - 10.0},
        {"node": "n5", "launched_at": scene.now - 4.0},
    ]
    with scene.api.sessions.begin() as session:
        session.get_one(Fragment, older).training_at = scene.now
    assert [each["node"] for each in scene.get("/v1/trainers/digits")["warming"]] == ["n5"]


def test_trainers_are_listed_the_newest_last_and_by_state(api: ApiUnderTest) -> None:
    for name in ("first", "second", "third"):
        api.submit(name=name)
    api.end(api.viewer.get("/v1/trainers/second").json()["id"])
    names = [trainer["name"] for trainer in api.viewer.get("/v1/trainers").json()["trainers"]]
    assert names == ["first", "second", "third"]
    for state, expected in {"waiting": ["first", "third"], "finished": ["second"], "failed": []}.items():
        found = api.viewer.get("/v1/trainers", params={"state": state}).json()["trainers"]
        assert [trainer["name"] for trainer in found] == expected
    problem_of(api.viewer.get("/v1/trainers", params={"state": "asleep"}), 422)


def test_a_name_means_the_newest_trainer_of_that_name(api: ApiUnderTest) -> None:
    old = api.submit()["id"]
    api.end(old)
    new = api.submit()["id"]
    assert api.viewer.get("/v1/trainers/digits").json()["id"] == new
    assert api.viewer.get(f"/v1/trainers/{old}").json()["id"] == old


def test_the_evaluations_of_a_trainer(api: ApiUnderTest) -> None:
    ids = [api.submit(name=name)["id"] for name in ("digits", "other")]
    with api.sessions.begin() as session:
        for trainer, step in ((ids[0], 20), (ids[0], 10), (ids[0], 30), (ids[1], 40)):
            session.add(EvaluationRecord(trainer_id=trainer, step=step, at=5.0, metrics={"accuracy": step / 100}))
    rows = [{"step": step, "at": 5.0, "metrics": {"accuracy": step / 100}} for step in (10, 20, 30)]
    path = "/v1/trainers/digits/evaluations"
    assert api.viewer.get(path).json() == {"evaluations": rows}
    assert api.viewer.get(path, params={"after_step": 10, "limit": 1}).json() == {"evaluations": rows[1:2]}
    assert api.viewer.get(path, params={"newest": True, "limit": 2}).json() == {"evaluations": rows[1:]}


def test_the_series_of_a_trainer(scene: Scene) -> None:
    points = [
        {"at": scene.now + step, "step": step, "nodes": 2, "loss": loss, "samples_per_s": 9.5}
        for step, loss in ((10, 0.5), (20, 0.25), (30, None))
    ]
    assert scene.get("/v1/trainers/digits/series") == {"points": points}
    assert scene.get("/v1/trainers/digits/series?limit=2") == {"points": points[1:]}


def test_the_logs_of_a_trainer(scene: Scene) -> None:
    first, second, lost = scene.fragments
    for fragment, text in ((first, "one\ntwo\n"), (second, "three\n\xff\n"), (lost, "zero\n")):
        folder = scene.api.settings.fragments_dir / fragment
        folder.mkdir(parents=True)
        (folder / "77_0_log.out").write_bytes(text.encode("latin-1"))
    lines = ["n3 | zero", "n1 | one", "n1 | two", "n2 | three", "n2 | �"]
    assert scene.get("/v1/trainers/digits/logs") == {"lines": lines}
    assert scene.get("/v1/trainers/digits/logs?tail=2") == {"lines": lines[-2:]}


def test_a_trainer_without_a_log_has_no_lines(api: ApiUnderTest) -> None:
    api.submit()
    assert api.viewer.get("/v1/trainers/digits/logs").json() == {"lines": []}


def test_the_explanation_of_a_size(scene: Scene) -> None:
    assert scene.get("/v1/trainers/digits/explain") == {
        "trainer": "digits",
        "nodes": 2,
        "granted": 2,
        "why": "all_idle",
        "status": "running",
        "reason": "Trains on 2 nodes: no other node is idle.",
        "condition": "",
        "plan": 1,
    }


def test_the_explanation_where_no_plan_has_one(api: ApiUnderTest) -> None:
    trainer = api.submit()["id"]
    document = api.viewer.get("/v1/trainers/digits/explain").json()
    assert document == {
        "trainer": "digits",
        "nodes": 0,
        "granted": 0,
        "why": "no_plan",
        "status": "waiting",
        "reason": "Waits: no plan has considered it yet.",
        "condition": "",
        "plan": None,
    }
    api.change_row(trainer, state=TrainerState.FAILED, message="out of memory")
    reason = api.viewer.get("/v1/trainers/digits/explain").json()["reason"]
    assert reason == "Failed: out of memory."


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
    assert scene.get("/v1/holes") == {"holes": holes, "next": None}


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
    assert scene.get("/v1/cluster") == {
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
        "num_fragments": 2,
        "held": False,
        "hold": None,
        "fault": None,
        "dry_run": False,
        "snapshot_age_s": about(0.0),
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
        "objective": "throughput",
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
    assert api.viewer.get("/v1/holes").json() == {"holes": [], "next": None}
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


def test_a_change_of_sizes_and_weight(api: ApiUnderTest) -> None:
    before = api.submit()
    response = api.user.patch("/v1/trainers/digits", json={"max_nodes": 3, "weight": 2.5})
    assert response.status_code == 200
    assert response.json() == before | {"spec": full_spec(max_nodes=3, weight=2.5)}
    assert api.viewer.get("/v1/trainers/digits").json() == response.json()


def test_cancelling_is_a_wish_until_the_controller_has_seen_it(api: ApiUnderTest) -> None:
    before, version = api.submit(), api.news_for_controller.version
    response = api.user.post("/v1/trainers/digits/cancel")
    wish = {"status": "cancelling", "status_since": None, "reason": "Its user has cancelled it."}
    assert (response.status_code, response.json()) == (200, before | wish)
    assert api.news_for_controller.version > version


BOUNDS = {
    "/v1/trainers/digits/series": ("limit", 1, 5000),
    "/v1/trainers/digits/evaluations": ("limit", 1, 5000),
    "/v1/trainers/digits/logs": ("tail", 1, 10_000),
    "/v1/events/recent": ("limit", 1, 1000),
    "/v1/plans": ("limit", 1, 500),
    "/v1/holes": ("since_s", 0.001, 7 * 24 * 3600),
    "/v1/timeline": ("since_s", 0.001, 7 * 24 * 3600),
}


@pytest.mark.parametrize("path", BOUNDS)
def test_no_listing_can_be_made_to_return_more_than_its_bound(api: ApiUnderTest, path: str) -> None:
    name, least, most = BOUNDS[path]
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


class TestDashboard:
    """The page needs no token; what it shows it asks the API for, with the token that the user has given it."""

    @pytest.fixture
    def client(self, api: ApiUnderTest) -> TestClient:
        return api.anonymous

    def test_the_page_lets_nothing_in_from_elsewhere(self, client: TestClient) -> None:
        response = client.get("/")
        assert response.status_code == 200
        assert response.headers["Content-Type"].startswith("text/html")
        directives = dict(
            directive.split(" ", 1) for directive in response.headers["Content-Security-Policy"].split("; ")
        )
        assert directives == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self'",
            "connect-src": "'self'",
            "form-action": "'none'",
            "base-uri": "'none'",
            "frame-ancestors": "'none'",
        }
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Referrer-Policy"] == "no-referrer"

    @pytest.mark.parametrize("path", ["/static/style.css", "/static/js/main.js", "/static/plotly.min.js"])
    def test_its_files_are_served_under_the_same_policy(self, client: TestClient, path: str) -> None:
        response = client.get(path)
        assert response.status_code == 200
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]

    @pytest.mark.parametrize(
        "path", ["/static/..%2froutes.py", "/static/%2e%2e/routes.py", "/static/js", "/static/%00", "/static/none"]
    )
    def test_nothing_else_is(self, client: TestClient, path: str) -> None:
        problem_of(client.get(path), 404)
