"""/v1/hold: the kill switch, and what the controller makes of it."""

from __future__ import annotations

from api_under_test import ApiUnderTest


def test_a_hold_says_since_when_why_and_by_whom(api: ApiUnderTest) -> None:
    assert api.viewer.get("/v1/hold").json()["held"] is False
    begun = api.admin.put("/v1/hold", json={"reason": "maintenance at 8"}).json()
    assert (begun["held"], begun["reason"], begun["by"]) == (True, "maintenance at 8", "anna")
    again = api.admin.put("/v1/hold", json={"reason": "longer"}).json()
    assert (again["since"], again["reason"]) == (begun["since"], "longer")
    assert api.admin.put("/v1/hold", json={}).json()["reason"] == "longer"
    assert api.viewer.get("/v1/cluster").json()["held"] is True
    assert api.admin.delete("/v1/hold").json()["held"] is False
    assert api.admin.delete("/v1/hold").json()["held"] is False
    assert api.viewer.get("/v1/cluster").json()["held"] is False
    kinds = [event["kind"] for event in api.viewer.get("/v1/events/recent").json()["events"]]
    assert (kinds.count("service.held"), kinds.count("service.resumed")) == (3, 1)
