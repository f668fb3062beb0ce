"""The commands against a small service that answers from memory."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from answering_service import EVENT, EXPLANATION, NODES, Service, trainer
from cells import each
from oakum_client.cli import load_commands
from oakum_client.cli.app import app, run
from oakum_client.cli.logs import new_lines
from oakum_client.cli.screen import bounds_of, size_of
from oakum_client.cli.units import duration, parse_duration
from oakum_service.api.schemas.trainers import TrainerView
from oakum_worker.spec import TrainerSpec

COMMANDS = (
    "submit",
    "ps",
    "show",
    "explain",
    "scale",
    "pause",
    "unpause",
    "cancel",
    "retry",
    "metrics",
    "logs",
    "plan",
    "nodes",
    "holes",
    "events",
)

load_commands()


Output = Callable[[], str]
_WHY = "Trains on 2 nodes, 1 more to join: no other node is idle."


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    return lambda: capsys.readouterr().out


def test_ps_lists_live_trainers_and_all_on_request(service: Service, output: Output) -> None:
    assert run(["ps"]) == 0
    header, row = output().splitlines()
    assert header.split()[:4] == ["NAME", "STATE", "NODES", "OF"]
    assert row.split() == ["digits", "running", "2", "1-8", "25%", "1,280", "3", "min", "00", "s", "1", "min"]
    assert run(["ps", "--all"]) == 0
    assert "finished" in output()


def test_ps_prints_the_columns_rows_and_order_that_are_asked_for(service: Service, output: Output) -> None:
    slow, fast = trainer("slow", samples_per_s=5.0), trainer("fast", samples_per_s=80.0, user="ada")
    waiting = trainer("waiting", state="waiting", samples_per_s=None)
    service.documents["GET", "/v1/trainers"] = {"trainers": [waiting, slow, fast]}
    assert run(["ps", "-o", "name,why", "--sort", "-rate", "--user", "ada"]) == 0
    assert service.requests == [("GET", "/v1/trainers?user=ada&limit=1")]
    header, *rows = output().splitlines()
    assert header.split() == ["NAME", "WHY"]
    assert [row.split(maxsplit=1) for row in rows] == [[name, _WHY] for name in ("fast", "slow", "waiting")]
    assert run(["ps", "-o", "+loss,user", "--sort", "rate"]) == 0
    header, *rows = output().splitlines()
    assert header.split() == ["NAME", "STATE", "NODES", "OF", "DONE", "SAMPLES/S", "LEFT", "AGE", "LOSS", "USER"]
    assert [row.split()[0] for row in rows] == ["slow", "fast", "waiting"]


def test_ps_says_below_what_is_wrong_and_what_trainers_without_nodes_wait_for(
    service: Service, output: Output
) -> None:
    ill = trainer("ill", condition="Attempt 2 of 5.")
    waiting = [trainer(f"w{number}", state="waiting", nodes=[], reason="No node is idle.") for number in range(30)]
    service.documents["GET", "/v1/trainers"] = {"trainers": [trainer(), ill, *waiting]}
    assert run(["ps"]) == 0
    *_, below = output().partition("\n\n")
    first, second, *_, last = below.splitlines()
    assert (first, second) == ("ill: Attempt 2 of 5.  " + _WHY, "w0: No node is idle.")
    assert last == "and 11 more: `oakum explain NAME`"
    assert len(below.splitlines()) == 21


@pytest.mark.parametrize("words", [["-o", "name,los"], ["--sort", "-los"]])
def test_a_column_that_there_is_not_is_told_before_the_service_is_asked(
    service: Service, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run(["ps", *words]) == 2
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "there is no column 'los': expected some of name, state, nodes" in told
    assert "did you mean 'loss'?" in told
    assert service.requests == []


def test_ps_of_live_trainers_asks_for_none_that_has_ended(service: Service) -> None:
    """Years of them: hundreds of answers."""
    service.documents["GET", "/v1/trainers"] = {"trainers": [trainer()], "next": "1_a"}
    assert run(["ps"]) == 0
    assert service.requests == [("GET", "/v1/trainers?limit=1")]


def test_ps_says_that_oakum_is_held_and_why(service: Service, output: Output) -> None:
    said = "Held since 2026-11-22 08:00 UTC by anna: maintenance at 8. `oakum resume` ends the hold."
    hold = {"held": True, "reason": "maintenance at 8", "by": "anna", "since": 5.0, "sentence": said}
    held = trainer(status="held", reason=said, granted=[], joining=[], leaving=["n1", "n2"])
    service.documents["GET", "/v1/trainers"] = {"trainers": [held], "next": None, "hold": hold}
    assert run(["ps"]) == 0
    banner, _, _, row, *_ = output().splitlines()
    assert banner == said
    assert row.split()[:2] == ["digits", "held"]
    service.documents["GET", "/v1/trainers/digits"] = held
    assert run(["show", "digits"]) == 0
    shown = output()
    assert said in shown
    assert "(2 leaving)" in shown
    assert "joining" not in shown
    service.documents["GET", "/v1/trainers"] = {"trainers": [], "next": None, "hold": hold}
    assert run(["ps"]) == 0
    assert output().startswith(said)


def test_ps_says_first_that_the_service_cannot_write(service: Service, output: Output) -> None:
    said = "the service cannot write to its database, sqlite:////data/oakum.db: the disk is full. Free space there"
    service.documents["GET", "/v1/trainers"] = {"trainers": [trainer()], "next": None, "fault": said}
    assert run(["ps"]) == 0
    banner, _, _, row = output().splitlines()
    assert (banner, row.split()[0]) == (f"{said}.", "digits")


def test_ps_without_trainers_says_how_to_begin(service: Service, output: Output) -> None:
    service.documents["GET", "/v1/trainers"] = {"trainers": []}
    assert run(["ps"]) == 0
    assert output().startswith(
        "No trainers: `oakum submit SPEC.yaml` hands one in, and `oakum ps --all` lists those"
    )


def test_show_tells_progress_size_and_reason(service: Service, output: Output) -> None:
    assert run(["show", "digits"]) == 0
    shown = output()
    assert "1,200 / 4,800 steps (25.0%), about 3 min 00 s left" in shown
    assert "2 nodes (1 joining)" in shown
    assert "no other node is idle" in shown
    assert "accuracy 0.97" in shown


def shown_lines(output: Output) -> dict[str, str]:
    """What `show` prints in lines that begin with a name: name -> the rest, bars left out."""
    lines = [" ".join(word for word in line.split() if set(word) - set("━╸╺")) for line in output().splitlines()]
    names = ("Nodes", "Warming up", "Also granted", "Leaving", "Why", "Checkpoint", "Time", "training", "growing")
    names += ("shrinking", "after losses", "starting cold", "without nodes", "warm-up", "Samples", "Rescales")
    return {name: line.removeprefix(name).strip() for line in lines for name in names if line.startswith(name)}


def test_show_tells_where_time_went_and_what_rescales_cost(
    service: Service, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    service.documents["GET", "/v1/trainers/digits"] = trainer(
        started_at=now - 640.0,
        granted=["n1", "n3", "n4"],
        leaving=["n2"],
        warming=[{"node": "n3", "launched_at": now - 12.2}],
        checkpoint_step=1100,
        checkpoint_at=now - 34.0,
        samples=76_800,
        total_samples=307_200,
        last_stall_s=0.31,
        stalls={"grow": {"median_s": 0.28, "last_s": 0.31, "count": 3}},
        start_up={"median_s": 4.1, "last_s": 3.9, "count": 5},
        time_spent={
            **{"since_at": now - 640.0, "training_s": 520.0, "grow_s": 1.1, "shrink_s": 0.0, "loss_s": 2.2},
            **{"cold_start_s": 21.0, "waiting_s": 95.7, "redone_s": 3.2, "redone_steps": 60},
            "warm_up_node_s": 33.4,
        },
    )
    assert run(["show", "digits"]) == 0
    assert shown_lines(output) == {
        "Nodes": "n1 (rank 0), n2",
        "Warming up": "n3 for 12 s",
        "Also granted": "n4",
        "Leaving": "n2",
        "Why": "Trains on 2 nodes, 1 more to join: no other node is idle.",
        "Checkpoint": "step 1,100, 34 s ago",
        "Time": "10 min 40 s since its first start",
        "training": "8 min 40 s 81.2% of it 3.2 s for 60 steps that had to be taken again",
        "growing": "1.1 s 0.2% 0.28 s in the median, 0.31 s last",
        "shrinking": "0 s 0.0%",
        "after losses": "2.2 s 0.3%",
        "starting cold": "21 s 3.3%",
        "without nodes": "1 min 36 s 15.0%",
        "warm-up": "33 s of nodes, meanwhile; 4.1 s in the median, 3.9 s last",
        "Samples": "76,800 of 307,200",
        "Rescales": "4 (0 nodes gained, 0 lost), 1.25 s of stalls in all, 0.31 s in the last",
    }


def test_show_tells_the_present_batch_and_learning_rate(service: Service, output: Output) -> None:
    service.documents["GET", "/v1/trainers/digits"] = trainer(global_batch=256, learning_rate=0.0125)
    assert run(["show", "digits"]) == 0
    assert "batch 256   learning rate 0.0125" in output()


def test_show_tells_that_results_may_depend_on_the_nodes(service: Service, output: Output) -> None:
    document = trainer()
    service.documents["GET", "/v1/trainers/digits"] = document | {"spec": document["spec"] | {"exact": False}}
    assert run(["show", "digits"]) == 0
    assert "no, by `exact: false`: its results may depend on its nodes" in output()


def test_where_the_batch_changes_progress_goes_by_samples(service: Service, output: Output) -> None:
    """With growing batches, a third of the steps may be half of the samples."""
    document = trainer(samples=600_000, total_samples=1_000_000, global_batch=256)
    service.documents["GET", "/v1/trainers/digits"] = document
    assert run(["show", "digits"]) == 0
    assert "1,200 / 4,800 steps (60.0%), about 5 min 12 s left" in output()
    service.documents["GET", "/v1/trainers"] = {"trainers": [document]}
    assert run(["ps"]) == 0
    assert output().splitlines()[1].split()[4] == "60%"


def test_a_condition_and_a_failure_are_shown(service: Service, output: Output) -> None:
    document = trainer(condition="the checkpoint cannot be written: No space left on device")
    service.documents["GET", "/v1/trainers/digits"] = document
    assert run(["show", "digits"]) == 0
    assert "the checkpoint cannot be written: No space left on device" in output()
    document = trainer(state="waiting", nodes=[], started_at=5.0, checkpoint_step=70)
    service.documents["GET", "/v1/trainers/digits"] = document
    assert run(["show", "digits"]) == 0
    lines = shown_lines(output)
    assert (lines["Nodes"], lines["Checkpoint"]) == ("none", "step 70, found on the disk")


def test_on_a_terminal_the_whole_screen_is_kept_up_to_date(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = io.StringIO()
    terminal = Console(file=drawn, force_terminal=True, width=120, height=40, markup=False, highlight=False)
    monkeypatch.setattr("oakum_client.cli.watch.console", lambda: terminal)
    views = [trainer(), trainer(step=2400), trainer(step=4800, state="finished", checkpoint_step=4800)]
    service.documents["GET", "/v1/trainers/digits"] = views
    assert run(["show", "digits", "--watch"]) == 0
    shown = drawn.getvalue()
    for text in ("(25.0%)", "(50.0%)", "(100.0%)", "n1 (rank 0), n2", "step 4,800, found on the disk"):
        assert text in shown


def test_watching_prints_nothing_while_only_time_passes(service: Service, output: Output) -> None:
    spent = dict.fromkeys(("training_s", "grow_s", "shrink_s", "loss_s", "cold_start_s"), 0.0)
    spent |= {"since_at": 5.0, "redone_s": 0.0, "redone_steps": 0, "warm_up_node_s": 0.0}
    waiting = {"state": "waiting", "submitted_at": 5.0}
    views = [trainer(**waiting, time_spent={**spent, "waiting_s": seconds}) for seconds in (1.0, 2.0, 3.0)]
    views.append(trainer(state="cancelled"))
    service.documents["GET", "/v1/trainers/digits"] = views
    assert run(["show", "digits", "--watch"]) == 4
    assert [line.split()[1] for line in output().splitlines()] == ["waiting", "cancelled"]


def test_show_tells_whose_it_is_its_priority_and_its_deadline(service: Service, output: Output) -> None:
    ahead = datetime.fromtimestamp(time.time() + 7 * 3600.0 + 30.0, UTC).isoformat()
    document = trainer(user="ulla")
    document["spec"] |= {"priority": -5, "deadline": ahead}
    service.documents["GET", "/v1/trainers/digits"] = document
    assert run(["show", "digits"]) == 0
    facts = {line.split()[0]: line.rstrip() for line in output().splitlines() if line.strip()}
    assert facts["Submitted"].endswith(" ago) by ulla")
    assert facts["Priority"].split() == ["Priority", "-5"]
    assert facts["Deadline"].endswith("(in 7 h 00 min)")


def test_show_says_that_a_deadline_has_passed(service: Service, output: Output) -> None:
    document = trainer()
    document["spec"] |= {"deadline": "2026-01-01T00:00:00Z"}
    service.documents["GET", "/v1/trainers/digits"] = document
    assert run(["show", "digits"]) == 0
    (line,) = (line for line in output().splitlines() if line.strip().startswith("Deadline"))
    assert line.rstrip().endswith(" ago)")


def test_show_of_an_unknown_trainer_says_so_without_a_traceback(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", "nobody"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "oakum: There is no trainer 'nobody'; `oakum ps --all` lists them.\n"


def test_watching_as_json_prints_a_line_for_each_change(service: Service, output: Output) -> None:
    views = [trainer(), trainer(step=1300), trainer(step=4800, state="finished")]
    for view in views:
        view["submitted_at"] = 5.0
    service.documents["GET", "/v1/trainers/digits"] = [views[0], *views]
    assert run(["show", "digits", "--watch", "--json"]) == 0
    assert [json.loads(line)["step"] for line in output().splitlines()] == [1200, 1300, 4800]


def test_explain_says_size_plan_and_reason(service: Service, output: Output) -> None:
    assert run(["explain", "digits"]) == 0
    assert output() == "digits is running (plan 42).\nTrains on 2 nodes, 1 more to join: no other node is idle.\n"


def test_scale_sends_what_was_given(service: Service, output: Output) -> None:
    assert run(["scale", "digits", "--max-nodes", "8", "--weight", "2"]) == 0
    assert service.bodies == [{"max_nodes": 8, "weight": 2.0}]
    assert "1 to 8 nodes" in output()


@each(("given", "sent"), [("1,2,4", [1, 2, 4]), ("powers_of_two", "powers_of_two"), ("any", "any")])
def test_scale_sends_the_sizes_that_were_given(service: Service, given: str, sent: object) -> None:
    assert run(["scale", "digits", "--sizes", given]) == 0
    assert service.bodies[-1] == {"sizes": sent}


@each(
    ("fields", "of", "bounds"),
    [
        ({"min_nodes": 2, "max_nodes": 8}, "2-8", "2 to 8 nodes"),
        ({"sizes": [1, 2, 4]}, "1,2,4", "1, 2 or 4 nodes"),
        ({"sizes": [1, 2, 4], "min_nodes": 4}, "4", "4 to 4 nodes"),
        ({"sizes": "powers_of_two", "max_nodes": 32}, "1,2..32", "1, 2, 4, 8, 16 or 32 nodes"),
    ],
)
def test_the_numbers_of_nodes_that_a_spec_allows_are_told(fields: dict[str, Any], of: str, bounds: str) -> None:
    spec = TrainerSpec(name="digits", entrypoint="a:b", global_batch=64, epochs=1, **fields)
    view = TrainerView.model_construct(spec=spec)
    assert (size_of(view), bounds_of(spec)) == (of, bounds)


@pytest.mark.parametrize(
    "arguments",
    [
        ["scale", "digits"],
        ["scale", "digits", "--sizes", "few"],
        ["scale", "digits", "--sizes", "1,,2"],
        ["scale", "digits", "--weight", "-1"],
        ["scale", "digits", "--min-nodes", "0"],
        ["holes", "--since", "yesterday"],
        ["show"],
        ["launch"],
    ],
)
def test_wrong_usage_exits_with_2_and_calls_nobody(service: Service, arguments: list[str]) -> None:
    assert run(arguments) == 2
    assert service.requests == []


def test_pause_waits_until_the_trainer_has_no_node(service: Service, output: Output) -> None:
    assert run(["pause", "digits", "--reason", "its data moves"]) == 0
    assert output() == "digits is paused at step 1,200 and has no node.\n"
    assert {"reason": "its data moves"} in service.bodies
    assert ("GET", "/v1/trainers/id-digits") in service.requests


def test_a_trainer_that_keeps_its_nodes_stays_paused_and_fails_the_command(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service.documents["GET", "/v1/trainers/id-digits"] = trainer(status="paused")
    assert run(["pause", "digits", "--wait", "0.3"]) == 1
    assert "digits is paused, but still has nodes after 0.3 s" in capsys.readouterr().err
    assert run(["pause", "digits", "--wait", "0"]) == 0


def test_unpause_says_whether_there_was_a_pause(service: Service, output: Output) -> None:
    service.documents["GET", "/v1/trainers/digits"] = trainer(status="paused", nodes=[])
    assert run(["unpause", "digits"]) == 0
    assert output() == "digits goes on from step 1,200 as soon as a plan grants it nodes.\n"
    service.documents["GET", "/v1/trainers/digits"] = trainer(state="waiting", nodes=[])
    assert run(["unpause", "digits"]) == 0
    assert output() == "digits was not paused: nothing has changed.\n"


def test_retry_says_from_where_it_goes_on(service: Service, output: Output) -> None:
    assert run(["retry", "digits"]) == 0
    assert output().startswith("digits goes on from its checkpoint of step 1,100,")
    service.documents["POST", "/v1/trainers/digits/retry"] = trainer(state="waiting", nodes=[])
    assert run(["retry", "digits"]) == 0
    assert "its beginning: it has no checkpoint" in output()


def test_metrics_lists_evaluations(service: Service, output: Output) -> None:
    assert run(["metrics", "digits"]) == 0
    header, first, second = output().splitlines()
    assert header.split() == ["STEP", "AT", "ACCURACY", "F1"]
    assert (first.split()[0], first.split()[-2:]) == ("10", ["0.5", "-"])
    assert (second.split()[0], second.split()[-2:]) == ("1,200", ["0.75", "0.25"])
    assert run(["metrics", "digits", "--json"]) == 0
    assert [each["step"] for each in json.loads(output())["evaluations"]] == [10, 1200]


def test_metrics_as_csv_have_each_step_once_with_its_loss_and_its_evaluation(
    service: Service, output: Output
) -> None:
    fields = ("at", "step", "nodes", "loss", "samples_per_s")
    points: list[tuple[Any, ...]] = [
        (30.0, 600, 2, 0.5, 96.0),
        (50.0, 600, 0, None, None),
        (55.0, 1200, 1, None, 48.0),
    ]
    points += [(58.0, 1200, 2, 0.25, 90.0), (70.0, 900, None, 0.375, None)]
    service.documents["GET", "/v1/trainers/digits/series"] = {
        "points": [dict(zip(fields, point, strict=True)) for point in points]
    }
    of_several = {"reports": 4, "loss_mean": 0.75, "loss_min": 0.5, "loss_max": 1.0}
    service.documents["GET", "/v1/trainers/digits/series"]["points"][0] |= of_several
    assert run(["metrics", "digits", "--csv"]) == 0
    assert ("GET", "/v1/trainers/digits/series?limit=5000&from_at=0.0") in service.requests
    assert output().splitlines() == [
        "step,at,nodes,loss,samples_per_s,loss_mean,loss_min,loss_max,reports,accuracy,f1",
        "10,1700000000.0,,,,,,,,0.5,",
        "600,30.0,2,0.5,96.0,0.75,0.5,1.0,4,,",
        "900,70.0,,0.375,,,,,1,,",
        "1200,55.0,1,0.25,48.0,,,,1,0.75,0.25",
    ]


def test_metrics_of_a_trainer_that_was_never_evaluated_say_what_to_do(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service.documents["GET", "/v1/trainers/digits/evaluations"] = {"evaluations": []}
    assert run(["metrics", "digits"]) == 1
    assert "has not been evaluated yet" in capsys.readouterr().err
    assert run(["metrics", "digits", "--csv", "--json"]) == 2


def test_cancel_tells_where_it_ended(service: Service, output: Output) -> None:
    assert run(["cancel", "digits"]) == 0
    assert output() == "digits is cancelled at step 1,200.\n"


def test_logs_are_printed_as_they_are(service: Service, output: Output) -> None:
    assert run(["logs", "digits", "--tail", "5"]) == 0
    assert output() == "n1 | step 1\nn2 | [bold]ready[/bold]\n"
    assert service.requests == [("GET", "/v1/trainers/digits/logs?tail=5")]


def test_followed_logs_print_each_line_once_until_the_end(service: Service, output: Output) -> None:
    path = "/v1/trainers/digits/logs"
    service.documents["GET", path] = [{"lines": ["n1 | a"]}, {"lines": ["n1 | a", "n1 | b"]}]
    service.documents["GET", "/v1/trainers/digits"] = [trainer(), trainer(state="finished")]
    assert run(["logs", "digits", "--follow"]) == 0
    assert output() == "n1 | a\nn1 | b\n"


def test_lines_of_several_nodes_move_on_their_own() -> None:
    seen = ["n1 | a", "n1 | b", "n2 | x"]
    assert new_lines(seen, ["n1 | b", "n1 | c", "n2 | x", "n2 | x"]) == ["n1 | c", "n2 | x"]
    assert new_lines(seen, seen) == []
    assert new_lines([], ["n3 | first"]) == ["n3 | first"]


def test_plan_shows_quality_and_reasons(service: Service, output: Output) -> None:
    assert run(["plan"]) == 0
    shown = output()
    assert "optimal, by cbc in 12 ms" in shown
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


def test_nodes_tell_the_time_since_and_not_only_until_the_last_change(
    service: Service, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    quiet = {"name": "n1", "state": "hole", "since": now - 600, "hole_ends_at": None}
    service.documents["GET", "/v1/nodes"] = {"snapshot": 9, "taken_at": now - 300, "nodes": [quiet]}
    assert run(["nodes"]) == 0
    shown = output()
    assert "10 min 00 s" in shown
    assert "Snapshot 9: the last change was 5 min ago." in shown


@pytest.mark.parametrize("name", ["", "  ", "a" * 64, "two\nlines"])
def test_a_token_needs_a_name_that_can_be_listed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OAKUM_DATA_DIR", str(tmp_path))
    assert run(["token", "create", name]) == 1
    assert capsys.readouterr() == (
        "",
        f"oakum: {name!r} cannot be a token's name: give 1 to 63 printable characters\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_notices_are_listed_with_their_outcome(service: Service, output: Output) -> None:
    common = {"id": "1", "event": "failed", "trainer": "digits", "created_at": time.time(), "sent_at": None}
    common |= {"recipient": "https://hooks.example.org/...", "next_at": None, "error": ""}
    service.documents["GET", "/v1/notices"] = {
        "notices": [
            {**common, "attempts": 3, "error": "hooks.example.org answers 503"},
            {**common, "attempts": 1, "sent_at": time.time()},
            {**common, "attempts": 1, "next_at": time.time() + 5, "error": "hooks.example.org answers 500"},
        ]
    }
    assert run(["notices", "list", "digits"]) == 0
    assert service.requests == [("GET", "/v1/notices?trainer=digits")]
    _, *lines = output().splitlines()
    assert [line.split(maxsplit=4)[4].split(" ")[0] for line in lines] == ["given", "sent", "1"]
    assert "given up after 3 tries: hooks.example.org answers 503" in lines[0]


def test_a_notice_that_was_not_taken_fails_the_test(
    service: Service, output: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    tested = {"sent": True, "recipient": "https://hooks.example.org/...", "error": ""}
    service.documents["POST", "/v1/notices/test"] = [tested, {**tested, "sent": False, "error": "it answers 503"}]
    arguments = ["notices", "test", "--webhook", "https://hooks.example.org/x"]
    assert run(arguments) == 0
    assert output() == "Sent: https://hooks.example.org/... has taken it.\n"
    assert run(arguments) == 1
    assert capsys.readouterr().err == "oakum: not sent to https://hooks.example.org/...: it answers 503\n"
    assert run(["notices", "test"]) == 2


def test_events_are_printed_as_text(service: Service, output: Output) -> None:
    assert run(["events"]) == 0
    assert output().endswith("3 nodes to [digits]\n")


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["ps"], "trainers"),
        (["show", "digits"], "spec"),
        (["explain", "digits"], "reason"),
        (["logs", "digits"], "lines"),
        (["scale", "digits", "--weight", "2"], "spec"),
        (["cancel", "digits"], "spec"),
        (["plan"], "allocations"),
        (["nodes"], "nodes"),
        (["holes"], "holes"),
        (["events"], "events"),
    ],
)
def test_json_prints_the_document_alone(service: Service, output: Output, arguments: list[str], key: str) -> None:
    assert run([*arguments, "--json"]) == 0
    assert key in json.loads(output())


def test_an_interrupt_ends_quietly_with_130(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    service.documents["GET", "/v1/nodes"] = KeyboardInterrupt()
    assert run(["nodes"]) == 130
    assert capsys.readouterr() == ("", "")


@each("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str, output: Output) -> None:
    assert run([command, "--help"]) == 0
    assert f"$ oakum {command}" in output()


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from oakum_client.cli import load_commands; from oakum_client.cli.app import run\n"
        "load_commands(); code = run(['--help'])\n"
        "heavy = {'torch', 'sqlalchemy', 'fastapi', 'httpx', 'pulp'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f" {command} " in done.stdout for command in COMMANDS)


@each(("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("2 d", 172800)])
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@each(
    ("seconds", "text"),
    [(0.0121, "12 ms"), (0.312, "0.312 s"), (42, "42 s"), (185, "3 min 05 s"), (7800, "2 h 10 min"),
     (273600, "3 d 4 h")],
)  # fmt: skip
def test_durations_are_written(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_app_is_shared_by_all_command_modules() -> None:
    assert {command.callback.__name__ for command in app.registered_commands if command.callback} >= set(COMMANDS)


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


_OBEYED = "\x1b]52;c;ZXZpbA==\x07\x1b[2Jall\x9b is \u202ewell\x7f"


@each(
    ("words", "asked", "document"),
    [
        (["ps"], "/v1/trainers", {"trainers": [trainer(condition=_OBEYED)]}),
        (["show", "digits"], "/v1/trainers/digits", trainer(message=_OBEYED, metrics={_OBEYED: 1.0})),
        (["show", "digits", "--json"], "/v1/trainers/digits", trainer(message=_OBEYED)),
        (["explain", "digits"], "/v1/trainers/digits/explain", {**EXPLANATION, "reason": _OBEYED}),
        (["events"], "/v1/events/recent", {"events": [{**EVENT, "message": _OBEYED}]}),
        (["nodes"], "/v1/nodes", {**NODES, "nodes": [{**NODES["nodes"][1], "foreground_job": _OBEYED}]}),
        (
            ["show", "digits"],
            "/v1/trainers/digits",
            httpx.Response(409, json={"title": "Conflict", "status": 409, "detail": _OBEYED}),
        ),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else None,
)
def test_what_others_have_written_is_no_command_to_the_terminal(
    service: Service, capsys: pytest.CaptureFixture[str], words: list[str], asked: str, document: Any
) -> None:
    """An administrator looks at what users' code says."""
    service.documents["GET", asked] = document
    run(words)
    told = "".join(capsys.readouterr())
    assert "all is well" in told, told
    assert not [one for one in told if one in "\x1b\x07\x9b\u202e\x7f"], told.encode()
