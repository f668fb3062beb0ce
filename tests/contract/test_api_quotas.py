"""What users may have: refused above it, told with what is used, changed by administrators alone."""

from __future__ import annotations

import time
from typing import Any

import pytest

from api_under_test import SPEC, ApiUnderTest, problem_of
from cells import each
from oakum_service.api.auth import Role
from oakum_service.db.models.fragments import FragmentState
from oakum_service.states import TrainerState

USUAL = {"trainers": 100, "nodes": None, "node_hours": None, "storage_gib": None, "weight": 1.0}


@pytest.fixture(autouse=True)
def _usual(api: ApiUnderTest) -> None:
    """The limits of a service that is not told otherwise."""
    api.settings.quota.weight, api.settings.quota.curve_gain = 1.0, 1.1


def allow(api: ApiUnderTest, user: str = "ulla", **limits: float) -> dict[str, Any]:
    answer = api.admin.put(f"/v1/quotas/{user}", json=limits)
    assert answer.status_code == 200, answer.text
    view: dict[str, Any] = answer.json()
    return view


def post(api: ApiUnderTest, name: str, **fields: object) -> Any:
    return api.user.post("/v1/trainers", json=SPEC | {"name": name} | fields)


def test_what_is_not_set_is_as_the_settings_say(api: ApiUnderTest) -> None:
    assert api.user.get("/v1/quotas/ulla").json() == {
        "user": "ulla",
        "own": False,
        "limits": USUAL,
        "used": {"trainers": 0, "nodes": 0, "node_hours": 0.0, "storage_gib": 0.0},
    }
    assert allow(api, nodes=4, weight=3)["limits"] == USUAL | {"nodes": 4, "weight": 3.0}
    assert allow(api, trainers=1)["limits"] == USUAL | {"trainers": 1}
    assert api.admin.delete("/v1/quotas/ulla").status_code == 204
    assert api.admin.delete("/v1/quotas/ulla").status_code == 204
    assert api.user.get("/v1/quotas/ulla").json()["limits"] == USUAL
    acts = [entry["action"] for entry in api.admin.get("/v1/audit").json()["entries"]]
    done = [act for act in acts if act.startswith("quota.")]
    assert done == ["quota.cleared", "quota.set", "quota.set"]


def test_one_trainer_more_than_the_quota_is_refused_and_checked_before(api: ApiUnderTest) -> None:
    allow(api, trainers=2)
    first, second = post(api, "a"), post(api, "b")
    assert (first.status_code, second.status_code) == (201, 201)
    for answer in (post(api, "c"), api.user.post("/v1/trainers/check", json=SPEC | {"name": "c"})):
        assert problem_of(answer, 409)["detail"] == (
            "ulla has 2 live trainers, the most that the quota allows: cancel one, or ask an administrator "
            "(`oakum quota set`)"
        )
    api.end(first.json()["id"], TrainerState.FAILED)
    assert post(api, "c").status_code == 201
    problem_of(api.user.post("/v1/trainers/a/retry"), 409)
    assert api.admin.post("/v1/trainers", json=SPEC | {"name": "d"}).status_code == 201


def test_racing_submissions_do_not_pass_the_quota(api: ApiUnderTest) -> None:
    allow(api, trainers=1)
    answers = [answer.status_code for answer in api.submit_at_once(6, None)]
    assert sorted(answers) == [201, *[409] * 5]


@pytest.mark.parametrize("change", [False, True])
def test_a_weight_above_the_quota_is_refused(api: ApiUnderTest, change: bool) -> None:
    def give(weight: float) -> Any:
        if change:
            return api.user.patch("/v1/trainers/digits", json={"weight": weight})
        return post(api, f"w{10 * weight:.0f}", weight=weight)

    api.submit()
    why = problem_of(give(1.5), 403)["detail"]
    assert why.startswith("weight 1.5 is above 1, the largest that your quota allows, since weights buy nodes")
    assert give(0.5).is_success
    allow(api, weight=2)
    assert give(1.5).is_success
    assert api.admin.patch("/v1/trainers/digits", json={"weight": 50}).status_code == 200
    # A weight that an administrator gave stays when its user changes something else.
    assert api.user.patch("/v1/trainers/digits", json={"max_nodes": 3}).status_code == 200


@each(
    ("curve", "status"),
    [
        ([[1, 100], [2, 200]], 201),
        ([[1, 100], [2, 215]], 201),
        ([[1, 100], [2, 225]], 403),
        ([[2, 100], [4, 150], [8, 1000]], 403),
        ([[4, 10]], 201),
    ],
)
def test_a_curve_that_claims_to_outgrow_its_nodes_is_an_administrators(
    api: ApiUnderTest, curve: list[list[float]], status: int
) -> None:
    number = len(api.trainer_names())
    answer = post(api, f"curved-{number}", curve=curve, min_nodes=curve[0][0], max_nodes=curve[-1][0])
    assert answer.status_code == status, answer.text
    mine = SPEC | {"name": f"hers-{number}", "curve": curve, "min_nodes": curve[0][0], "max_nodes": curve[-1][0]}
    assert api.admin.post("/v1/trainers", json=mine).status_code == 201
    by_type = {"name": f"typed-{number}", "curves_by_type": {"a100": curve}, "min_nodes": curve[0][0]}
    assert post(api, max_nodes=curve[-1][0], **by_type).status_code == status


def test_checkpoints_above_the_quota_refuse_further_trainers(api: ApiUnderTest) -> None:
    mine = api.submit(name="full")
    folder = api.settings.checkpoints_dir / mine["id"] / "step-5"
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_bytes(b"x" * 3_000_000)
    (folder / "again.bin").hardlink_to(folder / "weights.bin")
    stored = api.user.get("/v1/quotas/ulla").json()["used"]["storage_gib"]
    assert 3_000_000 / 2**30 <= stored < 3_200_000 / 2**30
    allow(api, storage_gib=0.002)
    detail = problem_of(post(api, "more"), 409)["detail"]
    assert detail.startswith("ulla's checkpoints take 0.0028 GiB, and the quota allows 0.002: ask an admin")
    allow(api, storage_gib=0.1)
    assert post(api, "more").status_code == 201


def test_the_use_of_a_week_counts_nodes_from_their_launches(api: ApiUnderTest) -> None:
    trainer, now = api.submit()["id"], time.time()
    api.add_fragment(trainer, launched_at=now - 60)
    api.add_fragment(trainer, node="n2", launched_at=now - 90, ended_at=now - 30, state=FragmentState.ENDED)
    used = api.user.get("/v1/quotas/ulla").json()["used"]
    assert (used["trainers"], used["nodes"]) == (1, 1)
    assert 0 <= used["node_hours"] <= 150 / 3600  # less where the week began in between


def test_users_see_their_own_quota_and_change_none(api: ApiUnderTest) -> None:
    allow(api, user="otto", nodes=5)
    api.submit()
    assert [view["user"] for view in api.admin.get("/v1/quotas").json()["quotas"]] == ["otto", "ulla"]
    assert [view["user"] for view in api.user.get("/v1/quotas").json()["quotas"]] == ["ulla"]
    assert (
        "only this user, viewers and administrators" in problem_of(api.user.get("/v1/quotas/otto"), 403)["detail"]
    )
    problem_of(api.user.put("/v1/quotas/ulla", json={"nodes": 500}), 403)
    problem_of(api.user.delete("/v1/quotas/ulla"), 403)
    assert api.client(api.new_token("otto", Role.USER)).get("/v1/quotas/otto").json()["limits"]["nodes"] == 5


@each("limits", [{"nodes": -1}, {"weight": 0}, {"gpus": 3}, {"node_hours": "inf"}, {"trainers": 1.5}])
def test_a_limit_that_cannot_be_is_refused(api: ApiUnderTest, limits: dict[str, Any]) -> None:
    problem_of(api.admin.put("/v1/quotas/ulla", json=limits), 422)
    assert api.user.get("/v1/quotas/ulla").json()["own"] is False
