"""The cluster's commands: `oakum plan`, `nodes`, `holes`, `events` and `resume`."""

from __future__ import annotations

import json
import time

import pytest

from answering_service import Output, Service
from oakum_client.cli import load_commands
from oakum_client.cli.app import run

load_commands()


def test_plan_shows_quality_and_reasons(service: Service, output: Output) -> None:
    assert run(["plan"]) == 0
    shown = output()
    told = " ".join(shown.split())
    assert (
        "Objective throughput. Worth 3,840 samples over the next 2 min, the sum over all models, each times its "
        "weight: the best possible, found by CBC in 12 ms."
    ) in told
    assert "No more are idle." in shown
    assert run(["plan", "42", "--json"]) == 0
    assert json.loads(output())["id"] == 42


def test_nodes_and_holes_are_listed(service: Service, output: Output) -> None:
    assert run(["nodes"]) == 0
    shown = output()
    assert "digits (training)" in shown
    assert "job 4711" in shown
    assert run(["holes", "--since", "6h"]) == 0
    assert "still idle" in output()
    assert service.requests[-1] == ("GET", "/v1/holes?since_s=21600.0")


def test_what_became_of_idle_node_time_is_told_by_cause(
    service: Service, output: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    sums = ("num_nodes", "num_foreground", "num_holes", "num_training", "idle_node_s", "used_node_s")
    delays = ("foreground_delay_p50_s", "foreground_delay_p99_s", "foreground_delay_max_s")
    cluster = dict.fromkeys(sums, 1) | dict.fromkeys(delays) | {"scheduler": "local", "foreground_jobs_started": 0}
    service.documents["GET", "/v1/cluster"] = cluster
    assert run(["holes", "--used"]) == 1
    assert "update it" in capsys.readouterr().err
    went = {
        "since": time.time(),
        "idle_node_s": 36_000.0,
        "trained_node_s": 18_000.0,
        "stalled_node_s": 0.0,
        "start_up_node_s": 3_600.0,
        "late_node_s": 1_800.0,
        "unwanted_node_s": 12_600.0,
    }
    service.documents["GET", "/v1/cluster"] = {**cluster, "idle_time": went}
    assert run(["holes", "--used"]) == 0
    lines = [line.split() for line in output().splitlines()]
    assert ["Trained", "5.0", "50.0%"] in lines
    assert ["Found", "late", "0.5", "5.0%"] in lines
    assert ["Wanted", "by", "nobody", "3.5", "35.0%"] in lines
    assert run(["holes", "--used", "--json"]) == 0
    assert json.loads(output()) == went
    service.documents["GET", "/v1/cluster"] = {**cluster, "idle_time": {**went, "idle_node_s": 0.0}}
    assert run(["holes", "--used"]) == 0
    assert "No node was idle since" in output()


def test_nodes_tell_the_time_since_and_not_only_until_the_last_change(
    service: Service, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    quiet = {"name": "n1", "state": "hole", "since": now - 600, "hole_ends_at": None}
    service.documents["GET", "/v1/nodes"] = {"snapshot": 9, "taken_at": now - 300, "nodes": [quiet]}
    assert run(["nodes"]) == 0
    shown = output()
    assert "10 min" in shown
    assert "Snapshot 9: the last change was 5 min ago." in shown


def test_events_are_printed_as_text(service: Service, output: Output) -> None:
    assert run(["events"]) == 0
    assert output().endswith("3 nodes to [digits]\n")


@pytest.mark.parametrize(
    ("held", "told"), [(True, "The planner launches again."), (False, "There was no hold: nothing has changed.")]
)
def test_resume_says_whether_there_was_a_hold(
    service: Service, capsys: pytest.CaptureFixture[str], held: bool, told: str
) -> None:
    service.documents["GET", "/v1/hold"] = {"held": held}
    service.documents["DELETE", "/v1/hold"] = {"held": False}
    assert run(["resume"]) == 0
    assert capsys.readouterr().out == f"{told}\n"
