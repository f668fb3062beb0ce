"""`oakum show`: what is told of one trainer, once or until it ends."""

from __future__ import annotations

import io
import json
import time
from datetime import UTC, datetime

import pytest
from rich.console import Console

from answering_service import Output, Service, trainer
from oakum_client.cli import load_commands
from oakum_client.cli.app import run

load_commands()


def test_show_tells_progress_size_and_reason(service: Service, output: Output) -> None:
    assert run(["show", "digits"]) == 0
    shown = output()
    assert "1,200 / 4,800 steps (25.0%), about 3 min left" in shown
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
        "warm-up": "33 s node-time before nodes joined; 4.1 s in the median, 3.9 s last",
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
    assert facts["Deadline"].endswith("(in 7 h)")


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


def test_show_says_where_the_checkpoints_are(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    where = "/shared/oakum/checkpoints/id-digits"
    service.documents["GET", "/v1/trainers/digits"] = trainer(checkpoint_step=70, checkpoint_folder=where)
    assert run(["show", "digits"]) == 0
    assert f"step 70, found on the disk, in {where}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("state", "told"), [("running", "none yet"), ("failed", "none")])
def test_only_a_live_trainer_is_told_to_have_no_checkpoint_yet(
    service: Service, capsys: pytest.CaptureFixture[str], state: str, told: str
) -> None:
    service.documents["GET", "/v1/trainers/digits"] = trainer(state=state, started_at=time.time())
    assert run(["show", "digits"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("Checkpoint")] == [told]
