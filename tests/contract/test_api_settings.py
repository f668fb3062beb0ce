"""/v1/settings and /v1/objectives: changed while the service runs, by administrators, and told."""

from __future__ import annotations

import time
from typing import Any

import pytest

from api_under_test import ApiUnderTest, problem_of
from cells import each
from controlled import controlled
from oakum_service.db.models.installation import SettingRecord
from oakum_service.orders.live_settings import CurrentSettings, current
from oakum_solver.objectives import NamedObjective
from waiting import wait_until


def settings_of(api: ApiUnderTest) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in api.viewer.get("/v1/settings").json()["settings"]}


def change(api: ApiUnderTest, name: str, value: object, **headers: str) -> Any:
    return api.admin.put(f"/v1/settings/{name}", json={"value": value}, headers=headers)


def test_a_changed_setting_is_told_with_who_and_what_was_before(api: ApiUnderTest) -> None:
    assert settings_of(api)["objective"] == {
        "name": "objective", "value": "speedup", "at_start": "speedup", "by": None, "at": None,
    }  # fmt: skip
    answer = change(api, "objective", "fair-share")
    assert answer.status_code == 200
    now = settings_of(api)["objective"]
    assert answer.json() == now
    assert (now["value"], now["at_start"], now["by"]) == ("fair-share", "speedup", "anna")
    with api.sessions.begin() as session:
        assert current(session, api.settings).objective is NamedObjective.FAIR_SHARE
    [entry] = [e for e in api.admin.get("/v1/audit").json()["entries"] if e["action"] == "setting.changed"]
    assert (entry["actor"], entry["details"]) == ("anna", {"before": "speedup", "after": "fair-share"})
    events = api.viewer.get("/v1/events/recent").json()["events"]
    told = [event["message"] for event in events if event["kind"] == "setting.changed"]
    assert told == ["is fair-share now, it was speedup: changed by anna"]


def test_all_that_decides_plans_is_told(api: ApiUnderTest) -> None:
    """`oakum replay --as` plans with it."""
    change(api, "look_ahead_s", 90)
    told = api.viewer.get("/v1/settings").json()["planning"]
    assert told == {
        "objective": "speedup", "look_ahead_s": 90.0, "groups": False, "user_cap": None, "milp_solver": "cbc",
        "starvation_guard_s": 3600.0, "starvation_quantum_s": 600.0, "solver_limit_s": api.settings.solver_limit_s,
        "stall_s": api.settings.stall_s, "start_up_s": api.settings.start_up_s,
        "explore_share": 0.02,
    }  # fmt: skip


def test_costs_are_those_that_trainers_have_measured(api: ApiUnderTest) -> None:
    for name, durations in (("a", {"grow": (1.0, 2.0, 3.0)}), ("b", {"grow": (4.0,), "start_up": (20.0,)})):
        api.change_row(api.submit(name=name)["id"], durations=durations)
    told = api.viewer.get("/v1/settings").json()["planning"]
    assert (told["stall_s"], told["start_up_s"]) == (3.0, 20.0)


def test_a_reset_brings_back_what_the_service_was_started_with(api: ApiUnderTest) -> None:
    change(api, "user_cap", 3)
    assert api.admin.delete("/v1/settings/user_cap").json()["value"] is None
    assert api.admin.delete("/v1/settings/user_cap").status_code == 200
    assert settings_of(api)["user_cap"]["by"] is None


@each(
    ("name", "value", "what"),
    [
        ("objective", "nonsense *", "objective cannot be \"nonsense *\": "),
        ("look_ahead_s", 0, "greater than 0"),
        ("look_ahead_s", "soon", "valid number"),
        ("user_cap", 0.5, "user_cap cannot be 0.5"),
        ("poll_s", 1e9, "less than or equal to 3600"),
        ("groups", "perhaps", "groups cannot be"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_changes_nothing(api: ApiUnderTest, name: str, value: object, what: str) -> None:
    before = settings_of(api)
    assert what in problem_of(change(api, name, value), 400)["detail"]
    assert settings_of(api) == before


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("port", "port cannot be changed while the service runs: set OAKUM_PORT"),
        ("objectve", "objectve is no setting: did you mean objective?"),
    ],
)
def test_other_settings_are_refused_by_name(api: ApiUnderTest, name: str, what: str) -> None:
    assert what in problem_of(change(api, name, 1), 404)["detail"]
    assert what in problem_of(api.admin.delete(f"/v1/settings/{name}"), 404)["detail"]


def test_a_change_that_somebody_else_overtook_is_refused(api: ApiUnderTest) -> None:
    seen = change(api, "look_ahead_s", 60).headers["ETag"]
    assert change(api, "look_ahead_s", 90).status_code == 200
    assert (
        "setting look_ahead_s has changed since"
        in problem_of(change(api, "look_ahead_s", 30, **{"If-Match": seen}), 412)["detail"]
    )
    assert settings_of(api)["look_ahead_s"]["value"] == 90


def test_the_next_plan_follows_the_objective(api: ApiUnderTest) -> None:
    api.submit()
    with controlled(api):
        wait_until("a plan is made", lambda: api.viewer.get("/v1/plans").json()["plans"])
        change(api, "objective", "weight * samples")
        api.submit(name="another")
        wait_until(
            "a plan follows it",
            lambda: api.viewer.get("/v1/plans").json()["plans"][0]["objective"] == "weight * samples",
        )
    assert api.viewer.post("/v1/plans/preview", json={}).json()["objective"] == "weight * samples"


def test_objectives_are_listed_with_the_one_in_force(api: ApiUnderTest) -> None:
    found = api.viewer.get("/v1/objectives").json()
    assert [one["name"] for one in found["objectives"]] == [*NamedObjective]
    assert (found["current"], "deadline_in_s" in found["quantities"]) == ("speedup", True)


def test_a_stored_value_that_this_version_does_not_know_is_left_out(api: ApiUnderTest) -> None:
    with api.sessions.begin() as session:
        for name, value in (("objective", '"of the future +"'), ("poll_s", "7.5"), ("of_the_future", "1")):
            session.add(SettingRecord(name=name, value=value, by_name="anna", at=time.time()))
    with api.sessions.begin() as session:
        now = current(session, api.settings)
    assert (now.objective, now.poll_s) == (NamedObjective.SPEEDUP, 7.5)


def test_the_settings_are_read_anew_after_a_second(api: ApiUnderTest) -> None:
    clock = [0.0]
    known = CurrentSettings(api.context.readers, api.settings, lambda: clock[0])
    assert known.now().poll_s == api.settings.poll_s
    change(api, "poll_s", 9)
    assert known.now().poll_s == api.settings.poll_s
    clock[0] = 1.5
    assert known.now().poll_s == 9
