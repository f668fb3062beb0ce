"""A fragment's last report: said again until it is heard, or until somebody waits for the node."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fragment_configs import fragment_config
from oakum_worker import service_link
from oakum_worker.protocol import FragmentReport, Phase
from oakum_worker.service_link import ServiceLink

LAST = FragmentReport(phase=Phase.FINISHED, sequence=7, pid=1, host="h")


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


@pytest.mark.parametrize("service", [20], indirect=True)
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
