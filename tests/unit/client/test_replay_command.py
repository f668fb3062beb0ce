"""`oakum replay`: its options, what it prints, what it writes, and how it fails."""

from __future__ import annotations

import csv
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fabricated_replay import small_result
from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_solver.errors import ProblemError
from oakum_solver.exploration import Exploration
from oakum_solver.guard import StarvationGuard
from oakum_solver.logs.holes import HoleLog
from oakum_solver.objectives import NamedObjective
from oakum_solver.replay.costs import CostModel
from oakum_solver.replay.result import ReplayResult
from oakum_solver.replay.settings import ReplaySettings
from oakum_solver.replay.workload import Workload
from waiting import DEADLINE_S

load_commands()

IDLE_LOG = "node,start_s,end_s\nn1,0,7200\nn2,600,5400\nn3,600,3000\nn3,4000,7200\n"
WORKLOAD = {
    "trainers": [
        {"name": "a", "min_nodes": 1, "max_nodes": 3, "curve": [[1, 10], [3, 27]], "samples": 20_000},
        {"name": "b", "min_nodes": 1, "max_nodes": 2, "curve": [[1, 8], [2, 15]], "samples": None},
    ]
}
PROMISED = {
    *("events", "hours", "nodes", "idle_node_hours", "used_node_hours", "equivalent_nodes", "samples"),
    *("efficiency", "zero_cost_bound", "loss", "trainers_finished", "mean_completion_s", "solve_ms"),
    *("not_optimal", "wall_s"),
}


class Engine:
    """Takes the place of the replay engine: records its arguments and does what the test sets."""

    def __init__(self) -> None:
        self.log: HoleLog
        self.workload: Workload
        self.settings: ReplaySettings
        self.result = small_result()
        self.failure: BaseException | None = None

    def __call__(self, log: HoleLog, workload: Workload, settings: ReplaySettings, progress: Any) -> ReplayResult:
        self.log, self.workload, self.settings = log, workload, settings
        progress(0.125, 50, 400)
        if self.failure is not None:
            raise self.failure
        return self.result


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    monkeypatch.setattr("oakum_solver.replay.engine.replay", engine)
    monkeypatch.setattr("oakum_solver.replay.engine.replay_both", engine)
    return engine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a log and a workload, in which the commands run."""
    (tmp_path / "idle.csv").write_text(IDLE_LOG)
    (tmp_path / "work.json").write_text(json.dumps(WORKLOAD))
    monkeypatch.chdir(tmp_path)
    return tmp_path


Streams = Callable[[], tuple[str, str]]


@pytest.fixture
def streams(capsys: pytest.CaptureFixture[str]) -> Streams:
    """What was printed to both streams since the last call."""

    def read() -> tuple[str, str]:
        captured = capsys.readouterr()
        return captured.out, captured.err

    return read


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


GIVEN = {"idle.csv", "work.json"}


def test_a_log_is_replayed_without_a_service(folder: Path, streams: Streams) -> None:
    assert run(["replay", "idle.csv", "--workload", "work.json", "--look-ahead", "600", "--json"]) == 0
    out, err = streams()
    document = json.loads(out)
    assert err == ""
    assert document.keys() >= PROMISED
    assert document["loss"].keys() == {"startup", "grow", "shrink", "preemption", "unallocated"}
    assert (document["nodes"], document["hours"], document["log"]) == (3, 2.0, "idle.csv")
    assert document["idle_node_hours"] == pytest.approx((7200 + 4800 + 2400 + 3200) / 3600)
    assert document["productive"] + sum(document["loss"].values()) == pytest.approx(1.0)


def test_how_much_more_is_idle_in_parts_of_nodes_is_told(folder: Path, streams: Streams) -> None:
    rows = "node,start_s,end_s,slot,slots\nn1,0,7200,0,2\nn1,0,3600,1,2\nn2,0,3600,1,2\n"
    (folder / "idle.csv").write_text(rows, encoding="utf-8")
    asked = ["replay", "idle.csv", "--workload", "work.json"]
    assert run([*asked, "--json"]) == 0
    parts = json.loads(streams()[0])["parts"]
    assert parts == {"idle_slot_hours": 4.0, "whole_node_slot_hours": 2.0, "over_whole_nodes": 2.0}
    assert run([*asked, "--whole-nodes", "--json"]) == 0
    document = json.loads(streams()[0])
    achieved = document["parts"]["achieved_on_whole_nodes"]
    assert 0 < achieved < document["achieved"]
    assert document["parts"]["achieved_over_whole_nodes"] == pytest.approx(document["achieved"] / achieved)
    assert run([*asked, "--whole-nodes"]) == 0
    lines = " ".join(streams()[0].split())
    assert "Parts over whole nodes 2.00 times 2 of these slot-hours in nodes idle as a whole" in lines
    assert f"Trained over whole nodes {document['achieved'] / achieved:.2f} times of what the same" in lines


def test_a_log_without_slots_has_no_whole_nodes_to_compare_with(folder: Path, streams: Streams) -> None:
    assert run(["replay", "idle.csv", "--workload", "work.json", "--whole-nodes"]) == 1
    assert "idle.csv has no slots" in streams()[1]


def test_what_learning_curves_costs_is_told(folder: Path, streams: Streams) -> None:
    asked = ["replay", "idle.csv", "--workload", "work.json", "--learn-curves"]
    assert run([*asked, "--json"]) == 0
    learnt = json.loads(streams()[0])["learnt"]
    assert learnt.keys() == {"efficiency", "cost", "settled_after_h", "as_known", "explored"}
    assert run(asked) == 0
    lines = " ".join(streams()[0].split())
    assert f"Curves learnt: efficiency {learnt['efficiency']:.1%}, {learnt['cost']:.1%} less than with" in lines


def test_the_summary_tells_where_the_idle_time_went(folder: Path, engine: Engine, streams: Streams) -> None:
    assert run(["replay", "idle.csv"]) == 0
    out, err = streams()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert err == ""
    for line in (
        "week.csv: 2 h of 40 nodes, 3 events",
        "Efficiency 80.0% of what 10.0 dedicated nodes would train",
        "Zero-cost bound 90.0% without any stall; 88.9% of it reached",
        "Used 90.0% of 20 idle node-hours",
        "Preemption stalls 1.2 6.2%",
        "Granted to nobody 2.0 10.0%",
        "Trainers: 1 of 2 finished, 1 h after submission on average; 7 rescales, 9e+06 samples.",
        "12 jobs larger than the machine skipped",
    ):
        assert line in lines


def test_a_summary_of_nothing_has_no_figures(folder: Path, engine: Engine, streams: Streams) -> None:
    engine.result = small_result(efficiency=float("nan"), idle_node_hours=0.0, trainers=(), notes=())
    assert run(["replay", "idle.csv"]) == 0
    out, _ = streams()
    assert "nan" not in out
    assert "Efficiency        -" in out


@pytest.mark.parametrize(("options", "hours"), [("", 2.0), ("--keep-maintenance", 5.0)])
def test_times_of_an_empty_machine_are_cut_out_unless_they_are_to_be_kept(
    folder: Path, engine: Engine, options: str, hours: float
) -> None:
    """An hour's job on all nodes, three hours of nothing, and another hour's job."""
    rest = "-1 -1 4 3600 -1 1 1 1 -1 -1 -1 -1 -1"
    (folder / "jobs.swf").write_text(f"; MaxNodes: 4\n1 0 0 3600 4 {rest}\n2 14400 0 3600 4 {rest}\n")
    assert run(["replay", "jobs.swf", "--nodes", "4", *options.split()]) == 0
    assert engine.log.duration_s / 3600 == pytest.approx(hours)


def test_every_option_reaches_the_engine(folder: Path, engine: Engine) -> None:
    options = (
        "--workload work.json --objective throughput --look-ahead 60 --cost in-place --stall 2 --startup 30 "
        "--max-trainers 5 --policy greedy --solver highs --time-limit 3 --groups --published "
        "--guard 900 --user-cap 6 --from 0.5 --hours 1"
    )
    assert run(["replay", "idle.csv", *options.split()]) == 0
    expected = ReplaySettings(
        objective=NamedObjective.THROUGHPUT, look_ahead_s=60.0, cost=CostModel.IN_PLACE,
        stall_s=2.0, startup_s=30.0,
        max_trainers=5, policy="greedy", groups=True, published=True, milp_solver="highs", time_limit_s=3.0,
        user_cap=6, guard=StarvationGuard(wait_s=900.0),
    )  # fmt: skip
    assert engine.settings == expected
    assert engine.log.duration_s == 3600.0
    assert [item.trainer.id for item in engine.workload.items] == ["a", "b"]


def test_without_options_the_engine_s_own_defaults_hold(folder: Path, engine: Engine) -> None:
    assert run(["replay", "idle.csv"]) == 0
    assert engine.settings == ReplaySettings()


RULES = """
objective = "throughput"
look_ahead_s = 30
groups = true
user_cap = 5
starvation_guard_s = 900
milp_solver = "cbc"
solver_limit_s = 2
stall_s = 1.5
start_up_s = 9
explore_share = 0.05
"""


def test_a_replay_plans_as_a_site_would_with_its_configuration_file(folder: Path, engine: Engine) -> None:
    (folder / "site.toml").write_text(RULES)
    as_site = ReplaySettings(
        objective=NamedObjective.THROUGHPUT, look_ahead_s=30.0, groups=True, user_cap=5, time_limit_s=2.0,
        guard=StarvationGuard(900.0, 600.0), gap=1e-6, cost=CostModel.IN_PLACE, stall_s=1.5, startup_s=9.0,
    )  # fmt: skip
    assert run(["replay", "idle.csv", "--as", "site.toml"]) == 0
    assert engine.settings == as_site
    assert run(["replay", "idle.csv", "--as", "site.toml", "--look-ahead", "auto", "--stall", "4"]) == 0
    assert engine.settings == replace(as_site, look_ahead_s=None, stall_s=4.0)
    assert run(["replay", "idle.csv", "--as", "site.toml", "--learn-curves"]) == 0
    assert engine.settings == replace(as_site, learning=Exploration(share=0.05))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.toml", "there is no such file: give a configuration file (.toml), the URL of a service"),
        ("wrong.toml", "look_ahead_s"),
        ("http://127.0.0.1:9", "--as http://127.0.0.1:9: "),
    ],
)
def test_a_site_whose_rules_are_not_known_is_told_before_the_work(
    folder: Path, engine: Engine, streams: Streams, source: str, message: str
) -> None:
    (folder / "wrong.toml").write_text('look_ahead_s = "soon"')
    assert run(["replay", "idle.csv", "--as", source]) == 1
    assert message in streams()[1]
    assert not hasattr(engine, "log")


def test_the_published_curves_are_shipped(folder: Path, engine: Engine) -> None:
    assert run(["replay", "idle.csv", "--workload", "paper", "--trainers", "9", "--finite"]) == 0
    assert len(engine.workload.items) == 9
    assert {item.samples for item in engine.workload.items} == {1.3e8}
    assert run(["replay", "idle.csv"]) == 0
    assert {item.samples for item in engine.workload.items} == {None}


def test_groups_can_be_left_out(folder: Path, engine: Engine) -> None:
    assert run(["replay", "idle.csv", "--no-groups"]) == 0
    assert engine.settings.groups is False


def test_an_expression_is_an_objective(folder: Path, engine: Engine, streams: Streams) -> None:
    assert run(["replay", "idle.csv", "--objective", "weight * samples / rate_one"]) == 0
    assert str(engine.settings.objective) == "weight * samples / rate_one"
    assert run(["replay", "idle.csv", "--objective", "speed"]) == 1
    assert streams()[1].startswith("oakum: objective 'speed'")


def test_page_and_steps_are_written_whole(folder: Path, engine: Engine, streams: Streams) -> None:
    (folder / "r.html").write_text("an old one")
    assert run(["replay", "idle.csv", "--report", "r.html", "--steps", "s.csv", "--json"]) == 0
    assert (folder / "r.html").read_text().startswith("<!doctype html>")
    assert [row["solver"] for row in csv.DictReader((folder / "s.csv").open())] == ["greedy", "cbc"]
    assert names(folder) == GIVEN | {"r.html", "s.csv"}
    assert json.loads(streams()[0])["events"] == 3


def test_a_link_stays_a_link(folder: Path, engine: Engine) -> None:
    (folder / "real.csv").write_text("")
    (folder / "link.csv").symlink_to("real.csv")
    assert run(["replay", "idle.csv", "--steps", "link.csv"]) == 0
    assert (folder / "link.csv").is_symlink()
    assert (folder / "real.csv").read_text().startswith("time_s,")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--report nowhere/r.html", "--report nowhere/r.html: there is no folder"),
        ("--steps .", "--steps .: not a plain file"),
        ("--steps /dev/null", "--steps /dev/null: not a plain file"),
        ("--steps idle.csv", "is the log itself"),
        ("--workload paper.json --steps paper.json", "is the workload itself"),
        ("--steps x --report ./x", "--report and --steps are the same file"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_the_work(
    folder: Path, engine: Engine, streams: Streams, options: str, message: str
) -> None:
    assert run(["replay", "idle.csv", *options.split()]) == 1
    out, err = streams()
    assert out == ""
    assert message in err
    assert not hasattr(engine, "log")
    assert names(folder) == GIVEN
    assert (folder / "idle.csv").read_text() == IDLE_LOG


def test_an_interrupt_says_how_far_it_got_and_leaves_nothing(
    folder: Path, engine: Engine, streams: Streams
) -> None:
    engine.failure = KeyboardInterrupt()
    assert run(["replay", "idle.csv", "--report", "r.html", "--steps", "s.csv"]) == 130
    interrupted = "oakum: interrupted after 12.5% of the log (50 of 400 events); nothing is written\n"
    assert streams() == ("", interrupted)
    assert names(folder) == GIVEN


def test_a_disk_that_fills_leaves_the_old_file(
    folder: Path, engine: Engine, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> Any:
        yield "time_s\n"
        raise OSError(28, "No space left on device")

    (folder / "s.csv").write_text("an old one")
    monkeypatch.setattr("oakum_solver.replay.export.steps_csv", fail)
    assert run(["replay", "idle.csv", "--steps", "s.csv"]) == 1
    assert "No space left on device" in streams()[1]
    assert (folder / "s.csv").read_text() == "an old one"
    assert names(folder) == GIVEN | {"s.csv"}


def test_what_the_solver_refuses_is_a_message(folder: Path, engine: Engine, streams: Streams) -> None:
    engine.failure = ProblemError("trainer a contradicts itself")
    assert run(["replay", "idle.csv"]) == 1
    assert streams() == ("", "oakum: trainer a contradicts itself\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["missing.csv"], "missing.csv"),
        (["work.json"], "work.json"),
        (["idle.csv", "--workload", "missing.json"], "missing.json"),
        (["idle.csv", "--workload", "idle.csv"], "idle.csv"),
        (["idle.csv", "--from", "3"], "window"),
    ],
)
def test_a_log_or_workload_that_cannot_be_read_is_named(
    folder: Path, engine: Engine, streams: Streams, arguments: list[str], told: str
) -> None:
    assert run(["replay", *arguments]) == 1
    out, err = streams()
    assert (out, err.startswith("oakum: "), told in err) == ("", True, True)


@pytest.mark.parametrize(
    "options",
    [
        "--workload work.json --trainers 3",
        "--workload work.json --finite",
        "--trainers 0",
        "--policy best",
        "--cost free",
        "--placement last",
        "--stall -1",
        "--stall nan",
        "--look-ahead inf",
        "--startup inf",
    ],
)
def test_wrong_usage_exits_with_2(folder: Path, engine: Engine, options: str) -> None:
    assert run(["replay", "idle.csv", *options.split()]) == 2
    assert not hasattr(engine, "log")


def test_the_help_has_an_example(streams: Streams) -> None:
    assert run(["replay", "--help"]) == 0
    assert "$ oakum replay" in streams()[0]


def test_the_bar_is_on_a_terminal_s_stderr_alone(folder: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "oakum", "replay", "idle.csv", "--policy", "greedy", "--json"]
    shown: list[bytes] = []

    def read_all() -> None:
        with suppress(OSError):  # the other end is closed
            while piece := os.read(ours, 65536):
                shown.append(piece)

    reading = threading.Thread(target=read_all)
    reading.start()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=True, timeout=DEADLINE_S)
    os.close(theirs)
    reading.join()
    os.close(ours)
    assert b"Replaying" in b"".join(shown)
    assert json.loads(done.stdout)["policy"] == "greedy"
