"""A process of the service that is not the controller: it answers, and passes on what the controller needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from fastapi.testclient import TestClient

from api_under_test import ApiUnderTest, FakeScheduler
from oakum_service.app import create_app
from oakum_service.peers.peers import ControllerSeen
from oakum_service.schedulers.port import HookEvent, HookKind, RequestTime
from oakum_service.schedulers.slurm.reading.pushed_source import encode_state
from oakum_service.schedulers.slurm.reading.state import SlurmNode, SlurmState
from waiting import wait_until

STATE = SlurmState(1000.0, "22.05.8", (SlurmNode("n1", "", ("IDLE",), ("main",)),), ())


@dataclass
class RecordingPeers:
    """Peers of which another process is the controller, or nobody; records what is passed on."""

    seen: ControllerSeen | None = None
    is_controller: bool = False
    hooks: list[HookEvent] = field(default_factory=list)
    states: list[tuple[bytes, float]] = field(default_factory=list)

    def controller(self) -> ControllerSeen | None:
        return self.seen

    def pass_on_hook(self, event: HookEvent) -> None:
        self.hooks.append(event)

    def pass_on_state(self, body: bytes, taken_at: float) -> None:
        self.states.append((body, taken_at))


class UnstartedScheduler(FakeScheduler):
    """The adapter of a process that has never been the controller."""

    def taken_at(self) -> float | None:
        return None

    def on_state(self, body: bytes, arrival: RequestTime) -> float:
        """Keep it for the time when this process is the controller."""
        return 1000.0


@pytest.fixture
def peers() -> RecordingPeers:
    return RecordingPeers(ControllerSeen("other:1", True, time.time()))


@pytest.fixture
def scheduler() -> UnstartedScheduler:
    return UnstartedScheduler()


@pytest.fixture
def ask(api: ApiUnderTest, peers: RecordingPeers) -> Callable[[str], TestClient]:
    """A client of that process with the token of a role."""
    app = create_app(replace(api.context, peers=peers))

    def client(role: str) -> TestClient:
        return TestClient(app, headers=getattr(api, role).headers)

    return client


def test_it_is_ready_while_another_process_is_the_controller(
    ask: Callable[[str], TestClient], peers: RecordingPeers
) -> None:
    assert ask("anonymous").get("/readyz").status_code == 200
    peers.seen = ControllerSeen("other:1", False, time.time())
    answer = ask("anonymous").get("/readyz")
    faults = {check["name"]: check["detail"] for check in answer.json()["checks"] if not check["ok"]}
    assert (answer.status_code, [*faults]) == (503, ["controller"])
    assert "one takes over within seconds" in faults["controller"]


def test_the_state_is_as_old_as_the_controller_says(
    ask: Callable[[str], TestClient], peers: RecordingPeers
) -> None:
    peers.seen = ControllerSeen("other:1", True, time.time() - 1000)
    assert ask("viewer").get("/v1/cluster").json()["snapshot_age_s"] == pytest.approx(1000, abs=200)
    assert "has not answered" in ask("anonymous").get("/readyz").text
    peers.seen = None
    assert ask("viewer").get("/v1/cluster").json()["snapshot_age_s"] is None


def test_what_hooks_and_collectors_say_is_passed_on(
    ask: Callable[[str], TestClient], peers: RecordingPeers
) -> None:
    events = {"events": [{"hook": "prolog_slurmctld", "job_id": 7, "nodes": "n[1-2]"}]}
    assert ask("hook").post("/v1/hooks/slurm", json=events).status_code == 204
    wait_until("the hook is passed on", lambda: peers.hooks)
    assert [(hook.kind, hook.job, hook.nodes) for hook in peers.hooks] == [(HookKind.ALLOCATED, "7", "n[1-2]")]
    assert ask("hook").post("/v1/cluster/snapshots", content=encode_state(STATE)).status_code == 204
    assert peers.states == [(encode_state(STATE), 1000.0)]
