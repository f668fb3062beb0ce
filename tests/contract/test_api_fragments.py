"""The agents' side of the API: reports go in, directives come out as soon as there is a new one."""

from __future__ import annotations

import itertools
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest
import sqlalchemy.exc
from fastapi.testclient import TestClient

from api_under_test import ApiUnderTest, problem_of, report
from oakum_service.api import report_inbox
from oakum_service.api.revisions import Revisions
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.states import TrainerState
from oakum_worker.protocol import REPORT_INTERVAL, Directive, FragmentReport, Phase, TrainingProgress
from postgres_database import on_both_databases

ENDPOINTS = [{"host": "10.0.0.1", "port": 4000}, {"host": "10.0.0.1", "port": 4001}]


@pytest.fixture
def trainer(api: ApiUnderTest) -> str:
    return str(api.submit()["id"])


@pytest.fixture
def fragment(api: ApiUnderTest, trainer: str) -> str:
    return api.add_fragment(trainer)


@pytest.fixture
def agent(api: ApiUnderTest, fragment: str) -> TestClient:
    return api.fragment_client(fragment)


def send(agent: TestClient, fragment: str, document: dict[str, object]) -> httpx.Response:
    return agent.post(f"/v1/fragments/{fragment}/report", json=document)


def poll(agent: TestClient, fragment: str, after: int = -1, wait_s: float = 0.0) -> httpx.Response:
    return agent.get(f"/v1/fragments/{fragment}/directive", params={"after": after, "wait_s": wait_s})


class TestReports:
    @on_both_databases
    def test_a_report_is_kept_whole(self, api: ApiUnderTest, agent: TestClient, fragment: str) -> None:
        document = report(
            7,
            Phase.TRAINING,
            ranks=ENDPOINTS,
            generation=2,
            broken=1,
            startup_s=3.5,
            progress={"generation": 2, "nodes": 1, "step": 5, "total_steps": 9, "epoch": 0, "samples": 480},
            switches=[{"generation": 2, "step": 4, "stall_s": 0.2, "source": "survivor"}],
            warnings=["a corrupt checkpoint was skipped"],
        )
        assert send(agent, fragment, document).status_code == 204
        assert api.stored_report(fragment) == FragmentReport.model_validate(document)

    @on_both_databases
    def test_the_newest_of_reports_at_the_same_moment_is_kept(
        self, api: ApiUnderTest, agent: TestClient, fragment: str
    ) -> None:
        for first in range(1, 24, 8):
            with ThreadPoolExecutor(8) as threads:
                sent = threads.map(lambda number: send(agent, fragment, report(number)), range(first, first + 8))
                assert {answer.status_code for answer in sent} == {204}
            kept = api.stored_report(fragment)
            assert kept is not None
            assert kept.sequence == first + 7

    @on_both_databases
    def test_text_that_a_database_may_not_hold_is_no_error(
        self, api: ApiUnderTest, agent: TestClient, fragment: str
    ) -> None:
        """PostgreSQL cannot store null characters; here they come in the message of an error of a user's code."""
        failure = {"stage": "load", "message": "bad byte \0 in the data", "traceback": "\0"}
        document = report(1, Phase.FAILED, failure=failure, warnings=["\0"])
        assert send(agent, fragment, document).status_code == 204
        with api.sessions.begin() as session:
            keeper = api.keeper()
            keeper.read_reports(session, time.time())
            keeper.turn(session, [], time.time())
        shown = api.viewer.get("/v1/trainers/digits").json()
        assert shown["state"] == "failed"
        assert re.fullmatch("bad byte [\0\ufffd] in the data", shown["message"])

    @on_both_databases
    def test_what_agents_see_of_their_nodes_is_kept_and_shown(
        self, api: ApiUnderTest, trainer: str, fragment: str
    ) -> None:
        use = {
            "cores": 8,
            "busy_cores": 6.0,
            "own_cores": 4,
            "memory_bytes": 1000,
            "used_bytes": 500,
            "own_bytes": 9,
        }
        for name, told in (("n7", use), ("n8", {**use, "busy_cores": 2.0, "gpus": 2, "gpu_use": 0.5})):
            other = api.add_fragment(trainer, name)
            assert send(api.fragment_client(other), other, report(1) | {"use": told}).status_code == 204
            assert send(api.fragment_client(other), other, report(1) | {"use": use}).status_code == 204
        send(api.fragment_client(fragment), fragment, report(1) | {"use": {"cores": -1}})
        path = f"/v1/trainers/{trainer}/node-use"
        shown = api.user.get(path).json()
        assert [node["node"] for node in shown["nodes"]] == ["n8", "n7"]
        assert {
            name: shown["nodes"][0][name] for name in ("cores", "memory_bytes", "gpus", "gpu_memory_bytes")
        } == {
            "cores": 8.0,
            "memory_bytes": 1000,
            "gpus": 2,
            "gpu_memory_bytes": None,
        }
        (point,) = api.user.get(f"{path}?node=n7").json()["points"]
        assert point["cpu"] == {"mean": 0.75, "least": 0.75, "greatest": 0.75}
        assert (point["own_cpu"]["mean"], point["memory"]["mean"], point["own_memory"]["mean"]) == (
            0.5,
            0.5,
            0.009,
        )
        assert (point["gpu"], point["gpu_memory"]) == (None, None)
        assert api.user.get(f"{path}?node=n9").json()["points"] == []
        assert api.user.get(f"{path}?to_at=1").json() == {"nodes": [], "points": []}

    def test_an_older_report_is_ignored(self, api: ApiUnderTest, agent: TestClient, fragment: str) -> None:
        for sequence, phase in ((5, Phase.TRAINING), (4, Phase.READY), (5, Phase.WARMING)):
            assert send(agent, fragment, report(sequence, phase)).status_code == 204
        assert api.stored_report(fragment) == FragmentReport.model_validate(report(5, Phase.TRAINING))

    def test_an_older_report_still_shows_that_the_agent_lives(
        self, api: ApiUnderTest, agent: TestClient, fragment: str
    ) -> None:
        send(agent, fragment, report(5))
        with api.sessions.begin() as session:
            session.get_one(Report, fragment).received_at = 0.0
        send(agent, fragment, report(4))
        with api.sessions.begin() as session:
            assert session.get_one(Report, fragment).received_at == pytest.approx(time.time(), abs=30.0)

    def test_what_concerns_the_membership_wakes_the_controller_and_progress_does_not(
        self, api: ApiUnderTest, agent: TestClient, fragment: str
    ) -> None:
        def wakes(document: dict[str, object]) -> bool:
            before = api.news_for_controller.version
            assert send(agent, fragment, document).status_code == 204
            return api.news_for_controller.version > before

        progress = {"generation": 1, "nodes": 1, "step": 5, "total_steps": 9, "epoch": 0, "samples": 480}
        failure = {"stage": "train", "message": "out of memory"}
        assert wakes(report(1))
        assert not wakes(report(2))
        assert wakes(report(3, Phase.READY))
        assert wakes(report(4, Phase.READY, ranks=ENDPOINTS))
        assert wakes(report(5, Phase.TRAINING, ranks=ENDPOINTS, generation=1))
        assert not wakes(report(6, Phase.TRAINING, ranks=ENDPOINTS, generation=1, progress=progress))
        assert wakes(report(7, Phase.TRAINING, ranks=ENDPOINTS, generation=1, broken=1))
        assert wakes(report(8, Phase.TRAINING, ranks=ENDPOINTS, generation=1, broken=1, signalled=True))
        assert wakes(report(9, Phase.FAILED, ranks=ENDPOINTS, generation=1, broken=1, failure=failure))

    def test_reports_that_arrive_together_are_each_kept(self, api: ApiUnderTest, trainer: str) -> None:
        fragments = [api.add_fragment(trainer, f"n{i}") for i in range(40)]
        together = threading.Barrier(8)

        def send_some(part: int) -> list[int]:
            together.wait(30.0)
            own = fragments[part::8]
            return [
                send(api.fragment_client(each), each, report(sequence)).status_code
                for sequence in (2, 3, 1)
                for each in own
            ]

        with ThreadPoolExecutor(8) as threads:
            answers = [status for some in threads.map(send_some, range(8)) for status in some]
        assert answers == [204] * 120
        kept = [api.stored_report(each) for each in fragments]
        assert [each.sequence for each in kept if each is not None] == [3] * 40

    def test_the_answer_says_how_often_to_report(
        self, agent: TestClient, fragment: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert send(agent, fragment, report(1)).headers[REPORT_INTERVAL] == "1"
        monkeypatch.setattr(report_inbox, "report_interval_s", lambda agents: 2.5 * agents)
        assert send(agent, fragment, report(2)).headers[REPORT_INTERVAL] == "2.5"

    def test_a_database_that_does_not_answer_is_told_as_by_any_route(
        self, agent: TestClient, fragment: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def wait_in_vain(*_: object) -> None:
            raise sqlalchemy.exc.TimeoutError("no connection within 10 s")

        monkeypatch.setattr(report_inbox, "_store", wait_in_vain)
        assert "does not answer" in problem_of(send(agent, fragment, report(1)), 503)["detail"]

    def test_agents_that_tell_progress_report_as_often_as_their_own_number_lets_them(
        self, api: ApiUnderTest, agent: TestClient, trainer: str, fragment: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(report_inbox, "report_interval_s", lambda agents: 2.5 * agents)
        for node in ("n2", "n3"):
            other = api.add_fragment(trainer, node)
            send(api.fragment_client(other), other, report(1))
        assert send(agent, fragment, report(1)).headers[REPORT_INTERVAL] == "7.5"
        of_first = TrainingProgress(generation=1, nodes=1, step=5, total_steps=9, epoch=0, samples=480, loss=1.0)
        telling = report(2) | {"progress": of_first.model_dump(mode="json")}
        assert send(agent, fragment, telling).headers[REPORT_INTERVAL] == "2.5"
        assert send(agent, fragment, report(3)).headers[REPORT_INTERVAL] == "7.5"

    def test_fragments_that_are_silent_for_long_do_not_make_others_report_less_often(
        self, api: ApiUnderTest, agent: TestClient, trainer: str, fragment: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(report_inbox, "report_interval_s", lambda agents: 2.5 * agents)
        gone = api.add_fragment(trainer, "n2")
        send(api.fragment_client(gone), gone, report(1))
        assert send(agent, fragment, report(1)).headers[REPORT_INTERVAL] == "5"
        monkeypatch.setattr(report_inbox, "_FORGOTTEN_S", 0.0)
        assert send(agent, fragment, report(2)).headers[REPORT_INTERVAL] in ("0", "2.5")
        monkeypatch.setattr(report_inbox, "_FORGOTTEN_S", 60.0)
        assert send(agent, fragment, report(3)).headers[REPORT_INTERVAL] == "2.5"

    def test_a_newer_agent_may_say_more_than_this_service_knows(
        self, api: ApiUnderTest, agent: TestClient, fragment: str
    ) -> None:
        assert send(agent, fragment, report(1) | {"temperature_c": 71.0}).status_code == 204
        assert api.stored_report(fragment) == FragmentReport.model_validate(report(1))

    def test_a_newer_agent_may_have_its_state_from_where_this_service_does_not_know(
        self, api: ApiUnderTest, trainer: str, fragment: str
    ) -> None:
        agent, keeper = api.fragment_client(fragment), api.keeper()
        switch = {"generation": 1, "step": 5, "stall_s": 0.25, "source": "peer cache"}
        for document in (report(1, Phase.READY), report(2, Phase.TRAINING, generation=1, switches=[switch])):
            assert send(agent, fragment, document).status_code == 204
            with api.sessions.begin() as session:
                keeper.read_reports(session, time.time())
                keeper.turn(session, [], time.time())
        newest = api.viewer.get("/v1/events/recent?limit=1").json()["events"][0]
        assert newest["kind"] == "generation.formed"
        assert newest["message"].startswith("generation 1 (1 joined): goes on from peer cache at step 5")

    @pytest.mark.parametrize(
        ("fields", "where"),
        [
            ({"phase": "dreaming"}, "phase"),
            ({"sequence": "first"}, "sequence"),
            ({"sequence": 2**63}, "sequence"),
            ({"generation": -1}, "generation"),
            ({"broken": 2**31}, "broken"),
            ({"startup_s": -1.0}, "startup_s"),
            (
                {"switches": [{"generation": 1, "step": 1, "stall_s": -1.0, "source": "survivor"}]},
                "switches.0.stall_s",
            ),
            ({"progress": {"generation": 1}}, "progress.nodes"),
        ],
    )
    def test_a_report_that_makes_no_sense_is_refused(
        self, api: ApiUnderTest, agent: TestClient, fragment: str, fields: dict[str, object], where: str
    ) -> None:
        lines = problem_of(send(agent, fragment, report(1) | fields), 422)["errors"]
        assert lines[0].startswith(f"{where}: ")
        assert api.stored_report(fragment) is None

    def test_a_task_whose_numbers_have_left_the_reals_still_reports(
        self, api: ApiUnderTest, agent: TestClient, fragment: str
    ) -> None:
        """Training that diverges concerns the user, and is no reason to lose the fragment."""
        progress = TrainingProgress(
            generation=1,
            nodes=1,
            step=5,
            total_steps=9,
            epoch=0,
            samples=480,
            loss=math.nan,
            samples_per_s=math.inf,
            metrics={"perplexity": math.inf, "accuracy": 0.5, "recall": math.nan},
        )
        sent = FragmentReport(phase=Phase.TRAINING, sequence=1, pid=1, host="n1", progress=progress)
        response = agent.post(
            f"/v1/fragments/{fragment}/report",
            content=sent.model_dump_json(),
            headers={"Content-Type": "application/json"},
        )
        assert response.status_code == 204, response.text
        kept = api.stored_report(fragment)
        assert kept is not None
        assert kept.progress is not None
        assert (kept.progress.loss, kept.progress.samples_per_s) == (None, None)
        assert kept.progress.metrics == {"accuracy": 0.5}


class TestGone:
    def test_an_ended_fragment_is_not_wanted_any_more(
        self, api: ApiUnderTest, agent: TestClient, fragment: str
    ) -> None:
        send(agent, fragment, report(1))
        with api.sessions.begin() as session:
            session.get_one(Fragment, fragment).state = FragmentState.ENDED
        detail = problem_of(send(agent, fragment, report(2)), 410)["detail"]
        assert detail == f"fragment {fragment} has ended"
        problem_of(poll(agent, fragment, wait_s=20.0), 410)
        kept = api.stored_report(fragment)
        assert kept is not None
        assert kept.sequence == 1

    def test_a_fragment_that_no_database_knows_is_not_wanted(self, api: ApiUnderTest) -> None:
        agent = api.fragment_client("lost")
        problem_of(send(agent, "lost", report(1)), 410)
        problem_of(poll(agent, "lost"), 410)


class TestDirectives:
    @pytest.fixture
    def waiting(self, api: ApiUnderTest, agent: TestClient, fragment: str) -> Iterator[Future[httpx.Response]]:
        """A long poll for what follows revision 0, which has begun to wait."""
        with ThreadPoolExecutor(1) as thread:
            polled = thread.submit(poll, agent, fragment, 0, 25.0)
            assert api.news_for_readers.waited.wait(20.0)
            yield polled
            api.news_for_readers.close()

    def test_the_first_word_comes_at_once(self, agent: TestClient, fragment: str) -> None:
        response = poll(agent, fragment, wait_s=20.0)
        assert response.status_code == 200
        assert Directive.model_validate(response.json()) == Directive(revision=0)

    def test_only_a_newer_revision_than_the_one_known_is_told(
        self, api: ApiUnderTest, agent: TestClient, trainer: str, fragment: str
    ) -> None:
        api.change_row(trainer, revision=7)
        assert poll(agent, fragment, after=6).json()["revision"] == 7
        assert [poll(agent, fragment, after=after).status_code for after in (7, 8)] == [204, 204]
        assert poll(agent, fragment, after=7).content == b""

    def test_nothing_new_is_told_when_time_is_up_and_not_before(self, agent: TestClient, fragment: str) -> None:
        began_s = time.monotonic()
        assert poll(agent, fragment, after=0, wait_s=0.4).status_code == 204
        assert 0.4 <= time.monotonic() - began_s < 10.0

    def test_a_change_ends_the_wait(
        self, api: ApiUnderTest, trainer: str, waiting: Future[httpx.Response]
    ) -> None:
        api.change_row(trainer, revision=1, ended_through=3)
        response = waiting.result(15.0)
        assert response.status_code == 200
        assert Directive.model_validate(response.json()) == Directive(revision=1, ended_through=3)

    def test_a_change_between_the_look_and_the_wait_is_not_missed(
        self,
        api: ApiUnderTest,
        agent: TestClient,
        trainer: str,
        fragment: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        look, looks = Revisions._query, itertools.count(1)

        def look_and_see_it_change(revisions: Revisions) -> dict[str, int]:
            found = look(revisions)
            if next(looks) == 1:
                api.change_row(trainer, revision=1)
            return found

        monkeypatch.setattr(Revisions, "_query", look_and_see_it_change)
        began_s = time.monotonic()
        assert poll(agent, fragment, after=0, wait_s=25.0).json()["revision"] == 1
        assert time.monotonic() - began_s < 15.0

    def test_news_that_are_not_its_own_do_not_end_the_wait(
        self, api: ApiUnderTest, trainer: str, waiting: Future[httpx.Response]
    ) -> None:
        api.news_for_readers.waited.clear()
        api.news_for_readers.notify()
        assert api.news_for_readers.waited.wait(15.0)
        assert not waiting.done()

    def test_a_fragment_that_ends_while_its_agent_waits_is_told_so(
        self, api: ApiUnderTest, fragment: str, waiting: Future[httpx.Response]
    ) -> None:
        with api.sessions.begin() as session:
            session.get_one(Fragment, fragment).state = FragmentState.ENDED
        api.news_for_readers.notify()
        problem_of(waiting.result(15.0), 410)

    def test_a_service_that_stops_lets_nobody_wait(
        self, api: ApiUnderTest, waiting: Future[httpx.Response]
    ) -> None:
        api.news_for_readers.close()
        assert waiting.result(15.0).status_code == 204

    @pytest.mark.parametrize("wait_s", [-1, 31, "nan", "inf"])
    def test_nobody_waits_for_ever(self, agent: TestClient, fragment: str, wait_s: object) -> None:
        params = {"wait_s": str(wait_s)}
        (line,) = problem_of(agent.get(f"/v1/fragments/{fragment}/directive", params=params), 422)["errors"]
        assert line.startswith("query.wait_s: ")

    def test_a_generation_lists_its_members_in_order_with_their_ranks(
        self, api: ApiUnderTest, trainer: str, fragment: str
    ) -> None:
        other = api.add_fragment(trainer, "n2")
        send(api.fragment_client(fragment), fragment, report(1, Phase.READY, ranks=ENDPOINTS[:1]))
        send(api.fragment_client(other), other, report(1, Phase.READY, ranks=ENDPOINTS))
        api.change_row(trainer, revision=4, generation=3, ended_through=2, members=[other, fragment])
        told = [poll(api.fragment_client(each), each).json() for each in (fragment, other)]
        assert told[0] == told[1]
        assert len(bytes.fromhex(told[0]["generation"].pop("secret"))) == 32
        assert told[0] == {
            "revision": 4,
            "generation": {
                "number": 3,
                "members": [
                    {"fragment": other, "node": "n2", "ranks": ENDPOINTS},
                    {"fragment": fragment, "node": "n1", "ranks": ENDPOINTS[:1]},
                ],
                "closer": None,
                "has_state": False,
            },
            "over": 2,
            "leave": False,
        }

    def test_the_word_to_leave_is_for_the_released_fragment_alone(
        self, api: ApiUnderTest, trainer: str, fragment: str
    ) -> None:
        released = api.add_fragment(trainer, "n2", released=True)
        assert poll(api.fragment_client(released), released).json()["leave"] is True
        assert poll(api.fragment_client(fragment), fragment).json()["leave"] is False

    @pytest.mark.parametrize("state", TrainerState)
    def test_every_fragment_of_a_trainer_that_has_ended_is_to_leave(
        self, api: ApiUnderTest, agent: TestClient, trainer: str, fragment: str, state: TrainerState
    ) -> None:
        api.change_row(trainer, state=state, revision=1, generation=2, members=[], saver=fragment)
        directive = poll(agent, fragment).json()
        assert directive["leave"] is state.ended
        assert directive["generation"] == {
            "number": 2,
            "members": [],
            "closer": fragment,
            "has_state": False,
            "secret": None,
        }

    def test_each_generations_secret_is_its_members_alone(
        self, api: ApiUnderTest, trainer: str, fragment: str
    ) -> None:
        newcomer, another = api.add_fragment(trainer, "n2"), str(api.submit(name="another")["id"])
        stranger = api.add_fragment(another, "n3")
        secrets = set()
        for generation in (3, 4):
            for of, each in ((trainer, fragment), (another, stranger)):
                send(api.fragment_client(each), each, report(generation, Phase.READY, ranks=ENDPOINTS[:1]))
                api.change_row(of, revision=generation, generation=generation, members=[each])
                secrets.add(poll(api.fragment_client(each), each).json()["generation"]["secret"])
            assert poll(api.fragment_client(newcomer), newcomer).json()["generation"]["secret"] is None
        assert len(secrets) == 4


def test_half_a_surrogate_pair_in_a_report_stops_no_turn_of_the_controller(api: ApiUnderTest) -> None:
    """Python's JSON has such halves, in names of files for instance; a strict reader refuses a text with one."""
    fragment = api.add_fragment(api.submit()["id"])
    body = json.dumps(report(1) | {"warnings": ["a\udce9b", "\ud83d\ude00"]})
    headers = {"Content-Type": "application/json"}
    agent = api.fragment_client(fragment)
    assert agent.post(f"/v1/fragments/{fragment}/report", content=body, headers=headers).status_code == 204
    with api.sessions.begin() as session:
        keeper = api.keeper()
        keeper.read_reports(session, time.time())
        assert session.get_one(Report, fragment).body.warnings == ("a\ufffdb", "\U0001f600")


def test_a_question_in_odd_words_is_answered_by_the_routes(api: ApiUnderTest) -> None:
    trainer = api.submit()["id"]
    fragment = api.add_fragment(trainer)
    agent = api.client(api.context.configs.token(fragment))
    for query in ("after=", "after=\u0661", "wait_s=", "wait_s=31"):
        problem_of(agent.get(f"/v1/fragments/{fragment}/directive?{query}"), 422)
