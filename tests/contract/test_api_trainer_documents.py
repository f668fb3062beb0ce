"""The whole document of a trainer, and of what is known of its training."""

from __future__ import annotations

import time

import pytest

from api_under_test import ApiUnderTest, full_spec, problem_of
from cells import each
from oakum_service.control.node_uses import sample_row
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.progress import EvaluationRecord
from oakum_service.states import TrainerState
from oakum_worker.protocol import NodeUse
from trained_scene import Scene, about

BY_FIRST_NODE = (
    "Its spec has no curve, so plans count each node as much as the first, and go not by measured rates "
    "(the setting `learn_curves` is off)."
)


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
        "slots_per_fragment": 1,
        "slots_reason": "",
        "curve_reason": BY_FIRST_NODE,
        "may_retry": False,
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
        "slots_per_fragment": 1,
        "slots_reason": "",
        "curve_reason": BY_FIRST_NODE,
        "may_retry": False,
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


def test_the_series_of_a_time_in_as_few_points_as_are_asked_for(scene: Scene) -> None:
    path, (first, second, third) = "/v1/trainers/digits/series", (scene.now + step for step in (10, 20, 30))
    assert [point["step"] for point in scene.get(f"{path}?from_at={second}")["points"]] == [20, 30]
    assert [point["step"] for point in scene.get(f"{path}?from_at=0&to_at={second}")["points"]] == [10, 20]
    [point] = scene.get(f"{path}?from_at={first}&to_at={third}&limit=1")["points"]
    losses = {"loss": 0.25, "loss_mean": 0.375, "loss_min": 0.25, "loss_max": 0.5}
    assert point == {"at": third, "step": 30, "nodes": 2, "samples_per_s": 9.5, "reports": 3} | losses


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


def test_where_the_spec_has_a_curve_its_document_names_it(api: ApiUnderTest) -> None:
    reason = "Plans go by its spec's curve, not by measured rates (the setting `learn_curves` is off)."
    assert api.submit(curve=[[1, 10.0], [4, 36.0]])["curve_reason"] == reason


@each(
    ("state", "is_retried"),
    [("running", False), ("finished", False), ("failed", True), ("diverged", False), ("cancelled", True)],
)
def test_a_document_says_whether_a_retry_lets_the_trainer_go_on(
    api: ApiUnderTest, state: str, is_retried: bool
) -> None:
    trainer = api.submit(name=state)["id"]
    api.change_row(trainer, state=TrainerState(state))
    assert api.viewer.get(f"/v1/trainers/{state}").json()["may_retry"] is is_retried


def test_use_is_told_of_nodes_that_a_trainer_has_and_of_those_that_it_had(api: ApiUnderTest) -> None:
    trainer, now = api.submit()["id"], time.time()
    api.add_fragment(trainer, "n1:0+2")
    api.add_fragment(trainer, "n2:1+3", state=FragmentState.ENDED, ended_at=now)
    use = NodeUse(busy_cores=2.0, own_cores=1.0, cores=4.0, used_bytes=1, own_bytes=1, memory_bytes=2)
    with api.sessions.begin() as session:
        for node in ("n1:0+2", "n2:1+3"):
            session.add(sample_row(trainer, node, now, use, after_gap=False))
    nodes = api.user.get("/v1/trainers/digits/node-use").json()["nodes"]
    assert {each["node"]: each["is_present"] for each in nodes} == {"n1:0+2": True, "n2:1+3": False}


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
        "look_ahead_reason": "",
        "slots_reason": "",
        "curve_reason": BY_FIRST_NODE,
    }


def test_where_measured_rates_count_the_explanation_says_nothing_of_the_specs_curve(scene: Scene) -> None:
    scene.api.settings.learn_curves = True
    assert scene.get("/v1/trainers/digits/explain")["curve_reason"] == ""


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
        "look_ahead_reason": "",
        "slots_reason": "",
        "curve_reason": "",
    }
    api.change_row(trainer, state=TrainerState.FAILED, message="out of memory")
    reason = api.viewer.get("/v1/trainers/digits/explain").json()["reason"]
    assert reason == "Failed: out of memory."


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
