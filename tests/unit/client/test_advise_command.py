"""`oakum advise`, with what is measured and who answers given by the tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from answering_service import Service, trainer
from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_client.cli.trying import TryResult
from oakum_client.rest.client import OakumClient

load_commands()

TEXT = "name: digits\nentrypoint: tasks.digits:task\nglobal_batch: 16\nepochs: 4\nmax_nodes: 8  # mine\n"
SIZES = [
    {"samples": m, "working_bytes": 150 * m, "sample_bytes": 50 * m, "seconds": 1e-3 * (2 + m)}
    for m in (1, 2, 4, 8)
]


def _layer(samples: int) -> dict[str, Any]:
    trials = [
        {"algorithm": name, "seconds": seconds * samples, "kept_bytes": 100 * samples, "buffer_bytes": 0}
        for name, seconds in (("as built", 1e-3), ("channels-last", 5e-4))
    ]
    return {"names": ["conv"], "kind": "Conv2d", "samples": samples, "trials": trials, "skipped": []}


FACTS = {
    "device": "cpu", "limit_bytes": 4500, "share": 16, "num_samples": 1000, "weight_bytes": 1000,
    "gradient_bytes": 1000, "optimizer_bytes": 1000, "smallest": 1, "smallest_working_bytes": 150, "largest": 8,
    "sizes": SIZES, "uncertainty": 0.0, "update_s": 1e-3, "layers": [_layer(2), _layer(8)],
    "precisions": {"float32": 800.0}, "layouts": [],
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines of the processes that would have measured."""
    lines: list[list[str]] = []

    def measure(arguments: list[str], *_: Any, **__: Any) -> TryResult:
        lines.append(arguments)
        if "--choice" not in arguments:
            return TryResult(facts=dict(FACTS))
        size = json.loads(arguments[-1])["sizes"][0]
        checked = {
            "samples": size,
            "peak_bytes": 4200,
            "seconds": 0.004,
            "plain_s": 0.010,
            "why": None,
            "uncertainty": 0.0,
        }
        return TryResult(facts={"checked": [checked]})

    monkeypatch.setattr("oakum_client.cli.advise.ask_worker", measure)
    monkeypatch.delenv("OAKUM_URL", raising=False)
    return lines


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OAKUM_DATA_DIR", str(tmp_path / "nothing"))
    path = tmp_path / "digits.yaml"
    path.write_text(TEXT)
    return path


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[Service], None]:
    def set_up(service: Service) -> None:
        transport = httpx.MockTransport(service)
        monkeypatch.setattr(
            "oakum_client.rest.client.OakumClient",
            lambda **options: OakumClient("http://x", "secret", transport=transport, **options),
        )

    return set_up


def test_each_answer_is_told_with_its_numbers(asked, spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", str(spec), "--memory", "4500"]) == 0
    out = capsys.readouterr().out
    assert asked[0] == ["advise", str(spec), "--leased", "--memory", "4500"]
    assert json.loads(asked[1][-1])["algorithms"] == {"conv": "channels-last"}
    for told in ("Mini-batch", "R  = T_O", "R' = T_O", "N_ps = ceil", "What Oakum would choose", "layout"):
        assert told in out
    assert "when it would end, no service says" in out
    assert "2,000 samples/s, 800 as it is" in out
    assert spec.read_text() == TEXT


def test_applied_advice_is_shown_and_written(asked, spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", str(spec), "--apply"]) == 0
    assert "+micro_batch: 8" in capsys.readouterr().out
    assert "micro_batch: 8\n" in spec.read_text()
    assert "# mine" in spec.read_text()
    once = spec.read_text()
    assert run(["advise", str(spec), "--apply"]) == 0
    assert spec.read_text() == once
    assert "stays as it is" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    asked, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec.chmod(0o444)
    assert run(["advise", str(spec), "--apply"]) == 1
    assert f"{spec} is read-only: `chmod u+w {spec}`" in capsys.readouterr().err
    as_json = spec.with_suffix(".json")
    as_json.write_text(json.dumps({"name": "a", "entrypoint": "a:b", "global_batch": 1, "epochs": 1}))
    assert run(["advise", str(as_json), "--apply"]) == 1
    assert "change it by hand" in capsys.readouterr().err
    assert asked == []
    assert spec.read_text() == TEXT


def test_what_to_write_into_the_model_is_told(asked, spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", str(spec)]) == 0
    assert "- channels-last for conv: x.contiguous(memory_format=torch.channels_last)" in capsys.readouterr().out


def test_json_holds_all_that_was_measured_and_chosen(
    asked, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["advise", str(spec), "--json", "--efficiency", "0.9"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["measured"]["largest"] == 8
    assert document["nodes"]["asked_efficiency"] == 0.9
    assert document["nodes"]["share"] < document["nodes"]["ratio"]
    assert document["choice"]["fields"]["micro_batch"] == 8


def test_a_running_trainers_rates_take_the_place_of_passes(
    asked, serve, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service()
    rates = [{"nodes": n, "samples_per_s": 64 / (0.64 / n + 0.04), "seconds": 60.0} for n in (1, 2, 4)]
    service.documents["GET", "/v1/trainers/digits"] = trainer("digits", measured_rates=rates)
    serve(service)
    assert run(["advise", "--trainer", "digits"]) == 0
    out = capsys.readouterr().out
    assert asked == []
    assert "the rates that the trainer has measured" in out
    assert "max_nodes" in out


def test_a_running_trainers_shares_and_what_its_rates_leave_open_are_told(
    asked, spec: Path, serve, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step takes 640 ms of computing for 64 samples and 40 ms beside: 16 samples of 10 ms are 80 % of a step."""
    service = Service()
    rates = [{"nodes": n, "samples_per_s": 64 / (0.64 / n + 0.04), "seconds": 60.0} for n in (1, 2, 4)]
    service.documents["GET", "/v1/trainers/digits"] = trainer("digits", measured_rates=rates)
    serve(service)
    assert run(["advise", "--trainer", "digits"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "up to 64 samples at once fit" in out
    assert "on 2 nodes a rank computes for 80 % of a step or more with a share of 16 samples" in out
    assert "as it is, replicated" in out
    assert "`oakum advise SPEC --trainer digits` measures these" in out
    assert run(["advise", str(spec), "--trainer", "digits"]) == 0
    assert "not to be known from rates" not in capsys.readouterr().out


def test_a_rate_that_the_plan_does_not_know_is_the_predicted_one(
    asked, spec: Path, serve, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service()
    service.documents["POST", "/v1/trainers/dry-run"] = {
        "name": "digits", "num_idle": 4, "nodes": ["n1"], "why": "", "reason": "", "start_in_s": 10.0,
        "samples_per_s": None, "finish_in_s": None,
    }  # fmt: skip
    serve(service)
    assert run(["advise", str(spec)]) == 0
    # 4 epochs of 1,000 samples in steps of 16, of two passes of 10 ms and an update of 1 ms, after 10 s
    assert "1 of 4 idle nodes, train at 762 samples/s, and end in about 15 s" in capsys.readouterr().out


def test_a_running_trainers_end_is_told_for_its_nodes_and_the_advised(
    asked, serve, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service()
    rates = [{"nodes": n, "samples_per_s": 64 / (0.64 / n + 0.04), "seconds": 60.0} for n in (1, 2, 4)]
    service.documents["GET", "/v1/trainers/digits"] = trainer(
        "digits", measured_rates=rates, nodes=["n1"], samples=0, total_samples=9400
    )
    serve(service)
    assert run(["advise", "--trainer", "digits"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "digits trains on 1 node now; to its end it takes about" in out
    assert "about 1 min 40 s on 1 node" in out  # 94 samples/s


def test_a_trainer_of_one_size_is_refused_with_the_way_out(serve, capsys: pytest.CaptureFixture[str]) -> None:
    service = Service()
    service.documents["GET", "/v1/trainers/digits"] = trainer("digits")
    serve(service)
    assert run(["advise", "--trainer", "digits"]) == 1
    assert "two are needed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ([], 2, "SPEC"),
        (["--trainer", "x", "--apply"], 2, "--apply"),
        (["missing.yaml"], 1, "missing.yaml"),
        (["{spec}", "--memory", "lots"], 1, "--memory 'lots'"),
    ],
)
def test_what_cannot_be_advised_says_why(
    asked, spec: Path, arguments: list[str], status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["advise", *(one.format(spec=spec) for one in arguments)]) == status
    assert told in capsys.readouterr().err
    assert asked == []


def test_a_task_that_fails_ends_the_command_with_its_message(
    spec: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "oakum_client.cli.advise.ask_worker", lambda *_, **__: TryResult(failure="loss raised ValueError")
    )
    assert run(["advise", str(spec)]) == 1
    assert "loss raised ValueError" in capsys.readouterr().err
