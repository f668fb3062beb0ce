"""/metrics says what happens, and the board and the alert rules that come with Oakum ask for what it says."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from api_under_test import ApiUnderTest, FakeScheduler, report
from controlled import controlled
from oakum_service.db.models.cluster import ForegroundStart
from oakum_service.documents.node import Node
from oakum_service.schedulers.port import OwnJob
from oakum_service.states import NodeState, TrainerState
from oakum_worker.protocol import Phase
from waiting import wait_until

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
BOARD = DEPLOY / "grafana" / "oakum.json"
OWN_LABELS = {"job", "instance"}
"""Labels that Prometheus itself adds."""


@pytest.fixture
def scheduler() -> FakeScheduler:
    idle = tuple(Node(f"n{number}", NodeState.HOLE, "10.0.0.1") for number in (1, 2))
    return FakeScheduler(nodes=(*idle, Node("n3", NodeState.FOREGROUND, "10.0.0.3", job="7", job_name="cfd")))


def value(api: ApiUnderTest, name: str, **labels: str) -> float:
    """One sample as a scrape finds it; 0 where there is none yet."""
    families = text_string_to_metric_families(api.anonymous.get("/metrics").text)
    samples = (sample for family in families for sample in family.samples)
    return next((sample.value for sample in samples if (sample.name, sample.labels) == (name, labels)), 0.0)


def test_the_state_of_the_cluster_is_told(api: ApiUnderTest, scheduler: FakeScheduler) -> None:
    trainer = str(api.submit(max_nodes=2)["id"])
    fragment = api.add_fragment(trainer)
    api.change_row(trainer, state=TrainerState.RUNNING, generation=1, members=[fragment])
    scheduler.own_jobs = [OwnJob("1", fragment, "n1")]
    answer = api.fragment_client(fragment).post(
        f"/v1/fragments/{fragment}/report", json=report(1, Phase.TRAINING, generation=1)
    )
    assert answer.status_code == 204
    before = value(api, "oakum_hole_node_seconds_total"), value(api, "oakum_harvested_node_seconds_total")
    turns = value(api, "oakum_turn_seconds_count", loop="membership")
    with controlled(api):
        wait_until("it trains", lambda: value(api, "oakum_fragments", phase="training") == 1)
        wait_until("idle time grows", lambda: value(api, "oakum_hole_node_seconds_total") > before[0])
        wait_until("so does harvested time", lambda: value(api, "oakum_harvested_node_seconds_total") > before[1])
        assert value(api, "oakum_nodes", state="hole") == 2
        assert value(api, "oakum_nodes", state="foreground") == 1
        assert value(api, "oakum_trainers", state="running") == 1
        assert value(api, "oakum_efficiency_ratio") == 0.5
        assert value(api, "oakum_controller") == 1
        assert value(api, "oakum_held") == 0
        assert value(api, "oakum_turn_seconds_count", loop="membership") > turns
        api.admin.put("/v1/hold", json={"reason": "maintenance"})
        api.news_for_controller.notify()
        wait_until("the hold is told", lambda: value(api, "oakum_held") == 1)


def test_a_service_that_is_no_controller_and_cannot_write_says_so(api: ApiUnderTest) -> None:
    api.context.writability.fault = "the disk is full"
    assert value(api, "oakum_controller") == value(api, "oakum_database_writable") == 0
    api.context.turns.note_turn()
    api.context.writability.fault = None
    assert value(api, "oakum_controller") == value(api, "oakum_database_writable") == 1
    assert 0 <= value(api, "oakum_turn_age_seconds") < 240
    assert 0 <= value(api, "oakum_snapshot_age_seconds") < 240


def test_requests_and_reports_are_counted(api: ApiUnderTest) -> None:
    refused, reports = value(api, "oakum_requests_total", status="401"), value(api, "oakum_reports_total")
    assert api.anonymous.get("/v1/trainers").status_code == 401
    fragment = api.add_fragment(str(api.submit()["id"]))
    api.fragment_client(fragment).post(f"/v1/fragments/{fragment}/report", json=report())
    assert value(api, "oakum_requests_total", status="401") == refused + 1
    assert value(api, "oakum_reports_total") == reports + 1


def test_nothing_personal_is_told(api: ApiUnderTest) -> None:
    api.submit(name="secret-project")
    told = api.anonymous.get("/metrics").text
    assert "secret-project" not in told
    assert "ulla" not in told


def test_limits_are_told_with_whether_they_are_exceeded(api: ApiUnderTest) -> None:
    with api.sessions.begin() as session:
        session.add(ForegroundStart(job="1_1", started_at=time.time() - 60.0, num_nodes=1, delay_s=5.0))
    for name, limit in (("limit_delay_p99_s", 2.0), ("limit_lost_share", 0.5)):
        assert api.admin.put(f"/v1/settings/{name}", json={"value": limit}).status_code == 200
    cluster = api.viewer.get("/v1/cluster").json()
    assert (cluster["limit_delay_p99_s"], cluster["foreground_delay_p99_s"]) == (2.0, 5.0)
    assert (cluster["exceeds_delay_p99"], cluster["exceeds_lost_share"]) == (True, False)
    with controlled(api):
        wait_until("the limit is exceeded", lambda: value(api, "oakum_limit_exceeded", of="delay_p99") == 1)
        assert value(api, "oakum_limit_exceeded", of="lost_share") == 0
        assert value(api, "oakum_limit_foreground_delay_p99_seconds") == 2
        assert value(api, "oakum_limit_lost_ratio") == 0.5


def expressions() -> Iterator[str]:
    """Every expression of the rules and of the board."""
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    for panel in json.loads(BOARD.read_text(encoding="utf-8"))["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def labels_of_metrics(api: ApiUnderTest) -> dict[str, set[str]]:
    """Name of each series -> its labels, for every metric that a scrape names."""
    named = set(re.findall(r"^# TYPE (\S+) ", api.anonymous.get("/metrics").text, re.MULTILINE))
    series: dict[str, set[str]] = {}
    for collector, names in REGISTRY._collector_to_names.items():
        labels = {str(label) for label in getattr(collector, "_labelnames", ())}
        for name in names:
            series[name] = labels | ({"le"} if name.endswith("_bucket") else set())
    known = {name for name in series if any(name.startswith(each.removesuffix("_total")) for each in named)}
    return {name: series[name] for name in known}


def test_board_and_rules_ask_for_metrics_and_labels_that_exist(api: ApiUnderTest) -> None:
    known = labels_of_metrics(api)
    asked = 0
    for expression in expressions():
        for name, selector in re.findall(r"\b((?:oakum|process)_\w+)(?:\{([^}]*)\})?", expression):
            assert name in known, f"{expression}: the service has no {name}"
            labels = set(re.findall(r"(\w+)\s*(?:=|!=|=~|!~)\s*\"", selector))
            assert labels <= known[name] | OWN_LABELS, expression
            asked += 1
        for grouped in re.findall(r"by \(([^)]*)\)", expression):
            labels = {label.strip() for label in grouped.split(",")}
            assert any(labels <= known[name] for name in known if name in expression), expression
        assert expression.count("(") == expression.count(")")
    assert asked > 40


def test_every_alert_says_how_bad_it_is_and_what_it_means() -> None:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names) > 10
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "0m"))


def test_the_panels_of_the_board_neither_overlap_nor_share_an_id() -> None:
    panels: list[dict[str, Any]] = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_board_shows_every_metric_that_the_service_has_of_its_own(api: ApiUnderTest) -> None:
    shown = " ".join(expressions())
    families = {
        re.sub(r"_(total|bucket|sum|count|created|info)$", "", name)
        for name in labels_of_metrics(api)
        if name.startswith("oakum_")
    }
    assert {family for family in families if family not in shown} <= {"oakum_plans"}
