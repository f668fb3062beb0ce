"""`oakum metrics`: a trainer's evaluations and losses, as a table and as CSV."""

from __future__ import annotations

import json
from typing import Any

import pytest

from answering_service import Output, Service
from oakum_client.cli import load_commands
from oakum_client.cli.app import run

load_commands()


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
