"""`oakum replay own`: a service's history as log and workload, and what it has achieved beside its replay."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from answering_service import Output, Service, trainer
from cells import each
from oakum_client.cli import load_commands
from oakum_client.cli.app import run

load_commands()

NOW = 1_800_000_000.0
HOUR_S = 3600.0
PLANNING = {
    "objective": "throughput", "look_ahead_s": None, "groups": False, "user_cap": None, "milp_solver": "cbc",
    "starvation_guard_s": 3600.0, "starvation_quantum_s": 600.0, "solver_limit_s": 5.0,
    "stall_s": 1.0, "start_up_s": 10.0,
}  # fmt: skip
WENT = {
    "since": NOW - 2 * HOUR_S, "idle_node_s": 3.5 * HOUR_S, "trained_node_s": HOUR_S, "stalled_node_s": 60.0,
    "start_up_node_s": 0.1 * HOUR_S, "late_node_s": 0.2 * HOUR_S, "unwanted_node_s": 2.2 * HOUR_S - 60.0,
}  # fmt: skip


def hole(node: str, begin_h: float, end_h: float | None) -> dict[str, Any]:
    """A hole that began and ended so many hours ago."""
    return {
        "node": node,
        "start_at": NOW - begin_h * HOUR_S,
        "end_at": None if end_h is None else NOW - end_h * HOUR_S,
    }


def point(hours_ago: float, step: int, nodes: int | None) -> dict[str, Any]:
    return {"at": NOW - hours_ago * HOUR_S, "step": step, "nodes": nodes, "loss": 1.0, "samples_per_s": None}


@pytest.fixture
def history(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """Two nodes that were idle for the last two hours, and a trainer that began two hours before these and has
    trained on one node for an hour of each two."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    rates = [{"nodes": n, "samples_per_s": 10.0 * n, "seconds": 600.0} for n in (1, 2)]
    view = trainer(
        submitted_at=NOW - 4 * HOUR_S, samples=72_000, step=720, total_samples=None, measured_rates=rates,
    )  # fmt: skip
    view["spec"] |= {"max_nodes": 2}
    documents: dict[str, Any] = {
        "/v1/settings": {"settings": [], "planning": PLANNING},
        "/v1/holes": {"holes": [hole("n1", 5, 0.5), hole("n2", 2, None)], "idle_time": WENT},
        "/v1/nodes": {"snapshot": 1, "taken_at": NOW, "nodes": [{"name": "n1", "state": "hole", "since": 0.0}]},
        "/v1/trainers": {"trainers": [view]},
        "/v1/trainers/id-digits/series": {
            "points": [
                point(4, 0, 1),
                point(3, 360, None),
                point(2, 360, 1),
                point(1, 720, None),
                point(0, 720, None),
            ]
        },
    }
    service.documents |= {("GET", path): document for path, document in documents.items()}
    return service


def test_the_service_s_own_share_of_its_replay_is_told(history: Service, output: Output) -> None:
    assert run(["replay", "own", "--since", "2h", "--json"]) == 0
    told = json.loads(output())
    assert (told["hours"], told["nodes"], told["log"]) == (2.0, 2, "own")
    assert told["idle_node_hours"] == pytest.approx(1.5 + 2.0)
    # Half of its samples are of these two hours, in which it trained on one node for one hour.
    assert told["own"]["achieved"] == pytest.approx(36_000.0)
    assert told["own"]["of_replay"] == pytest.approx(36_000.0 / told["achieved"])
    assert told["own"]["of_replay"] < 0.6
    hours = {cause: 3.5 * share for cause, share in told["own"]["node_time"].items()}
    assert hours == pytest.approx(
        {"productive": 1.0, "startup": 0.1, "stalls": 1 / 60, "late": 0.2, "unallocated": 2.2 - 1 / 60}
    )


def test_slots_of_one_node_are_together_for_fragments_that_have_several(history: Service, output: Output) -> None:
    """The holes of one node's slots overlap for half an hour."""
    documents = history.documents
    documents["GET", "/v1/holes"]["holes"] = [hole("n1:0", 2, 1), hole("n1:1", 1.5, None)]
    documents["GET", "/v1/nodes"]["nodes"][0]["name"] = "n1:0"
    [view] = documents["GET", "/v1/trainers"]["trainers"]
    view["slots_per_fragment"] = 2  # which its spec leaves to the service
    assert run(["replay", "own", "--since", "2h", "--json"]) == 0
    told = json.loads(output())
    assert told["parts"]["whole_node_slot_hours"] == pytest.approx(1.0)
    assert told["used_node_hours"] == pytest.approx(1.0)


def test_a_person_is_told_both_by_cause(history: Service, output: Output) -> None:
    assert run(["replay", "own", "--since", "2h"]) == 0
    told = " ".join(output().split())
    assert "IDLE NODE-TIME SERVICE REPLAY Productive 28.6%" in told
    assert "The service itself has reached" in told


def test_its_rules_and_costs_are_the_service_s(history: Service, output: Output) -> None:
    assert run(["replay", "own", "--since", "2h", "--json"]) == 0
    told = json.loads(output())
    assert (told["objective"], told["cost"]) == ("throughput", "in-place")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"/v1/holes": {"holes": []}}, "the service has seen no idle node in the last 2 h"),
        ({"/v1/trainers": {"trainers": []}}, "no trainer has trained in the last 2 h"),
        ({"/v1/trainers": {"trainers": [trainer(is_private=True, samples=1)]}}, "administrator's token"),
        ({"/v1/settings": {"settings": []}}, "this service is too old to tell its rules"),
        ({"/v1/holes": {"holes": [hole("n1", 1, None)]}}, "too old to tell what became of idle node-time"),
    ],
)
def test_what_is_missing_is_told(
    history: Service, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    history.documents |= {("GET", path): document for path, document in changes.items()}
    assert run(["replay", "own", "--since", "2h"]) == 1
    assert message in " ".join(capsys.readouterr().err.split())


@each("options", ["--workload paper.json", "--trainers 3", "--hours 1", "--from 2", "--since soon"])
def test_own_has_trainers_and_times_of_its_own(history: Service, options: str) -> None:
    assert run(["replay", "own", *options.split()]) == 2
    assert history.requests == []
