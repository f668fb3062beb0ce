"""Lists that are read page by page, and how little is read and sent for them."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, event

from api_under_test import ApiUnderTest, problem_of
from cells import each
from oakum_client.rest.client import OakumClient
from oakum_service.control.usage import complete_hours, usage_since
from oakum_service.db.engine import open_readers
from oakum_service.db.models.cluster import ForegroundStart, NodeInterval
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.trainers import Trainer
from oakum_service.db.models.usage import UsageHour
from oakum_service.states import NodeState, TrainerState

LISTS = ("cluster", "holes?since_s=600", "timeline?since_s=600", "trainers", "plans", "events/recent")


def add_holes(api: ApiUnderTest, ages_s: list[float]) -> None:
    """Holes that ended so many seconds ago, and one that lasts."""
    now = time.time()
    ended = [
        NodeInterval(node=f"n{i}", state=NodeState.HOLE, start_at=now - age - 50, end_at=now - age)
        for i, age in enumerate(ages_s)
    ]
    lasting = NodeInterval(node="lasting", state=NodeState.HOLE, start_at=now - 1000, end_at=None)
    busy = NodeInterval(node="busy", state=NodeState.FOREGROUND, start_at=now - 60, end_at=now - 10)
    with api.sessions.begin() as session:
        session.add_all([*ended, lasting, busy])


def end_trainers(api: ApiUnderTest, count: int) -> list[str]:
    """Submit trainers and end all but the first; returns their ids in the order of submission."""
    ids = [str(api.submit(name=f"trainer-{number}")["id"]) for number in range(count)]
    with api.sessions.begin() as session:
        for place, id_ in enumerate(ids):
            row = session.get_one(Trainer, id_)
            row.submitted_at = 1000.0 + place // 2  # two at the same moment
            row.state = TrainerState.WAITING if place == 0 else TrainerState.FINISHED
    return sorted(ids, key=lambda id_: (1000.0 + ids.index(id_) // 2, id_))


def pages_of(api: ApiUnderTest, path: str, rows: str, between: Callable[[], None] = lambda: None) -> list[Any]:
    """The rows of each page, from the newest page to the oldest."""
    found, before = [], None
    while True:
        answer = api.viewer.get(path if before is None else f"{path}&before={before}")
        assert answer.status_code == 200, answer.text
        found.append(answer.json()[rows])
        if (before := answer.json()["next"]) is None:
            return found
        between()


def test_pages_of_holes_have_each_once_also_while_holes_end(api: ApiUnderTest) -> None:
    add_holes(api, [10.0 * (number // 2) for number in range(1, 24)])  # two at the same moment
    pages = pages_of(api, "/v1/holes?since_s=600&limit=5", "holes", between=lambda: add_holes(api, [0.0]))
    assert [len(page) for page in pages] == [6, 5, 5, 5, 3]
    nodes = [hole["node"] for page in pages for hole in page]
    assert sorted(nodes) == sorted([*(f"n{number}" for number in range(23)), "lasting"])
    assert all([hole["start_at"] for hole in page] == sorted(hole["start_at"] for hole in page) for page in pages)


def test_pages_of_trainers_have_each_ended_one_once_and_the_live_ones_first(api: ApiUnderTest) -> None:
    ids = end_trainers(api, 12)
    pages = pages_of(api, "/v1/trainers?limit=4", "trainers", between=lambda: None)
    assert [len(page) for page in pages] == [5, 4, 3]
    assert pages[0][0]["state"] == "waiting"
    ended = [view["id"] for page in reversed(pages) for view in page if view["state"] == "finished"]
    assert [*ended, pages[0][0]["id"]] == [id_ for id_ in ids if id_ in ended] + [pages[0][0]["id"]]
    assert len(set(ended)) == 11


def test_trainers_of_one_user_or_one_state(api: ApiUnderTest) -> None:
    end_trainers(api, 4)
    assert len(api.viewer.get("/v1/trainers?user=ulla").json()["trainers"]) == 4
    assert api.viewer.get("/v1/trainers?user=nobody").json()["trainers"] == []
    assert len(pages_of(api, "/v1/trainers?state=finished&limit=2", "trainers")) == 2
    assert len(api.viewer.get("/v1/trainers?state=waiting").json()["trainers"]) == 1


def test_live_trainers_alone_are_one_answer(api: ApiUnderTest) -> None:
    end_trainers(api, 4)
    for user, states in (("", ["waiting"]), ("&user=ulla", ["waiting"]), ("&user=nobody", [])):
        answer = api.viewer.get(f"/v1/trainers?live=true&limit=1{user}").json()
        assert ([view["state"] for view in answer["trainers"]], answer["next"]) == (states, None), user


@each("path", ["/v1/holes?before=", "/v1/trainers?before="])
@each("before", ["yesterday", "1_", "-1_2", "1.0_2;", "9" * 400 + "_1"])
def test_a_place_that_no_answer_has_named_is_refused(api: ApiUnderTest, path: str, before: str) -> None:
    [error] = problem_of(api.viewer.get(path + before), 422)["errors"]
    assert "before" in str(error)


def test_a_place_in_another_list_is_refused(api: ApiUnderTest) -> None:
    detail = problem_of(api.viewer.get("/v1/holes?before=1763884416.25_7f-a"), 400)["detail"]
    assert "give the `next` of this list's last page" in detail


def test_a_timeline_of_too_much_begins_later_and_says_so(api: ApiUnderTest) -> None:
    add_holes(api, [10.0 * number for number in range(1, 31)])
    whole = api.viewer.get("/v1/timeline?since_s=600").json()
    assert (whole["is_shortened"], len(whole["holes"])) == (False, 31)
    short = api.viewer.get("/v1/timeline?since_s=600&limit=7").json()
    ended = [hole for hole in short["holes"] if hole["end_at"] is not None]
    assert (short["is_shortened"], len(ended) + len(short["foreground"])) == (True, 7)
    assert min(hole["end_at"] for hole in ended) >= short["from_at"] > whole["from_at"]
    assert "lasting" in {hole["node"] for hole in short["holes"]}


def test_the_client_reads_all_pages(api: ApiUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    add_holes(api, [10.0 * number for number in range(1, 31)])
    ids = end_trainers(api, 5)
    client = OakumClient(url="http://service.test", token="t")
    monkeypatch.setattr("oakum_client.rest.long_lists._LONG_PAGE", 2)
    monkeypatch.setattr(client._connection, "_http", api.viewer)
    monkeypatch.setattr(api.viewer, "get", _with_small_first_pages(api.viewer.get))
    assert [view.id for view in client.trainers().trainers] == ids
    holes = client.holes(600).holes
    assert len(holes) == 31
    assert holes == sorted(holes, key=lambda hole: hole.start_at)


def _with_small_first_pages(get: Callable[..., Any]) -> Callable[..., Any]:
    return lambda path, params: get(path, params={"limit": 2} | params)


def test_long_answers_are_compressed_for_those_who_take_it(api: ApiUnderTest) -> None:
    add_holes(api, [float(number) for number in range(100)])
    packed = api.viewer.get("/v1/holes")
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(packed.content) / 4
    plain = api.viewer.get("/v1/holes", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.json()["holes"] == packed.json()["holes"]


def add_history(api: ApiUnderTest, chance: random.Random, now: float, hours: float) -> None:
    """Holes and fragments of random lengths over the last `hours`, some of which last."""
    trainer = str(api.submit(name="old")["id"])
    with api.sessions.begin() as session:
        for number in range(300):
            start = now - chance.random() * hours * 3600
            end = start + chance.expovariate(1 / 4000)
            stop = None if end > now else end
            session.add(NodeInterval(node=f"n{number}", state=NodeState.HOLE, start_at=start, end_at=stop))
            state = FragmentState.LIVE if stop is None else FragmentState.ENDED
            times = {"launched_at": start, "training_at": start + 5, "ended_at": stop}
            session.add(Fragment(id=f"f{number}", trainer_id=trainer, node=f"n{number}", state=state, **times))
        session.add(ForegroundStart(job="1", started_at=now - 5, num_nodes=1, delay_s=0.5))


@pytest.mark.parametrize("seed", range(3))
def test_sums_of_hours_are_those_of_the_rows(api: ApiUnderTest, seed: int) -> None:
    """Rolled up at random moments, as by a service that is not always there."""
    chance, now = random.Random(seed), time.time()
    add_history(api, chance, now, 30)
    with api.sessions() as session:
        plain = usage_since(session, now - 40 * 3600, now)
    for moment in [*sorted(now - chance.random() * 40 * 3600 for _ in range(4)), now]:
        with api.sessions.begin() as session:
            session.add_all(complete_hours(session, moment))
    with api.sessions() as session:
        kept = session.query(UsageHour).count()
        summed = usage_since(session, now - 40 * 3600, now)
        session.query(NodeInterval).where(NodeInterval.end_at < now - 7200).delete()
        session.query(Fragment).where(Fragment.ended_at < now - 7200).delete()
        forgotten = usage_since(session, now - 40 * 3600, now)
        lately = usage_since(session, now - 1800, now)
    assert kept >= 28
    assert summed == pytest.approx(plain)
    assert forgotten == pytest.approx(plain)
    assert 0 < lately.idle_node_s < plain.idle_node_s


def test_an_hour_is_kept_only_when_nothing_of_it_changes_any_more(api: ApiUnderTest) -> None:
    hour = math.floor(time.time() / 3600) * 3600.0
    with api.sessions.begin() as session:
        assert complete_hours(session, hour) == []
        session.add(NodeInterval(node="n1", state=NodeState.HOLE, start_at=hour - 5000, end_at=None))
    with api.sessions() as session:
        assert [row.idle_node_s for row in complete_hours(session, hour + 599)] == [1400.0]
        assert [row.idle_node_s for row in complete_hours(session, hour + 601)] == [1400.0, 3600.0]


@pytest.fixture
def with_history(api: ApiUnderTest) -> ApiUnderTest:
    now = time.time()
    add_history(api, random.Random(1), now, 30)
    with api.sessions.begin() as session:
        session.add_all(complete_hours(session, now))
    return api


@each("path", LISTS)
def test_no_list_reads_what_is_older_than_it_tells_of(with_history: ApiUnderTest, path: str) -> None:
    """By SQLite's own plans of the queries: none goes through a table that grows with time."""
    steps = _steps(with_history.engine, with_history, path)
    assert steps
    growing = ("fragments", "node_intervals", "foreground_starts", "reports", "events", "plans")
    scans = [step for step in steps if step.startswith("SCAN ") and step.split()[1] in growing]
    # Backwards through an index, to the number of rows that is shown.
    assert [scan for scan in scans if scan not in ("SCAN events", "SCAN plans")] == []


def _steps(engine: Engine, api: ApiUnderTest, path: str) -> list[str]:
    asked: list[tuple[str, Any]] = []

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        asked.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        assert api.viewer.get(f"/v1/{path}").status_code == 200
    finally:
        event.remove(engine, "before_cursor_execute", note)
    queries = [(statement, parameters) for statement, parameters in asked if statement.startswith("SELECT")]
    with open_readers(engine).begin() as session:
        connection = session.connection()
        return [
            row[3]
            for statement, parameters in queries
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
