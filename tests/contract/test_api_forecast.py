"""/v1/forecast: what administrators tell of how long nodes stay idle, and how it gives way to what is seen."""

from __future__ import annotations

import pytest
from sqlalchemy import delete

from api_under_test import ApiUnderTest, problem_of
from cells import each
from oakum_service.db.models.cluster import NodeInterval

TOLD = {"source": "idle.csv", "lengths_s": [3000.0, 600.0] * 250}


def see_end(api: ApiUnderTest, *lengths_s: float) -> None:
    """Let the service have seen holes of just these lengths end."""
    with api.sessions.begin() as session:
        session.execute(delete(NodeInterval))
        for number, length_s in enumerate(lengths_s):
            session.add(NodeInterval(node=f"p{number}", state="hole", start_at=0.0, end_at=length_s))


def test_what_is_told_counts_until_the_service_has_seen_enough_itself(api: ApiUnderTest) -> None:
    see_end(api)
    assert api.viewer.get("/v1/forecast").json() == {
        "seen": 0, "told": 0, "source": None, "by": None, "at": None, "new_hole_s": None, "old_hole_s": None,
    }  # fmt: skip
    told = api.admin.put("/v1/forecast", json=TOLD).json()
    assert (told["seen"], told["told"], told["source"], told["by"]) == (0, 500, "idle.csv", "anna")
    assert told["new_hole_s"] == pytest.approx(1800.0)
    see_end(api, *[60.0] * 300)
    half = api.viewer.get("/v1/forecast").json()
    assert (half["seen"], half["told"]) == (300, 200)
    assert half["new_hole_s"] == pytest.approx(0.6 * 60.0 + 0.4 * 1800.0)
    see_end(api, *[60.0] * 600)
    whole = api.viewer.get("/v1/forecast").json()
    assert (whole["seen"], whole["told"], whole["new_hole_s"]) == (500, 0, pytest.approx(60.0))


def test_what_was_told_can_be_withdrawn(api: ApiUnderTest) -> None:
    api.admin.put("/v1/forecast", json=TOLD)
    assert api.admin.delete("/v1/forecast").json()["source"] is None
    assert api.admin.delete("/v1/forecast").status_code == 200
    told = [entry["action"] for entry in api.admin.get("/v1/audit").json()["entries"]]
    assert (told.count("forecast.told"), told.count("forecast.withdrawn")) == (1, 1)


@each("lengths_s", [[600.0] * 9, [600.0] * 501, [600.0] * 9 + [0.0], [600.0] * 9 + [1e12], ["long"] * 10])
def test_lengths_from_which_nothing_can_be_learnt_are_refused(api: ApiUnderTest, lengths_s: list[object]) -> None:
    problem_of(api.admin.put("/v1/forecast", json={"source": "a", "lengths_s": lengths_s}), 422)
