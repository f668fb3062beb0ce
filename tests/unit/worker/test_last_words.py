"""A fragment's last report: said again until it is heard, or until somebody waits for the node."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest

from cells import each
from fragment_configs import fragment_config
from oakum_worker.fragment import service_link
from oakum_worker.fragment.service_link import ServiceLink
from oakum_worker.protocol import REPORT_INTERVAL, FragmentReport, Phase
from waiting import wait_until

LAST = FragmentReport(phase=Phase.LEFT, sequence=7, pid=1, host="h")


class Busy(ThreadingHTTPServer):
    """A service that turns the first few reports away."""

    def __init__(self, refusals: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refusals = refusals
        self.asked = threading.Event()
        self.heard: list[FragmentReport] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Busy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.refusals -= 1
        if self.server.refusals < 0:
            self.server.heard.append(FragmentReport.model_validate_json(body))
        self.send_response(204 if self.server.refusals < 0 else 503)
        self.end_headers()
        self.server.asked.set()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[Busy]:
    server = Busy(request.param)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def link_to(service: Busy) -> ServiceLink:
    return ServiceLink(fragment_config(Path("/nowhere"), service_url=service.url), lambda _: None)


@pytest.mark.parametrize("service", [3], indirect=True)
def test_a_service_that_is_busy_is_told_again_until_it_hears(service: Busy) -> None:
    link_to(service).stop(LAST, lambda: False)
    assert service.heard == [LAST]


@pytest.mark.parametrize("service", [float("inf")], indirect=True)
def test_the_node_is_given_back_to_whoever_waits_for_it_also_in_between(
    service: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_link, "_LAST_WORDS_S", float("inf"))
    link_to(service).stop(LAST, service.asked.is_set)
    assert service.heard == []


@pytest.mark.parametrize("service", [float("inf")], indirect=True)
def test_a_service_that_does_not_hear_is_not_told_for_ever(service: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_link, "_LAST_WORDS_S", 0.1)
    link_to(service).stop(LAST, lambda: False)
    assert service.heard == []


@pytest.mark.parametrize("service", [3], indirect=True)
@each("phase", [Phase.FINISHED, Phase.FAILED])
def test_how_training_has_ended_is_told_to_a_service_that_comes_back(
    service: Busy, phase: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_link, "_LAST_WORDS_S", 0.0)
    link_to(service).stop(last := LAST.model_copy(update={"phase": phase}), lambda: False)
    assert service.heard[-1:] == [last]


def test_a_service_that_refuses_how_training_has_ended_is_not_waited_for_as_one_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        return httpx.Response(422, text="phase: not one of 'warming'")

    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(refuse)))
    monkeypatch.setattr(service_link, "_LAST_WORDS_S", 0.7)
    config = fragment_config(Path("/nowhere")).model_copy(update={"orphan_timeout_s": 3600.0})
    link = ServiceLink(config, lambda _: None)
    stopping = threading.Thread(
        target=link.stop, args=(LAST.model_copy(update={"phase": Phase.FINISHED}), lambda: False)
    )
    stopping.daemon = True
    stopping.start()
    stopping.join(timeout=60.0)
    assert not stopping.is_alive()
    assert len(asked) <= 3, "as often as other reports are sent again"


def test_what_a_proxy_answers_before_a_service_that_is_away_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([404, 502, 204])
    transport = httpx.MockTransport(lambda _: httpx.Response(next(answers)))
    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=transport))
    monkeypatch.setattr(service_link, "_LAST_WORDS_S", 0.0)
    link = ServiceLink(fragment_config(Path("/nowhere")), lambda _: None)
    link.stop(LAST.model_copy(update={"phase": Phase.FINISHED}), lambda: False)
    assert next(answers, None) is None, "all three were asked for"


def test_a_last_report_that_is_being_posted_is_not_posted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[FragmentReport] = []
    arrived, answers = threading.Event(), threading.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            heard.append(FragmentReport.model_validate_json(request.content))
            arrived.set()
            answers.wait(timeout=60.0)
        return httpx.Response(204)

    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(answer)))
    link = ServiceLink(fragment_config(Path("/nowhere")), lambda _: None)
    link.start()
    link.report(LAST)
    assert arrived.wait(timeout=60.0)
    stopping = threading.Thread(target=link.stop, args=(LAST, lambda: False))
    stopping.start()
    stopping.join(timeout=0.3)
    assert stopping.is_alive(), "the report may not have arrived"
    answers.set()
    stopping.join(timeout=60.0)
    assert heard == [LAST]


def test_a_report_that_the_service_cannot_read_is_told_of_once_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the service is of an older version, which does not know the agent's phase."""
    refusal = httpx.MockTransport(lambda _: httpx.Response(422, text="phase: not one of 'warming'"))
    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=refusal))
    monkeypatch.setattr(service_link, "_LAST_WORDS_S", 0.3)
    ServiceLink(fragment_config(Path("/nowhere")), lambda _: None).stop(LAST, lambda: False)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"the service refuses what this agent, of Oakum {version('oakum')}, sends: phase: not one of 'warming'"
    )


@each(("status", "told", "wait_s"), [(429, "2", 2.0), (429, "900", 5.0), (429, "", 0.3), (503, "5", 0.3)])
def test_an_agent_that_has_sent_too_much_waits_for_as_long_as_it_is_told(
    status: int, told: str, wait_s: float
) -> None:
    request = httpx.Request("POST", "http://service.test")
    answer = httpx.Response(status, headers={"Retry-After": told}, request=request)
    with pytest.raises(httpx.HTTPStatusError) as raised:
        answer.raise_for_status()
    assert service_link._wait_s(raised.value) == wait_s


class TestIntervals:
    """A service of many agents asks for longer intervals; urgent news do not wait for them."""

    @pytest.fixture
    def told(self, monkeypatch: pytest.MonkeyPatch) -> queue.Queue[FragmentReport]:
        """The reports that a service hears that asks for intervals of 30 s, as they come."""
        heard: queue.Queue[FragmentReport] = queue.Queue()

        def answer(request: httpx.Request) -> httpx.Response:
            if request.method == "POST":
                heard.put(FragmentReport.model_validate_json(request.content))
            return httpx.Response(204, headers={REPORT_INTERVAL: "30"})

        monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(answer)))
        return heard

    def test_progress_waits_and_urgent_news_are_told_at_once(self, told: queue.Queue[FragmentReport]) -> None:
        link = ServiceLink(fragment_config(Path("/nowhere")), lambda _: None)
        link.start()
        first = FragmentReport(phase=Phase.READY, sequence=1, pid=1, host="h")
        link.report(first)
        assert told.get(timeout=60.0) == first
        wait_until("the interval is known", lambda: link._sent is first)
        slow = first.model_copy(update={"sequence": 2, "warnings": ("slow",)})
        urgent = slow.model_copy(update={"sequence": 3, "phase": Phase.TRAINING})
        link.report(slow)
        link.report(urgent)
        assert told.get(timeout=60.0) == urgent
        link.report(urgent.model_copy(update={"sequence": 4, "warnings": ("slower",)}))
        last = urgent.model_copy(update={"sequence": 5, "phase": Phase.LEFT})
        link.stop(last, lambda: False)
        assert told.get(timeout=60.0) == last

    @each(
        ("told", "interval_s"), [("", 1.0), ("soon", 1.0), ("0.1", 1.0), ("5", 5.0), ("1e9", 30.0), ("nan", 1.0)]
    )
    def test_an_interval_that_makes_no_sense_is_1_s(self, told: str, interval_s: float) -> None:
        assert service_link._interval_s(told) == interval_s
