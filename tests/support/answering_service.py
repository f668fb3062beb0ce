"""A small service that answers the CLI's requests from memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from oakum_client.rest.client import OakumClient

Output = Callable[[], str]
"""What has been printed since the last call."""


def trainer(name: str = "digits", **changes: Any) -> dict[str, Any]:
    spec = {"name": name, "entrypoint": "tasks.digits:task", "global_batch": 64, "epochs": 4, "max_nodes": 8}
    document = {
        "id": f"id-{name}",
        "name": name,
        "state": "running",
        "spec": spec,
        "submitted_at": time.time() - 90,
        "nodes": ["n1", "n2"],
        "granted": ["n1", "n2", "n3"],
        "generation": 5,
        "step": 1200,
        "total_steps": 4800,
        "loss": 0.25,
        "samples_per_s": 1280.0,
        "metrics": {"accuracy": 0.97},
        "rescales": 4,
        "stall_s": 1.25,
        "reason": "Trains on 2 nodes, 1 more to join: no other node is idle.",
        "joining": ["n3"],
    }
    return {**document, **changes}


EVENT = {"id": 7, "at": time.time(), "kind": "plan.made", "subject": "plan", "message": "3 nodes to [digits]"}
PLAN = {
    "id": 42, "parent": 41, "snapshot": 9, "made_at": time.time(), "solver": "cbc", "value": 3840.0,
    "bound": 3840.0, "gap": 0.0, "optimal": True, "solve_s": 0.012, "look_ahead_s": 120.0,
    "objective": "throughput",
    "allocations": [
        {"trainer": "digits", "nodes": ["n1", "n2"], "why": "at_bound", "reason": "No more are idle."}
    ],
}  # fmt: skip
NODES = {
    "snapshot": 9,
    "taken_at": time.time(),
    "nodes": [
        {"name": "n1", "state": "hole", "since": time.time() - 30, "trainer": "digits",
         "fragment_phase": "training", "hole_ends_at": time.time() + 60},
        {"name": "n4", "state": "foreground", "since": time.time() - 300, "foreground_job": "4711"},
    ],
}  # fmt: skip
HOLES = {"holes": [{"node": "n1", "start_at": time.time() - 30, "end_at": None}]}
EXPLANATION = {
    "trainer": "digits", "nodes": 2, "granted": 3, "why": "at_bound", "status": "running", "plan": 42,
    "reason": "Trains on 2 nodes, 1 more to join: no other node is idle.",
}  # fmt: skip


EVALUATIONS = [
    {"step": 10, "at": 1_700_000_000.0, "metrics": {"accuracy": 0.5}},
    {"step": 1200, "at": 1_700_000_060.0, "metrics": {"accuracy": 0.75, "f1": 0.25}},
]
POINT = {"at": 1_700_000_030.0, "step": 600, "nodes": 2, "loss": 0.125, "samples_per_s": 96.0}


class Service:
    """Answers from `documents`, by the path with its query or without, and remembers the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[Any] = []
        self._sent: list[tuple[tuple[str, str], Any]] = []
        self.documents: dict[tuple[str, str], Any] = {
            ("GET", "/v1/trainers"): {"trainers": [trainer(), trainer("old", state="finished")]},
            ("POST", "/v1/trainers"): trainer(state="waiting", nodes=[], granted=[], step=0),
            ("POST", "/v1/trainers/check"): {},
            ("GET", "/v1/trainers/digits"): trainer(),
            ("PATCH", "/v1/trainers/digits"): trainer(),
            ("POST", "/v1/trainers/digits/cancel"): trainer(state="cancelled"),
            ("PUT", "/v1/trainers/digits/pause"): trainer(status="paused", nodes=["n1"]),
            ("GET", "/v1/trainers/id-digits"): trainer(status="paused", nodes=[]),
            ("DELETE", "/v1/trainers/id-digits/pause"): trainer(state="waiting", nodes=[]),
            ("POST", "/v1/trainers/digits/retry"): trainer(state="waiting", nodes=[], checkpoint_step=1100),
            ("GET", "/v1/trainers/digits/evaluations"): {"evaluations": EVALUATIONS},
            ("GET", "/v1/trainers/digits/series"): {"points": [POINT]},
            ("GET", "/v1/trainers/digits/logs"): {"lines": ["n1 | step 1", "n2 | [bold]ready[/bold]"]},
            ("GET", "/v1/trainers/digits/explain"): EXPLANATION,
            ("GET", "/v1/nodes"): NODES,
            ("GET", "/v1/holes"): HOLES,
            ("GET", "/v1/plans/current"): PLAN,
            ("GET", "/v1/plans/42"): PLAN,
            ("GET", "/v1/events/recent"): {"events": [EVENT]},
        }

    def __call__(self, request: httpx.Request) -> httpx.Response:
        asked = (request.method, request.url.path)
        self.requests.append((request.method, request.url.raw_path.decode()))
        if request.content:
            self.bodies.append(json.loads(request.content))
            self._sent.append((asked, self.bodies[-1]))
        document = self.documents.get(self.requests[-1], self.documents.get(asked))
        if isinstance(document, list):
            document = document.pop(0) if len(document) > 1 else document[0]
        if isinstance(document, BaseException):
            raise document
        if document is None:
            detail = f"There is no trainer {asked[1].rsplit('/', 1)[-1]!r}; `oakum ps --all` lists them."
            return httpx.Response(404, json={"title": "Not found", "status": 404, "detail": detail})
        return document if isinstance(document, httpx.Response) else httpx.Response(200, json=document)

    def sent(self, method: str, path: str) -> list[Any]:
        """The bodies of the requests to that path, in their order."""
        return [body for asked, body in self._sent if asked == (method, path)]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    transport = httpx.MockTransport(service)

    def connected(**options: Any) -> OakumClient:
        return OakumClient("http://oakum.test", "secret", transport=transport, **options)

    monkeypatch.setattr("oakum_client.rest.client.OakumClient", connected)
    for module in ("watch", "logs"):
        monkeypatch.setattr(f"oakum_client.cli.{module}._PERIOD_S", 0)
    return service


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    return lambda: capsys.readouterr().out


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the terminal width that pytest's worker processes inherit although nothing is printed to a
    terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)
