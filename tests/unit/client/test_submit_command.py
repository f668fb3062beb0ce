"""Submitting: read, tried out, then sent; with what is tried and who answers given by the tests."""

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
from oakum_client.cli.trying import TryDisplay, TryResult
from oakum_client.rest.client import OakumClient

load_commands()

SPEC = "name: {name}\nentrypoint: tasks.digits:task\nglobal_batch: 64\nepochs: 4\nmax_nodes: 8\n"
FACTS = {"total_samples": 5000, "remarks": [], "memory_complaint": None}
PLAN = {
    "name": "digits", "num_idle": 4, "nodes": ["n1", "n3"], "why": "no_idle_node",
    "reason": "no other node is idle", "start_in_s": 20.0, "samples_per_s": 1000.0, "finish_in_s": 25.0,
    "changed": [{"name": "old", "nodes_now": 3, "nodes_then": 1}],
}  # fmt: skip


class Tries:
    """Takes the place of tries: records what was tried, and answers as the test sets."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.limits: list[float] = []
        self.folders: list[Path | None] = []
        self.answers: dict[str, TryResult] = {}

    def __call__(
        self, path: Path, limit_s: float, view: TryDisplay, state_folder: Path | None = None
    ) -> TryResult:
        self.tried.append(path.name)
        self.folders.append(state_folder)
        self.limits.append(limit_s)
        return self.answers.get(path.name, TryResult(facts=dict(FACTS)))


@pytest.fixture
def url() -> str:
    return "http://localhost:8080"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, url: str) -> Service:
    service = Service()
    service.documents["GET", "/v1/trainers"] = {"trainers": [trainer("old", state="finished"), trainer("other")]}
    transport = httpx.MockTransport(service)

    def connected(**options: Any) -> OakumClient:
        return OakumClient(url, "secret", transport=transport, **options)

    monkeypatch.setattr("oakum_client.rest.client.OakumClient", connected)
    monkeypatch.setattr("oakum_client.cli.watch._PERIOD_S", 0)
    return service


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Tries:
    tries = Tries()
    monkeypatch.setattr("oakum_client.cli.submit.try_spec", tries)
    return tries


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., str]:
    def write(name: str = "digits", text: str = "") -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_text(SPEC.format(name=name) + text)
        return str(path)

    return write


def sent(service: Service) -> list[str]:
    """Names of the trainers that were submitted."""
    return [body["name"] for body in service.sent("POST", "/v1/trainers")]


def refusal(status: int, detail: str) -> httpx.Response:
    return httpx.Response(status, json={"title": "Refused", "status": status, "detail": detail})


def test_submit_makes_the_folder_absolute_and_sends_the_spec(
    service: Service, tries: Tries, spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = spec()
    assert run(["submit", path]) == 0
    assert capsys.readouterr().out.startswith("Submitted digits (id-digits).")
    assert service.bodies[0]["workdir"] == str(Path(path).parent)
    assert (tries.tried, tries.limits) == (["digits.yaml"], [60.0])


def test_submit_warns_of_bounds_that_the_specs_own_curve_speaks_against(
    service: Service, tries: Tries, spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["submit", spec("few", "curve: [[1, 100], [8, 300]]\n"), spec("even", "curve: [[8, 800]]\n")]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "few.yaml: max_nodes is 8" in warnings[0]
    assert "38 %" in warnings[0]


def test_submit_names_every_mistake_and_calls_nobody(
    service: Service, tries: Tries, spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = spec("good"), spec("bad", "epoch: 4\nglobal_batches: 5\n")
    assert run(["submit", good, bad, spec("same"), spec("same")]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"oakum: {bad}:\n")
    assert "unknown field 'epoch': did you mean `epochs`?" in errors
    assert (service.requests, tries.tried) == ([], [])


def test_two_specs_of_one_name_are_refused(
    service: Service, tries: Tries, spec: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    again = tmp_path / "again.yaml"
    again.write_text(SPEC.format(name="digits"))
    assert run(["submit", spec(), str(again)]) == 1
    assert "2 specs have the name 'digits': names are unique" in capsys.readouterr().err
    assert service.requests == []


def test_what_fails_in_the_try_is_told_and_nothing_is_submitted(
    service: Service, tries: Tries, spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = spec("a"), spec("b")
    tries.answers["b.yaml"] = TryResult(failure="the data set is a DataLoader: give the data set in it")
    assert run(["submit", a, b]) == 1
    assert tries.tried == ["a.yaml", "b.yaml"]
    assert sent(service) == []
    error = capsys.readouterr().err
    assert f"oakum: {b}: the data set is a DataLoader: give the data set in it\nNothing was submitted" in error


def test_a_taken_name_is_told_before_anything_is_tried(
    service: Service, tries: Tries, spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    taken = "a trainer named 'other' is running: choose another name or `oakum cancel other`"
    service.documents["POST", "/v1/trainers/check"] = refusal(409, taken)
    assert run(["submit", spec("other")]) == 1
    assert "a trainer named 'other' is running: choose another name" in capsys.readouterr().err
    assert (tries.tried, sent(service)) == ([], [])


def test_several_are_submitted_in_their_order(
    service: Service, tries: Tries, spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    service.documents["POST", "/v1/trainers"] = [trainer("a"), trainer("b")]
    assert run(["submit", spec("a"), spec("b"), "--json"]) == 0
    assert sent(service) == ["a", "b"]
    assert [view["name"] for view in json.loads(capsys.readouterr().out)["trainers"]] == ["a", "b"]
    assert run(["submit", spec("a"), spec("b"), "--follow"]) == 2


def test_all_that_the_service_would_refuse_is_told_before_anything_is_tried_or_submitted(
    service: Service, tries: Tries, spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    refused = refusal(409, "notify: the host hooks.test is not allowed")
    service.documents["POST", "/v1/trainers/check"] = [{}, refused, refusal(403, "priority 5 needs admin")]
    assert run(["submit", spec("a"), spec("b"), spec("c")]) == 1
    assert capsys.readouterr().err == (
        f"oakum: {spec('b')}: notify: the host hooks.test is not allowed\n"
        f"{spec('c')}: priority 5 needs admin\nNothing was submitted.\n"
    )
    assert (tries.tried, sent(service)) == ([], [])


def test_what_the_service_refuses_is_told_by_file_with_what_was_submitted_before(
    service: Service, tries: Tries, spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    refused = httpx.ConnectError("no route to the service")
    service.documents["POST", "/v1/trainers"] = [trainer("a"), refused]
    assert run(["submit", spec("a"), spec("b")]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"oakum: {spec('b')}: " in said
    assert "submitted before: a" in said


def test_a_try_that_is_interrupted_submits_nothing_and_says_so(
    service: Service, monkeypatch: pytest.MonkeyPatch, spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(path: Path, limit_s: float, view: TryDisplay) -> TryResult:
        raise KeyboardInterrupt

    monkeypatch.setattr("oakum_client.cli.submit.try_spec", interrupted)
    assert run(["submit", spec()]) == 130
    assert "Interrupted: nothing was submitted." in capsys.readouterr().err
    assert sent(service) == []


def test_a_trainer_that_begins_from_another_is_tried_and_submitted_so(
    service: Service, tries: Tries, spec: Callable[..., str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    old = trainer("old", state="diverged", checkpoint_step=40, checkpoint_folder=str(tmp_path))
    service.documents["GET", "/v1/trainers/old"] = old
    assert run(["submit", spec(), "--from", "old"]) == 0
    posted = [path for method, path in service.requests if method == "POST"]
    assert posted == ["/v1/trainers/check?begin_from=old", "/v1/trainers?begin_from=old"]
    assert tries.folders == [tmp_path]
    service.documents["GET", "/v1/trainers/old"] = old | {"checkpoint_folder": "/not/here"}
    assert run(["submit", spec(), "--from", "old"]) == 0
    assert tries.folders == [tmp_path, None]
    assert run(["submit", spec("a"), spec("b"), "--from", "old"]) == 2
    assert "--from takes one spec" in capsys.readouterr().err


def test_the_try_can_be_left_out(service: Service, tries: Tries, spec: Callable[..., str]) -> None:
    assert run(["submit", spec(), "--no-check"]) == 0
    assert (tries.tried, sent(service)) == ([], ["digits"])


@pytest.mark.parametrize("url", ["http://cluster.example:8080"])
def test_what_is_on_the_cluster_alone_is_submitted_untried(
    service: Service, tries: Tries, spec: Callable[..., str], capsys: pytest.CaptureFixture[str], url: str
) -> None:
    assert run(["submit", spec("far", "workdir: /scratch/me/model\n")]) == 0
    error = capsys.readouterr().err
    assert "was not tried: workdir /scratch/me/model is not on this machine, and the service runs on" in error
    assert tries.tried == []
    tries.answers["digits.yaml"] = TryResult(failure="there is no module 'tasks'", lacks="tasks")
    assert run(["submit", spec()]) == 0
    assert (
        "was not tried: there is no module 'tasks'; the service runs on another machine" in capsys.readouterr().err
    )
    assert sent(service) == ["far", "digits"]


@pytest.mark.parametrize(
    ("url", "scheduler", "code"),
    [
        ("http://localhost:8080", "local", 1),
        ("http://localhost:8080", "slurm", 0),
        ("http://cluster.example", "local", 0),
    ],
)
def test_too_little_memory_counts_where_the_nodes_are_this_machine(
    service: Service,
    tries: Tries,
    spec: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    scheduler: str,
    code: int,
) -> None:
    complaint = "a node needs about 40 GiB and this machine has 16 GiB"
    tries.answers["digits.yaml"] = TryResult(facts={**FACTS, "memory_complaint": complaint})
    cluster: dict[str, Any] = dict.fromkeys(
        ("num_nodes", "num_foreground", "num_holes", "num_training", "idle_node_s", "used_node_s"), 1
    )
    cluster |= {"foreground_jobs_started": 0, "scheduler": scheduler}
    cluster |= {f"foreground_delay_{which}_s": None for which in ("p50", "p99", "max")}
    service.documents["GET", "/v1/cluster"] = cluster
    assert run(["submit", spec()]) == code
    assert complaint in capsys.readouterr().err
    assert sent(service) == ([] if code else ["digits"])


def test_a_dry_run_says_what_would_be_and_submits_nothing(
    service: Service, tries: Tries, spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    service.documents["POST", "/v1/trainers/dry-run"] = PLAN
    assert run(["submit", spec(), "--dry-run"]) == 0
    assert service.sent("POST", "/v1/trainers/dry-run")[0]["total_samples"] == 5000
    assert sent(service) == []
    assert capsys.readouterr().out == (
        "digits would get 2 of 4 idle nodes (n1, n3): no other node is idle\n"
        "  It would train in about 20 s. 5,000 samples at 1,000 samples/s: it would end in about 25 s, if these "
        "holes stay.\n"
        "  old would shrink from 3 to 1 node.\n"
        "Nothing was submitted.\n"
    )


def test_a_dry_run_says_what_is_not_known(
    service: Service, tries: Tries, spec: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = {"samples_per_s": None, "finish_in_s": None, "changed": []}
    service.documents["POST", "/v1/trainers/dry-run"] = PLAN | unknown
    assert run(["submit", spec(), "--dry-run", "--no-check"]) == 0
    assert "Its speed is unknown: the spec has no curve for these nodes" in capsys.readouterr().out
    service.documents["POST", "/v1/trainers/dry-run"] = PLAN | unknown | {"nodes": [], "start_in_s": None}
    assert run(["submit", spec(), "--dry-run", "--no-check"]) == 0
    assert capsys.readouterr().out.startswith("digits would have to wait: no other node is idle\n")


@pytest.mark.parametrize(("end", "code"), [("finished", 0), ("failed", 1), ("cancelled", 4)])
def test_submit_follow_ends_with_the_trainer(
    service: Service,
    tries: Tries,
    spec: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    end: str,
    code: int,
) -> None:
    ended = trainer(state=end, reason=f"It has {end}.")
    service.documents["GET", "/v1/trainers/id-digits"] = [trainer(), ended]
    assert run(["submit", spec(), "--follow"]) == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert end in last
    assert f"It has {end}." in last
