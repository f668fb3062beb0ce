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


def test_elsewhere_than_on_slurm_nothing_can_be_asked_for(api: ApiUnderTest) -> None:
    api.settings.scheduler = "local"
    assert refused(api, {"qos": "low"}) == "slurm: this service does not submit to Slurm: leave it out"
    assert api.submit(slurm={})["spec"]["slurm"]["qos"] is None


@each("name", ["", "-A", "low,high", "a b", "$(id)"])
def test_a_name_is_one_word(api: ApiUnderTest, name: str) -> None:
    response = api.user.post("/v1/trainers", json=SPEC | {"slurm": {"qos": name}})
    assert problem_of(response, 422)["errors"][0].startswith("slurm.qos: ")
