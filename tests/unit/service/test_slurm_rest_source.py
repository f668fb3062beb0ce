"""Slurm's state from slurmrestd."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from cells import each
from oakum_service.config import SlurmSettings
from oakum_service.errors import ConfigurationError, SchedulerError
from oakum_service.schedulers.slurm.reading import rest_source
from oakum_service.schedulers.slurm.reading.rest_source import RestSource
from slurm_payloads import RELEASES, answer, generation, job, node, number, reservation


@dataclass
class FakeSlurmrestd:
    """Answers as a slurmrestd with these parsers does."""

    parsers: tuple[str, ...]
    paths: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    users: list[str | None] = field(default_factory=list)
    answers: dict[str, httpx.Response] = field(default_factory=dict)
    """By the last part of the path, before all else."""
    unchanged_since: int | None = None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.raw_path.decode())
        self.tokens.append(request.headers.get("X-SLURM-USER-TOKEN"))
        self.users.append(request.headers.get("X-SLURM-USER-NAME"))
        _, service, parser, what = request.url.path.split("/")
        assert service == "slurm"
        if parser not in self.parsers:
            return httpx.Response(404, text="Unable find requested URL.")
        if what in self.answers:
            return self.answers[what]
        since = request.url.params.get("update_time")
        if since is not None and self.unchanged_since is not None and int(since) >= self.unchanged_since:
            return httpx.Response(304)
        return httpx.Response(200, content=self._body(parser, what))

    def _body(self, parser: str, what: str) -> bytes:
        if what == "diag":
            cycle = number(parser, 2_500_000) if generation(parser) >= 40 else 2_500_000
            return answer(parser, "x", [], statistics={"schedule_cycle_last": cycle, "schedule_cycle_max": 1})
        items: dict[str, list[dict[str, Any]]] = {
            "ping": [],
            "nodes": [node(parser, "n1"), node(parser, "n2", "ALLOCATED")],
            "jobs": [job(parser, 7, "RUNNING", nodes="n2")],
            "reservations": [reservation(parser, "r")],
        }
        return answer(parser, "pings" if what == "ping" else what, items[what])


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JWT", "secret")


def make(slurm: FakeSlurmrestd, **settings: Any) -> RestSource:
    given = {"rest_url": "http://head:6820", "rest_user": "oakum"} | settings
    return RestSource(SlurmSettings(**given), httpx.MockTransport(slurm), lambda: 1000.0)


@each("parser", RELEASES)
def test_every_parser_tells_the_same(parser: str) -> None:
    slurm = FakeSlurmrestd((parser,))
    source = make(slurm)
    state = source.read()
    assert (state.taken_at, state.version) == (1000.0, RELEASES[parser])
    assert [(n.name, n.states) for n in state.nodes] == [("n1", ("IDLE",)), ("n2", ("ALLOCATED",))]
    assert [(j.id, j.nodes) for j in state.jobs] == [(7, "n2")]
    assert [r.name for r in state.reservations] == ["r"]
    assert source.cycle_s() == 2.5
    assert slurm.paths[-4:] == [f"/slurm/{parser}/{what}" for what in ("nodes", "jobs", "reservations", "diag")]


def test_the_newest_parser_that_both_know_is_found_once() -> None:
    slurm = FakeSlurmrestd(("v0.0.40", "v0.0.41"))
    source = make(slurm)
    source.read()
    source.read()
    assert [path for path in slurm.paths if path.endswith("ping")] == [
        f"/slurm/v0.0.{number}/ping" for number in (44, 43, 42, 41)
    ]
    assert not [path for path in slurm.paths if "v0.0.40" in path]


def test_a_pinned_parser_is_not_looked_for() -> None:
    slurm = FakeSlurmrestd(("v0.0.40", "v0.0.41"))
    make(slurm, parser="v0.0.40").read()
    assert slurm.paths[0] == "/slurm/v0.0.40/ping"


@pytest.mark.parametrize(("parser", "warns"), [("v0.0.37", True), ("v0.0.38", True), ("v0.0.39", False)])
def test_a_parser_that_leaves_out_what_matters_is_warned_of_once(
    parser: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    slurm = FakeSlurmrestd((parser,))
    source = make(slurm)
    source.read()
    slurm.answers["jobs"] = httpx.Response(503, text="busy")
    with pytest.raises(SchedulerError):
        source.read()
    slurm.answers.clear()
    source.read()
    assert [message.startswith(f"slurmrestd's parser {parser}") for message in caplog.messages] == [True] * warns


def test_no_parser_in_common_says_what_to_set() -> None:
    with pytest.raises(SchedulerError, match=r"none of the parsers v0\.0\.44, .*OAKUM_SLURM_PARSER"):
        make(FakeSlurmrestd(("v0.0.99",))).read()


def test_nothing_is_sent_again_that_has_not_changed() -> None:
    slurm = FakeSlurmrestd(("v0.0.44",), unchanged_since=1_700_000_500)
    source = make(slurm)
    first = source.read()
    assert source.read() == first
    assert slurm.paths[-2:] == [
        "/slurm/v0.0.44/nodes?update_time=1700000500",
        "/slurm/v0.0.44/jobs?update_time=1700000500",
    ]


def test_what_has_changed_is_read_anew() -> None:
    slurm = FakeSlurmrestd(("v0.0.44",), unchanged_since=1_700_000_501)
    source = make(slurm)
    source.read()
    slurm.answers["nodes"] = httpx.Response(200, content=answer("v0.0.44", "nodes", [node("v0.0.44", "n9")]))
    assert [n.name for n in source.read().nodes] == ["n9"]


def test_after_an_error_everything_is_asked_anew() -> None:
    slurm = FakeSlurmrestd(("v0.0.44",), unchanged_since=1_700_000_500)
    source = make(slurm)
    source.read()
    slurm.answers["jobs"] = httpx.Response(500, json={"errors": [{"error": "slurmctld is down", "errno": 1}]})
    with pytest.raises(
        SchedulerError, match=r"GET http://head:6820/slurm/v0\.0\.44/jobs.* 500: slurmctld is down"
    ):
        source.read()
    slurm.answers.clear()
    slurm.parsers = ("v0.0.42",)
    assert source.read().version == RELEASES["v0.0.42"]
    assert not slurm.paths[-3].count("update_time")


def test_the_token_is_read_anew_for_each_call(tmp_path: Path) -> None:
    slurm = FakeSlurmrestd(("v0.0.44",))
    path = tmp_path / "jwt"
    path.write_text("SLURM_JWT=first\n")
    source = make(slurm, jwt_file=path)
    source.read()
    path.write_text("second\n")
    source.read()
    assert slurm.tokens == ["first"] * 4 + ["second"] * 2
    assert set(slurm.users) == {"oakum"}


def test_a_token_that_cannot_be_read_says_which(tmp_path: Path) -> None:
    with pytest.raises(SchedulerError, match="OAKUM_SLURM_JWT_FILE"):
        make(FakeSlurmrestd(("v0.0.44",)), jwt_file=tmp_path / "none").read()


def test_without_a_token_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JWT")
    with pytest.raises(SchedulerError, match="scontrol token"):
        make(FakeSlurmrestd(("v0.0.44",))).read()


@each("status", [401, 403, 500])
def test_a_refused_token_is_told_and_never_shown(status: int) -> None:
    slurm = FakeSlurmrestd(("v0.0.44",), answers={"ping": httpx.Response(status, text="Authentication failure")})
    with pytest.raises(SchedulerError, match=r"Authentication failure; if the JWT may have run out") as caught:
        make(slurm).read()
    assert "secret" not in str(caught.value)


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_source, "MOST_BYTES", 1 << 20)
    slurm = FakeSlurmrestd(("v0.0.44",), answers={"jobs": httpx.Response(200, content=b" " * (3 << 20))})
    with pytest.raises(SchedulerError, match="more than 1 MiB"):
        make(slurm).read()


def test_an_answer_that_trickles_is_given_up() -> None:
    class Trickle(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            pause = threading.Event()
            while not pause.wait(0.02):
                yield b" "

    slurm = FakeSlurmrestd(("v0.0.44",), answers={"nodes": httpx.Response(200, stream=Trickle())})
    with pytest.raises(SchedulerError, match=r"given up after 0\.2 s"):
        make(slurm, command_timeout_s=0.2).read()


def test_a_slurmrestd_that_is_away_is_named() -> None:
    source = RestSource(SlurmSettings(rest_url="http://127.0.0.1:1"))
    with pytest.raises(SchedulerError, match=r"GET http://127\.0\.0\.1:1/slurm/v0\.0\.44/ping failed: .*refused"):
        source.read()


@each("field", ["ping", "pinged"])
def test_a_slurmctld_that_slurmrestd_does_not_reach_is_down(field: str) -> None:
    for states in (["UP"], ["DOWN", "UP"], [], ["DOWN"], ["DOWN", "DOWN"]):
        pings = [{"hostname": f"head{number}", field: state} for number, state in enumerate(states)]
        told = httpx.Response(200, content=answer("v0.0.44", "pings", pings))
        source = make(FakeSlurmrestd(("v0.0.44",), answers={"ping": told}))
        if states and "UP" not in states:
            with pytest.raises(SchedulerError, match="slurmctld is DOWN"):
                source.ping()
        else:
            source.ping()


def test_an_unknown_cycle_is_none() -> None:
    slurm = FakeSlurmrestd(("v0.0.44",), answers={"diag": httpx.Response(500, text="no")})
    assert make(slurm).cycle_s() is None


@each("url", ["", "head:6820", "ftp://head"])
def test_an_address_that_is_none_says_what_is_expected(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"OAKUM_SLURM_REST_URL is .*http://host:6820"):
        RestSource(SlurmSettings(rest_url=url))


def test_over_a_unix_socket_no_token_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JWT")
    slurm = FakeSlurmrestd(("v0.0.42",))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            response = slurm(httpx.Request("GET", f"http://slurmrestd{self.path}", headers=dict(self.headers)))
            self.send_response(response.status_code)
            self.send_header("Content-Length", str(len(response.content)))
            self.end_headers()
            self.wfile.write(response.content)

        def address_string(self) -> str:
            return "socket"

        def log_message(self, format: str, *args: Any) -> None:
            return

    path = tmp_path / "s"
    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = RestSource(SlurmSettings(rest_url=f"unix:{path}"))
        assert json.dumps([n.name for n in source.read().nodes]) == '["n1", "n2"]'
        source.close()
        server.shutdown()
    assert set(slurm.tokens) == {None}
