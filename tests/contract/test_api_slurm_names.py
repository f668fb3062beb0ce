"""What a spec may ask Slurm for: names that an administrator has listed, and no others."""

from __future__ import annotations

from typing import Any

from api_under_test import SPEC, ApiUnderTest, problem_of
from cells import each
from oakum_service.config import SlurmSettings

ALLOWED = {
    "qos": "allow_qos",
    "account": "allow_accounts",
    "constraint": "allow_constraints",
    "reservation": "allow_reservations",
}


def refused(api: ApiUnderTest, asked: dict[str, Any]) -> str:
    """Why the spec is refused, wherever a spec is given."""
    spec = SPEC | {"slurm": asked}
    told = {
        problem_of(api.user.post(path, json=body), 403)["detail"]
        for path, body in (("/v1/trainers", spec), ("/v1/trainers/check", spec))
    }
    (one,) = told
    return str(one)


@each("field", ALLOWED)
def test_a_name_is_accepted_where_it_is_listed_and_else_refused_with_what_is(
    api: ApiUnderTest, field: str
) -> None:
    api.settings.scheduler = "slurm"
    api.settings.slurm = SlurmSettings(**{ALLOWED[field]: ["low", "lower"]})
    variable = f"OAKUM_SLURM_{ALLOWED[field].upper()}"
    assert refused(api, {field: "high"}) == (
        f"slurm.{field}: high is not allowed here: give low or lower, or leave it out, or ask an administrator to "
        f"add it to {variable}"
    )
    assert api.submit(name=field, slurm={field: "lower"})["spec"]["slurm"][field] == "lower"
    api.settings.slurm = SlurmSettings()
    assert f"slurm.{field}: lower is not allowed here: leave it out, or ask" in refused(api, {field: "lower"})


@each("field", ALLOWED)
def test_a_live_trainers_options_change_within_what_is_allowed_and_hold_for_later_jobs(
    api: ApiUnderTest, field: str
) -> None:
    api.settings.scheduler = "slurm"
    api.settings.slurm = SlurmSettings(**{ALLOWED[field]: ["low", "lower"]})
    trainer = api.submit(name=field, slurm={field: "low"})["id"]
    path = f"/v1/trainers/{trainer}"
    seen = api.user.get(path).headers["ETag"]
    api.add_fragment(trainer)

    def change(value: str | None, **headers: str) -> Any:
        return api.user.patch(path, json={"slurm": {field: value}}, headers=headers)

    assert "low or lower" in problem_of(change("high"), 403)["detail"]
    assert problem_of(change("a b"), 422)["errors"][0].startswith("slurm")
    assert change("lower", **{"If-Match": seen}).json()["spec"]["slurm"][field] == "lower"
    problem_of(change("low", **{"If-Match": seen}), 412)
    # Fields that are left out stay; null takes back.
    assert api.user.patch(path, json={"slurm": {}}).json()["spec"]["slurm"][field] == "lower"
    assert change(None).json()["spec"]["slurm"][field] is None
    events = api.user.get("/v1/events/recent").json()["events"]
    told = [event["message"] for event in events if event["subject"] == field]
    keeps = "1 fragment that is there keeps what the job was submitted with"
    assert f'ulla changes slurm.{field} to "lower"; {keeps}' in told


def test_elsewhere_than_on_slurm_nothing_can_be_asked_for(api: ApiUnderTest) -> None:
    api.settings.scheduler = "local"
    assert refused(api, {"qos": "low"}) == "slurm: this service does not submit to Slurm: leave it out"
    assert api.submit(slurm={})["spec"]["slurm"]["qos"] is None


@each("name", ["", "-A", "low,high", "a b", "$(id)"])
def test_a_name_is_one_word(api: ApiUnderTest, name: str) -> None:
    response = api.user.post("/v1/trainers", json=SPEC | {"slurm": {"qos": name}})
    assert problem_of(response, 422)["errors"][0].startswith("slurm.qos: ")
