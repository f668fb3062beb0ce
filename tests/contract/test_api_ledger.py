"""/v1/ledger and `oakum ledger`: who sees which rows, and in which form."""

from __future__ import annotations

import csv
import io
import json
import time

import pytest

from answering_service import Service
from answering_service import service as service
from api_under_test import ApiUnderTest, problem_of
from cells import each
from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_service.control.ledger import charge, month_of
from oakum_service.db.models.usage import LedgerRecord

NOVEMBER = 1_794_000_000.0
load_commands()


@pytest.fixture
def charged(api: ApiUnderTest) -> ApiUnderTest:
    with api.sessions.begin() as session:
        charge(session, "ulla", NOVEMBER, lent_node_s=7200.0, warm_up_node_s=360.0, loss_node_s=720.0)
        charge(session, "ulla", NOVEMBER, lent_node_s=3600.0, foreground_delay_s=1.5)
        charge(session, "udo", NOVEMBER, lent_node_s=36.0)
    return api


def test_administrators_and_viewers_see_all_and_users_themselves(charged: ApiUnderTest) -> None:
    asked = {"month": month_of(NOVEMBER)}
    for client in (charged.admin, charged.viewer):
        assert [row["user"] for row in client.get("/v1/ledger", params=asked).json()["entries"]] == ["udo", "ulla"]
    found = charged.user.get("/v1/ledger", params=asked).json()
    assert found == {
        "from_month": "2026-11",
        "to_month": "2026-11",
        "entries": [
            {
                "month": "2026-11",
                "user": "ulla",
                "lent_node_h": 3.0,
                "trained_node_h": pytest.approx(2.7),
                "warm_up_node_h": 0.1,
                "grow_node_h": 0.0,
                "shrink_node_h": 0.0,
                "loss_node_h": 0.2,
                "repeated_node_h": 0.0,
                "foreground_delay_s": 1.5,
                "ends": {},
            }
        ],
    }
    assert charged.user.get("/v1/ledger", params=asked | {"user": "udo"}).json()["entries"] == []
    (udo,) = charged.admin.get("/v1/ledger", params=asked | {"user": "udo"}).json()["entries"]
    assert udo["lent_node_h"] == 0.01


def test_months_are_counted_back_and_the_present_one_is_the_default(charged: ApiUnderTest) -> None:
    api = charged
    api.add_fragment(str(api.submit()["id"]), launched_at=time.time() - 1.0)
    present = api.admin.get("/v1/ledger").json()
    assert present["from_month"] == present["to_month"]
    assert "ulla" in [row["user"] for row in present["entries"] if row["lent_node_h"] > 0]
    found = api.admin.get("/v1/ledger", params={"month": "2027-01", "months": 3}).json()
    assert (found["from_month"], found["to_month"]) == ("2026-11", "2027-01")
    assert {row["user"] for row in found["entries"]} >= {"udo", "ulla"}


@each("month", ["2026-13", "2026-1", "november", "2026-11-01", "'; --"])
def test_what_is_no_month_is_refused(api: ApiUnderTest, month: str) -> None:
    problem_of(api.admin.get("/v1/ledger", params={"month": month}), 422)
    problem_of(api.admin.get("/v1/ledger", params={"months": 25}), 422)


def test_the_command_prints_a_table_csv_or_json(
    charged: ApiUnderTest, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    with charged.sessions.begin() as session:
        session.get_one(LedgerRecord, ("2026-11", "ulla")).ends = {"cancelled": 1, "time limit": 3}
    found = charged.admin.get("/v1/ledger", params={"month": "2026-11"}).json()
    service.documents[("GET", "/v1/ledger")] = found
    assert run(["ledger", "--month", "2026-11"]) == 0
    head, _, ulla = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["MONTH", "USER"]
    ends = ["3", "time", "limit,", "1", "cancelled"]
    assert ulla.split() == ["2026-11", "ulla", "3.00", "2.70", "0.30", "1.5", *ends]
    assert run(["ledger", "--month", "2026-11", "-o", "wide"]) == 0
    *_, ulla = capsys.readouterr().out.splitlines()
    numbers = ["3.00", "2.70", "0.30", "0.10", "0.00", "0.00", "0.20", "0.00", "1.5"]
    assert ulla.split() == ["2026-11", "ulla", *numbers, *ends]
    assert run(["ledger", "--csv"]) == 0
    rows = [*csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert [(row["user"], float(row["lent_node_h"])) for row in rows] == [("udo", 0.01), ("ulla", 3.0)]
    assert [row["ends"] for row in rows] == ["", "time limit=3;cancelled=1"]
    assert run(["ledger", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found
    assert run(["ledger", "--json", "--csv"]) == 2
