"""Nodes over time, in the forms that pictures of many nodes ask for, and what has changed of the nodes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from api_under_test import ApiUnderTest
from oakum_service.control.observe import newest_observation, write_snapshot
from oakum_service.control.retention import HISTORY_S
from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import FragmentState
from oakum_service.db.models.usage import UsageHour
from oakum_service.documents.announcement import AnnouncedKind, Announcement, Announcements
from oakum_service.documents.node import Node
from oakum_service.node_history import search
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import NodeState
from postgres_database import on_both_databases

NAMES = ("n1", "n2", "n3")


def idle(name: str) -> Node:
    return Node(name, NodeState.HOLE, "10.0.0.1", node_type="cpu")


def busy(name: str) -> Node:
    return Node(name, NodeState.FOREGROUND, "10.0.0.1", job="j7", job_name="cfd")


@pytest.fixture
def now(api: ApiUnderTest) -> float:
    """Three nodes: one was idle for 60 s and is idle, one was busy for 60 s of 100 s, one is busy; a fragment has
    ended, and one trains."""
    now = time.time()
    with api.sessions.begin() as session:
        earlier = write_snapshot(
            session, Snapshot(now - 100.0, (idle("n1"), busy("n2"), busy("n3")), (), ()), None
        )
        write_snapshot(session, Snapshot(now - 40.0, (idle("n1"), idle("n2"), busy("n3")), (), ()), earlier)
    trainer = api.submit(max_nodes=4)["id"]
    times = {"launched_at": now - 95.0, "training_at": now - 90.0, "ended_at": now - 50.0}
    api.add_fragment(trainer, "n1", state=FragmentState.ENDED, cause="preempted", **times)
    api.add_fragment(trainer, "n2", launched_at=now - 30.0, training_at=now - 20.0)
    return now


def rows(api: ApiUnderTest, now: float, **asked: Any) -> Any:
    asked = {"from_at": now - 200.0, "to_at": now + 50.0, "node": list(NAMES)} | asked
    answer = api.viewer.get("/v1/timeline/rows", params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def told(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_rows_have_each_nodes_stretches_and_fragments(api: ApiUnderTest, now: float) -> None:
    document = rows(api, now)
    assert (document["nodes"], document["trainers"], document["is_difference"]) == ([*NAMES], ["digits"], False)
    assert document["to_at"] == pytest.approx(time.time(), abs=30.0)
    assert document["kept_from"] == pytest.approx(time.time() - HISTORY_S, abs=30.0)
    stretches = told(document["stretches"])
    assert [(row["node"], row["state"], row["job"], row["name"]) for row in stretches] == [
        (0, "hole", "", ""),
        (1, "foreground", "j7", "cfd"),
        (1, "hole", "", ""),
        (2, "foreground", "j7", "cfd"),
    ]
    assert [row["start_s"] for row in stretches] == pytest.approx([100.0, 100.0, 160.0, 100.0], abs=0.01)
    assert [row["end_s"] for row in stretches] == [None, pytest.approx(160.0, abs=0.01), None, None]
    ended, lasting = told(document["fragments"])
    assert (ended["node"], ended["trainer"], ended["cause"], ended["end_s"]) == (
        0,
        0,
        "preempted",
        pytest.approx(150.0, abs=0.01),
    )
    assert (lasting["node"], lasting["end_s"], lasting["training_s"]) == (1, None, pytest.approx(180.0, abs=0.01))


def test_rows_are_of_the_nodes_and_the_window_that_were_asked_for(api: ApiUnderTest, now: float) -> None:
    document = rows(api, now, node=["n2"], to_at=now - 60.0)
    assert told(document["stretches"])[0]["state"] == "foreground"
    assert len(document["stretches"]["node"]) == 1
    assert document["fragments"]["node"] == []
    assert rows(api, now, node=["other"])["stretches"]["node"] == []


@on_both_databases
def test_rows_tell_what_is_announced_where_the_window_goes_on_after_now(
    api: ApiUnderTest, database: str | None
) -> None:
    now = time.time()
    upkeep = Announcement(AnnouncedKind.RESERVATION, "upkeep", "maintenance", "n3", now - 60.0, now + 7200.0)
    job = Announcement(AnnouncedKind.JOB, "81", "cfd", "n[1-2,9]", now + 300.0, None)
    later = Announcement(AnnouncedKind.JOB, "82", "md", "n1", now + 4000.0, now + 5000.0)
    announced = Announcements((upkeep, job, later), left_out=9_500)
    with api.sessions.begin() as session:
        nodes = (idle("n1"), idle("n2"), busy("n3"))
        write_snapshot(session, Snapshot(now, nodes, (), announced=announced), None)
    forms: list[dict[str, float]] = [{}, {"changed_after": now - 1.0}]
    for asked in forms:
        document = rows(api, now, to_at=now + 3600.0, **asked)
        columns = document["announced"]
        assert [(row["node"], row["kind"], row["name"], row["title"]) for row in told(columns)] == [
            (0, "job", "81", "cfd"),
            (1, "job", "81", "cfd"),
            (2, "reservation", "upkeep", "maintenance"),
        ]
        assert columns["start_s"] == pytest.approx([500.0, 500.0, 140.0], abs=0.01)
        assert columns["end_s"] == [None, None, pytest.approx(7400.0, abs=0.01)]
        assert (document["announced_from_at"], document["announced_left_out"]) == (now - 60.0, 9_500)
        assert document["to_at"] <= time.time()
    past = rows(api, now, to_at=now - 10.0)
    assert (past["announced"]["node"], past["announced_from_at"]) == ([], now - 60.0)


def test_a_difference_has_what_began_or_ended_since(api: ApiUnderTest, now: float) -> None:
    document = rows(api, now, changed_after=now - 45.0)
    assert document["is_difference"]
    stretches = told(document["stretches"])
    assert [(row["node"], row["state"]) for row in stretches] == [(1, "foreground"), (1, "hole")]
    assert [row["node"] for row in told(document["fragments"])] == [1]
    joined_since = rows(api, now, changed_after=now - 25.0)
    assert [row["node"] for row in told(joined_since["fragments"])] == [1]
    assert joined_since["stretches"]["node"] == []
    assert rows(api, now, changed_after=now - 10.0)["fragments"]["node"] == []


def test_what_is_shorter_than_a_pixel_is_merged(api: ApiUnderTest, now: float) -> None:
    begin = now - 7000.0
    with api.sessions.begin() as session:
        for number in range(100):
            state = NodeState.HOLE if number % 3 else NodeState.FOREGROUND
            start = begin + 10.0 * number
            session.add(NodeInterval(node="n9", state=state, start_at=start, end_at=start + 10.0))
    asked = {"node": ["n9"], "from_at": begin - 10.0, "to_at": begin + 1100.0}
    assert len(rows(api, now, **asked)["stretches"]["node"]) == 100
    merged = told(rows(api, now, resolution_s=100.0, **asked)["stretches"])
    assert [row["count"] for row in merged] == [10] * 10
    assert {row["state"] for row in merged} == {"hole"}


@pytest.mark.parametrize(
    "asked",
    [
        {"from_at": 200.0, "to_at": 200.5},
        {"from_at": 200.0, "to_at": 100.0},
        {"from_at": 0.0, "to_at": 32 * 86400.0},
        {"from_at": 1e11, "to_at": 1e11},
    ],
)
@pytest.mark.parametrize("path", ["rows", "nodes", "occupancy"])
def test_a_window_that_cannot_be_shown_is_refused(
    api: ApiUnderTest, now: float, path: str, asked: dict[str, float]
) -> None:
    answer = api.viewer.get(f"/v1/timeline/{path}", params={"node": "n1", "find": "x", **asked})
    assert answer.status_code == 400, answer.text
    assert "ask for 1 s to 31 days" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "name", "bad"),
    [
        ("rows", "node", ["n"] * 401),
        ("rows", "resolution_s", -1),
        ("rows", "changed_after", "inf"),
        ("rows", "from_at", "nan"),
        ("nodes", "find", ""),
        ("nodes", "find", "x" * 256),
        ("occupancy", "columns", 0),
        ("occupancy", "columns", 2001),
        ("occupancy", "bands", 501),
        ("occupancy", "bands", 0),
    ],
)
def test_what_is_out_of_bounds_is_refused(
    api: ApiUnderTest, now: float, path: str, name: str, bad: object
) -> None:
    asked = {"from_at": now - 100.0, "to_at": now, "node": "n1", name: bad}
    answer = api.viewer.get(f"/v1/timeline/{path}", params=asked)
    assert answer.status_code == 422
    assert answer.json()["errors"][0].startswith(f"query.{name}: ")


@on_both_databases
def test_a_search_finds_what_ran_in_the_window_and_not_who_is_there_now(
    api: ApiUnderTest, database: str | None
) -> None:
    now = time.time()
    trainer = api.submit(max_nodes=4)["id"]
    times = {"launched_at": now - 900.0, "training_at": now - 890.0, "ended_at": now - 800.0}
    api.add_fragment(trainer, "n1", state=FragmentState.ENDED, cause="preempted", **times)
    api.add_fragment(trainer, "n2", launched_at=now - 30.0)
    with api.sessions.begin() as session:
        write_snapshot(
            session, Snapshot(now - 40.0, (idle("n1"), idle("n2"), busy("n3"), idle("n4")), (), ()), None
        )
        for node, job, name, end_at in (("n4", "77", "100%_cfd", now - 700.0), ("n1", "78", "mdx", now - 20.0)):
            began = {"start_at": now - 950.0, "end_at": end_at}
            session.add(NodeInterval(node=node, state="foreground", job=job, job_name=name, **began))

    def found(text: str, from_at: float, to_at: float) -> list[str]:
        asked = {"from_at": from_at, "to_at": to_at, "find": text}
        answer = api.viewer.get("/v1/timeline/nodes", params=asked)
        assert answer.status_code == 200, answer.text
        assert answer.json()["is_complete"]
        return list(answer.json()["nodes"])

    long_ago, lately = (now - 1000.0, now - 600.0), (now - 60.0, now)
    user = api.viewer.get(f"/v1/trainers/{trainer}").json()["user"]
    assert found("digit", *long_ago) == found(user, *long_ago) == ["n1"]
    assert found("DIGITS", *lately) == ["n2"]
    assert found("77", *long_ago) == found("0%_C", *long_ago) == ["n4"]
    assert found("mdx", *long_ago) == found("mdx", *lately) == ["n1"]
    assert found("77", *lately) == found("0__c", *long_ago) == found("cfd", now - 60.0, now - 50.0) == []
    assert found("cfd", *lately) == ["n3"]
    assert found("N", *long_ago) == ["n1", "n2", "n3", "n4"]


def test_a_search_through_too_much_says_so_and_finds_what_ended_last(
    api: ApiUnderTest, now: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST_SEARCHED", 5)
    with api.sessions.begin() as session:
        for number in range(8):
            times = {"start_at": now - 3000.0, "end_at": now - 2900.0 + number}
            node = f"n{1 + number // 5}"
            session.add(NodeInterval(node=node, state="foreground", job=f"long-{number}", job_name="x", **times))
    asked = {"from_at": now - 3100.0, "to_at": now - 2800.0, "find": "long-0"}
    assert not api.viewer.get("/v1/timeline/nodes", params=asked).json()["is_complete"]
    assert api.viewer.get("/v1/timeline/nodes", params=asked).json()["nodes"] == []
    assert api.viewer.get("/v1/timeline/nodes", params=asked | {"find": "long-7"}).json()["nodes"] == ["n2"]


def occupancy(api: ApiUnderTest, **asked: Any) -> Any:
    answer = api.viewer.get("/v1/timeline/occupancy", params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_occupancy_has_a_digit_for_each_column_of_each_band(api: ApiUnderTest, now: float) -> None:
    document = occupancy(api, from_at=now - 100.0, to_at=now, columns=5, bands=3)
    assert document["columns"] == 5
    assert [(band["first"], band["num_nodes"]) for band in document["bands"]] == [("n1", 1), ("n2", 1), ("n3", 1)]
    first, second, third = document["bands"]
    assert third["foreground"] == "zzzzz"
    assert third["idle"] == third["training"] == "00000"
    assert second["foreground"] == "zzz00"
    assert first["foreground"] == "00000"
    assert [int(digit, 36) for digit in first["training"]] == pytest.approx([17.5, 35.0, 17.5, 0.0, 0.0], abs=1.0)
    assert second["training"][4] == "z"
    whole = occupancy(api, from_at=now - 100.0, to_at=now, columns=1)["bands"]
    assert [(band["first"], band["num_nodes"], len(band["idle"])) for band in whole] == [("n1", 3, 1)]
    assert int(whole[0]["foreground"], 36) == pytest.approx(35 * 160 / 300, abs=1)


def test_occupancy_before_the_kept_time_is_made_from_the_sums_of_hours(api: ApiUnderTest, now: float) -> None:
    hour = int((now - 20 * 86400.0) / 3600.0)
    with api.sessions.begin() as session:
        session.add(UsageHour(hour=hour, idle_node_s=2 * 3600.0, used_node_s=1.5 * 3600.0))
    asked = {"from_at": (hour - 2) * 3600.0, "to_at": (hour + 3) * 3600.0, "columns": 5}
    (band,) = occupancy(api, **asked)["bands"]
    assert (band["training"], band["idle"]) == ("00i00", "00600")
    assert all(set(band["idle"]) == {"0"} for band in occupancy(api, **asked, bands=2)["bands"])


def test_before_a_node_is_known_there_is_no_band(api: ApiUnderTest) -> None:
    document = occupancy(api, from_at=100.0, to_at=200.0, bands=3)
    assert (document["columns"], document["bands"]) == (0, [])


def test_the_nodes_that_have_changed_since_an_answer(api: ApiUnderTest, now: float) -> None:
    whole = api.viewer.get("/v1/nodes").json()
    assert not whole["is_difference"]
    same = api.viewer.get("/v1/nodes", params={"since": whole["version"]}).json()
    assert (same["version"], same["is_difference"], same["nodes"]) == (whole["version"], True, [])
    with api.sessions.begin() as session:
        before = newest_observation(session)
        write_snapshot(session, Snapshot(now, (idle("n1"), busy("n2"), busy("n4")), (), ()), before)
    later = api.viewer.get("/v1/nodes", params={"since": whole["version"]}).json()
    assert [node["name"] for node in later["nodes"]] == ["n2", "n4"]
    assert (later["gone"], later["is_difference"]) == (["n3"], True)
    assert later["version"] != whole["version"]
    unknown = api.viewer.get("/v1/nodes", params={"since": "of-another-process"}).json()
    assert ([node["name"] for node in unknown["nodes"]], unknown["is_difference"]) == (["n1", "n2", "n4"], False)
