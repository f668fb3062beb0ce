"""`oakum metrics --tensorboard`, read back by TensorBoard itself."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from answering_service import EVALUATIONS, POINT, Service, trainer
from oakum_client.cli import load_commands, metrics
from oakum_client.cli.app import run

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

load_commands()
ID = trainer()["id"]
SERIES, TOLD = ("GET", f"/v1/trainers/{ID}/series"), ("GET", f"/v1/trainers/{ID}/evaluations")


@pytest.fixture(autouse=True)
def known_by_id(service: Service) -> None:
    service.documents["GET", f"/v1/trainers/{ID}"] = trainer()
    service.documents[SERIES] = {"points": [POINT]}
    service.documents[TOLD] = {"evaluations": EVALUATIONS}


def read(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Tag -> (step, Unix seconds, value) of each point, as TensorBoard finds them."""
    found = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(each.step, each.wall_time, make_ndarray(each.tensor_proto).item()) for each in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
    }


EXPECTED = {
    "training/loss": [(600, 1_700_000_030.0, 0.125)],
    "training/samples_per_s": [(600, 1_700_000_030.0, 96.0)],
    "training/nodes": [(600, 1_700_000_030.0, 2.0)],
    "evaluation/accuracy": [(10, 1_700_000_000.0, 0.5), (1200, 1_700_000_060.0, 0.75)],
    "evaluation/f1": [(1200, 1_700_000_060.0, 0.25)],
}


def test_all_that_the_service_keeps_is_one_run_however_often_it_is_written(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert run(["metrics", "digits", "--tensorboard", str(tmp_path)]) == 0
        assert capsys.readouterr().out.startswith(f"{tmp_path / 'digits'}: 3 points; `tensorboard --logdir")
    assert read(tmp_path / "digits") == EXPECTED


def test_it_follows_a_trainer_to_its_end_through_a_restart_of_the_service(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: dict[str, Any] = {**POINT, "at": POINT["at"] + 60, "step": 1200, "nodes": 4}
    down = [httpx.ConnectError("down")] * 3  # as often as the client asks again
    service.documents["GET", f"/v1/trainers/{ID}"] = [trainer(), *down, trainer(state="finished")]
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        service.documents[SERIES] = {"points": [POINT, later]}

    monkeypatch.setattr(metrics, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    assert run(["metrics", "digits", "--tensorboard", str(tmp_path), "--follow"]) == 0
    assert len(pauses) == 2
    assert [(step, nodes) for step, _, nodes in read(tmp_path / "digits")["training/nodes"]] == [
        (600, 2),
        (1200, 4),
    ]
    assert read(tmp_path / "digits")["evaluation/accuracy"] == EXPECTED["evaluation/accuracy"]


def test_values_that_are_not_known_are_left_out(service: Service, tmp_path: Path) -> None:
    service.documents[SERIES] = {"points": [{**POINT, "nodes": None, "loss": None}]}
    assert run(["metrics", "digits", "--tensorboard", str(tmp_path)]) == 0
    assert {tag for tag in read(tmp_path / "digits") if tag.startswith("training")} == {"training/samples_per_s"}


def test_a_folder_with_something_else_in_it_is_left_alone(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "digits" / "events.out.tfevents.1"
    own.parent.mkdir()
    own.write_text("a user's")
    for _ in range(2):
        assert run(["metrics", "digits", "--tensorboard", str(tmp_path)]) == 1
        assert "has files in it that are not this trainer's run" in capsys.readouterr().err
        assert [path.name for path in own.parent.iterdir() if path.name != ".oakum-trainer"] == [own.name]
        (own.parent / ".oakum-trainer").write_text("another trainer's id")


def test_without_tensorboard_it_says_what_to_install(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    assert run(["metrics", "digits", "--tensorboard", str(tmp_path)]) == 1
    assert "pip install '.[tensorboard]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_go_together_is_refused(service: Service, tmp_path: Path) -> None:
    assert run(["metrics", "digits", "--tensorboard", str(tmp_path), "--csv"]) == 2
    assert run(["metrics", "digits", "--follow"]) == 2
