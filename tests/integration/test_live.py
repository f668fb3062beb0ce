"""The whole service in virtual time, beside a scheduler that is simulated as Slurm is (`bench/live.py`)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import live
from oakum_solver.logs.holes import HoleLog
from oakum_solver.problem import Curve, PlannedTrainer
from oakum_solver.replay.workload import WorkItem, Workload
from twin.comparison import Comparison
from twin.node_time import NodeTime, Use
from twin.scheduler import Manners
from twin.site import TwinSettings
from twin.training import Pace
from twin.virtual_time import VirtualTimeLoop

_HOLES = (
    *((node, 0.0, 600.0) for node in range(3)),
    *((node, 10.0, 200.0) for node in range(3, 6)),
    (6, 70.0, 85.0),
    *((node, 260.0, 480.0) for node in range(4, 8)),
)
"""(node, start, end): two foreground jobs come and go, and a hole is too short for any start-up."""


def log_of(holes: tuple[tuple[int, float, float], ...] = _HOLES, duration_s: float = 600.0) -> HoleLog:
    node, start_s, end_s = zip(*sorted(holes, key=lambda hole: hole[1]), strict=True)
    names = tuple(f"n{number}" for number in range(8))
    return HoleLog("short", names, np.array(node, dtype=np.int32), np.array(start_s), np.array(end_s), duration_s)


def trainers(*samples: float | None) -> Workload:
    """Trainers of different scalability; None: an endless one."""
    curves = (((1, 100.0), (4, 380.0), (8, 700.0)), ((1, 90.0), (8, 400.0)))
    items = [
        WorkItem(PlannedTrainer(f"t{number}", Curve(curves[number]), 1, 8), samples=each)
        for number, each in enumerate(samples)
    ]
    return Workload(tuple(items))


def compared(workload: Workload, settings: TwinSettings) -> Comparison:
    return live.compare(log_of(), workload, settings, lambda *_: None)


def test_with_hooks_the_service_reaches_what_the_replay_promises_and_says_where_the_rest_went() -> None:
    one = compared(trainers(None, None), TwinSettings())
    assert one.twin.broken == ()
    assert 0.98 <= one.of_replay <= 1.02, one.as_document()
    assert sum(one.twin.node_hours.values()) == pytest.approx(one.replay.idle_node_hours)
    assert one.twin.foreground_jobs == 3
    assert one.twin.node_hours[Use.WRONG_FORECAST] > 0  # nobody could know how short node 6 would be idle
    assert 0 < one.twin.longest_wait_s <= 1.0


def test_what_is_only_looked_for_is_found_late() -> None:
    told, looked = (
        compared(trainers(None), TwinSettings(Manners(hooks=hooks, poll_s=10.0))) for hooks in (True, False)
    )
    assert told.twin.broken == looked.twin.broken == ()
    assert looked.twin.node_hours[Use.FOUND_LATE] > told.twin.node_hours[Use.FOUND_LATE]
    assert looked.twin.achieved < told.twin.achieved


def test_nothing_is_lost_or_doubled_where_agents_die_and_submissions_are_refused() -> None:
    manners = Manners(refused=0.3, time_limit_s=180.0, kill_wait_s=5.0)
    pace = Pace(startup_s=10.0, spread=0.5, deaths_per_node_day=400.0)
    one = compared(trainers(None, 20_000.0), TwinSettings(manners, pace, turn_s=20.0))
    assert one.twin.broken == ()
    assert one.twin.deaths > 0
    assert one.twin.refusals > 0
    assert one.twin.node_hours[Use.TIME_LIMIT] > 0
    assert one.twin.achieved > 0


def test_virtual_time_skips_to_what_is_due_next_and_takes_threads_work_at_once() -> None:
    loop = VirtualTimeLoop()

    async def days() -> tuple[float, str]:
        await asyncio.sleep(1e6)
        return loop.time(), await asyncio.to_thread(lambda: "done")

    try:
        assert loop.run_until_complete(days()) == (pytest.approx(1e6), "done")
        with pytest.raises(RuntimeError, match="nothing is due"):
            loop.run_until_complete(loop.create_future())
    finally:
        loop.close()


def spent(*turns: tuple[Use, float], ends_at: float, limit_at: float | None = None) -> dict[Use, float]:
    """What a hole's time went into that begins at 0 and ends at `ends_at`; each turn is (use, since)."""
    book = NodeTime(1)
    book.begin_hole(0, 0.0)
    for use, since in turns:
        if limit_at is not None and since >= limit_at:
            book.limit(0)
            limit_at = None
        book.turn(0, use, since)
    book.end_hole(0, ends_at)
    return {use: seconds for use, seconds in book.node_s.items() if seconds}


def test_a_fragment_that_is_gone_before_it_has_paid_was_a_wrong_forecast() -> None:
    begun = ((Use.PENDING, 1.0), (Use.START_UP, 2.0), (Use.PRODUCTIVE, 12.0))
    assert spent(*begun, ends_at=14.0) == {Use.FOUND_LATE: 1.0, Use.WRONG_FORECAST: 11.0, Use.PRODUCTIVE: 2.0}
    paid = spent(*begun, ends_at=30.0)
    assert paid == {Use.FOUND_LATE: 1.0, Use.PENDING: 1.0, Use.START_UP: 10.0, Use.PRODUCTIVE: 18.0}


def test_what_a_time_limit_costs_is_counted_until_the_next_fragment_trains() -> None:
    turns = ((Use.PRODUCTIVE, 0.0), (Use.LEAVING, 50.0), (Use.START_UP, 51.0), (Use.PRODUCTIVE, 61.0))
    assert spent(*turns, ends_at=100.0, limit_at=50.0) == {Use.PRODUCTIVE: 89.0, Use.TIME_LIMIT: 11.0}


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["live.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        live.run()
    return int(end.value.code or 0)


def test_the_command_compares_an_idle_log_and_writes_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    idle, figures = tmp_path / "idle.csv", tmp_path / "live.json"
    idle.write_text("node,start_s,end_s\na,0,300\nb,50,120\n")
    assert run_command(monkeypatch, idle, "--trainers", 1, "--poll-s", 10, "--json", figures) == 0
    (document,) = json.loads(figures.read_text())
    assert document["twin"]["broken"] == []
    assert 0 < document["utility"] <= 1.02
    out, progress = capsys.readouterr()
    assert "found late" in out
    assert "twin: " in progress


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.csv"], "missing.csv"),
        (["log.txt"], "expected a name in .swf, .swf.gz (jobs), .csv or .csv.gz"),
        (["idle.csv", "--hooks", "--poll-s", "5"], "give one of them"),
        (["idle.csv", "--json", "no/such/folder.json"], "there is no folder"),
        (["idle.csv", "--from", "99"], "expected a start before the end"),
    ],
)
def test_what_cannot_be_done_is_told(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("idle.csv").write_text("node,start_s,end_s\na,0,300\n")
    Path("log.txt").write_text("")
    assert run_command(monkeypatch, *arguments) in (1, 2)
    assert said in " ".join(capsys.readouterr().err.split()).replace(" │ │ ", " ")


def test_an_interrupted_run_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    idle = tmp_path / "idle.csv"
    idle.write_text("node,start_s,end_s\na,0,300\nb,50,120\n")

    def interrupt(*_: Any) -> None:
        assert [*tmp_path.glob("oakum-twin-*")]
        raise KeyboardInterrupt

    monkeypatch.setattr("twin.scheduler.SimulatedSlurm.change", interrupt)
    assert run_command(monkeypatch, idle, "--trainers", 1) == 130
    assert not [*tmp_path.glob("oakum-twin-*")]
    assert "interrupted" in capsys.readouterr().err
