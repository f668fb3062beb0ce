"""Metrics of what happened: node-seconds, stalls, delays, ends and plans, counted once they are recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from oakum_service.control.foreground import write_starts
from oakum_service.db.engine import Sessions
from oakum_service.schedulers.port import JobStart
from oakum_service.states import NodeState
from oakum_worker.protocol import Phase
from scripted_trainer import ScriptedTrainer
from virtual_site import VirtualSite


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_node_seconds_add_up_to_what_nodes_and_fragments_did(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = VirtualSite(sessions, tmp_path, num_nodes=8, busy=2, start_up_s=2.0)
    monkeypatch.setattr("time.time", site.time)
    site.submit("digits", max_nodes=4)
    site.begin()
    idle, trained, lost = (
        value("oakum_hole_node_seconds_total"),
        value("oakum_harvested_node_seconds_total"),
        value("oakum_lost_node_seconds_total", cause="warm_up"),
    )
    plans = value("oakum_solve_seconds_count")
    holes = training = 0

    def look() -> None:
        nonlocal holes, training
        holes += sum(node.state is NodeState.HOLE for node in site.scheduler.nodes)
        training += int(value("oakum_fragments", phase="training"))

    site.run(25, look)
    # What the last turn saw has not lasted yet.
    last = sum(node.state is NodeState.HOLE for node in site.scheduler.nodes)
    assert value("oakum_hole_node_seconds_total") - idle == pytest.approx(holes - last)
    harvested = value("oakum_harvested_node_seconds_total") - trained
    assert harvested == pytest.approx(training - value("oakum_fragments", phase="training"))
    assert harvested > 20
    assert value("oakum_lost_node_seconds_total", cause="warm_up") > lost
    assert value("oakum_solve_seconds_count") > plans


def test_a_foreground_delay_counts_once_and_only_when_it_is_recorded(sessions: Sessions) -> None:
    before, start = value("oakum_foreground_delay_seconds_sum"), JobStart("7", 1000.0, 1, 2.5)
    with sessions() as session:
        write_starts(session, [start])
        session.rollback()
    assert value("oakum_foreground_delay_seconds_sum") == before
    for _ in range(2):
        with sessions.begin() as session:
            write_starts(session, [start])
    assert value("oakum_foreground_delay_seconds_sum") == before + 2.5


def test_stalls_and_repeated_steps_count_for_each_node(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow, redone = (value("oakum_lost_node_seconds_total", cause=cause) for cause in ("grow", "repeated"))
    ends = value("oakum_fragments_ended_total", cause="lost")
    stalls = value("oakum_stall_seconds_count", cause="grow")
    trainer = ScriptedTrainer(sessions, monkeypatch)
    trainer.launch("a")
    trainer.say("a", Phase.READY, startup_s=3.0)
    trainer.turn(after_s=4.0)
    trainer.switch("a", 1, 0, source="scratch")
    trainer.turn(after_s=2.0)
    trainer.progress("a", 1, 20)
    trainer.turn(after_s=10.0)
    trainer.launch("b")
    trainer.say("b", Phase.READY, startup_s=4.5)
    trainer.turn(after_s=5.0)
    trainer.switch("a", 2, 20, stall_s=1.0, step_s=0.25)
    trainer.turn(after_s=3.0)
    assert value("oakum_stall_seconds_count", cause="grow") == stalls + 1
    assert value("oakum_lost_node_seconds_total", cause="grow") == pytest.approx(grow + 2 * 0.75)
    trainer.lose("a", "b")
    assert value("oakum_fragments_ended_total", cause="lost") == ends + 2
    trainer.launch("c")
    trainer.say("c", Phase.READY)
    trainer.turn()
    trainer.switch("c", trainer.row.generation, 12, source="checkpoint")
    trainer.turn(after_s=1.0)
    told = trainer.view.time_spent
    assert told is not None
    assert told.redone_s > 0
    assert value("oakum_lost_node_seconds_total", cause="repeated") == pytest.approx(redone + told.redone_s)
