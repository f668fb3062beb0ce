"""`oakum demo digits` without a browser: the trainers it submits, what it knows of them, and its documents."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from answering_service import trainer
from cells import each
from oakum_client.cli import load_commands
from oakum_client.cli.app import app
from oakum_client.demo.chain import DemoRole, TrainerChain, read_specs
from oakum_client.demo.follower import Follower
from oakum_client.demo.pages import demo_app
from oakum_client.rest.errors import ServiceUnreachable
from oakum_client.serve_command import offer_demonstration
from oakum_service.api.schemas.trainers import TrainerList, TrainerView
from oakum_service.config import Settings
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.spec import TrainerSpec

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
NAMES = ["rbm-digits", "rbm-classifier", "rbm-autoencoder"]


@dataclass
class Service:
    """Keeps the trainers that are submitted, as a service without nodes."""

    trainers_: list[TrainerView] = field(default_factory=list)
    away: bool = False

    def trainers(self) -> TrainerList:
        if self.away:
            raise ServiceUnreachable("Nothing answers at http://127.0.0.1:8470.")
        return TrainerList(trainers=self.trainers_)

    def submit(self, spec: TrainerSpec, idempotency_key: str) -> TrainerView:
        document = trainer(spec.name, id=idempotency_key, state="waiting", nodes=[], metrics={}, loss=None)
        self.trainers_.append(TrainerView.model_validate({**document, "spec": spec.model_dump()}))
        return self.trainers_[-1]

    def end(self, name: str, state: str = "finished", **changes: Any) -> None:
        at = next(i for i, view in enumerate(self.trainers_) if view.name == name and not view.state.ended)
        self.trainers_[at] = TrainerView.model_validate(
            {**self.trainers_[at].model_dump(), "state": state, "status": state, **changes}
        )

    @property
    def names(self) -> list[str]:
        return [view.name for view in self.trainers_]


@pytest.fixture
def service() -> Service:
    return Service()


def chain(*, anew: bool = False) -> TrainerChain:
    return TrainerChain(read_specs(EXAMPLES, epochs=7), anew=anew)


def test_fine_tuning_begins_from_the_stack_when_that_has_finished(service: Service) -> None:
    submitting = chain()
    for _ in range(2):
        assert list(submitting.turn(service)) == [DemoRole.STACK]
    service.end("rbm-digits", checkpoint_step=540, checkpoint_folder="/checkpoints/stack")
    for _ in range(2):
        assert set(submitting.turn(service)) == set(DemoRole)
    assert service.names == NAMES
    for view in service.trainers_[1:]:
        assert view.spec.arguments == {"begin_from": "/checkpoints/stack"}
        assert (view.spec.epochs, view.spec.checkpoint.every_s) == (7, 1.0)


def test_trainers_that_are_there_are_taken_and_nothing_is_submitted(service: Service) -> None:
    for name in NAMES[1:]:
        service.trainers_.append(TrainerView.model_validate(trainer(name)))
    assert set(chain().turn(service)) == {DemoRole.RECOGNISER, DemoRole.AUTOENCODER}
    assert service.names == NAMES[1:]


def test_anew_passes_over_what_has_ended_before_and_only_that(service: Service) -> None:
    for name in NAMES:
        service.trainers_.append(TrainerView.model_validate(trainer(name, state="finished", checkpoint_step=3)))
    submitting = chain(anew=True)
    submitting.turn(service)
    assert service.names == [*NAMES, "rbm-digits"]
    service.end("rbm-digits", checkpoint_step=540, checkpoint_folder="/new")
    submitting.turn(service)
    assert service.names == [*NAMES, *NAMES]
    assert service.trainers_[-1].spec.arguments == {"begin_from": "/new"}


def state_of(follower: Follower) -> dict[str, Any]:
    follower.turn()
    state: dict[str, Any] = json.loads(follower.known.state)
    return state


def test_a_failed_trainer_is_told_with_what_to_do_and_not_submitted_again(service: Service) -> None:
    follower = Follower(service, chain())  # type: ignore[arg-type]
    follower.turn()
    service.end("rbm-digits", "failed", may_retry=True, reason="Failed: no scikit-learn.")
    state = state_of(follower)
    assert [told["hint"] for told in state["trainers"]] == [
        "Failed: no scikit-learn. `oakum retry rbm-digits` lets it go on; `oakum demo digits --anew` begins anew."
    ]
    assert service.names == ["rbm-digits"]


def test_an_outage_is_told_until_it_ends_and_what_was_known_stays(service: Service) -> None:
    follower = Follower(service, chain())  # type: ignore[arg-type]
    follower.turn()
    service.away = True
    state = state_of(follower)
    assert state["fault"] == "Nothing answers at http://127.0.0.1:8470."
    assert [told["name"] for told in state["trainers"]] == ["rbm-digits"]
    service.away = False
    assert state_of(follower)["fault"] is None


def test_only_a_trainer_that_waits_is_told_of_with_its_reason(service: Service) -> None:
    follower = Follower(service, chain())  # type: ignore[arg-type]
    hints = []
    for state in ("waiting", "starting", "running"):
        follower.turn()
        service.end("rbm-digits", state, reason="No node is idle.")
        hints.append(state_of(follower)["trainers"][0]["hint"])
    assert hints == ["No node is idle.", "", ""]


def test_checkpoints_on_another_machine_are_told(service: Service) -> None:
    follower = Follower(service, chain())  # type: ignore[arg-type]
    follower.turn()
    service.end("rbm-digits", checkpoint_step=540, checkpoint_folder="/not/here")
    assert "/not/here, not on this machine" in state_of(follower)["trainers"][0]["hint"]


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 2)])
        self.head = nn.Linear(2, 10)
        self.unneeded = nn.Linear(1, 1)


def save(model: nn.Module, folder: Path, step: int) -> None:
    DurableCheckpoints(folder, keep=2).save({"model": model.state_dict()}, step)


def get(follower: Follower, path: str, **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(demo_app(follower))
        async with httpx.AsyncClient(transport=transport, base_url="http://demo.test") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


def test_weights_are_the_checkpoints_bits_and_are_sent_once(tmp_path: Path) -> None:
    model, follower = Head(), Follower(None, None, {DemoRole.RECOGNISER: tmp_path})
    assert state_of(follower)["networks"] == {}
    assert get(follower, "/weights/recogniser").status_code == 404
    save(model, tmp_path, 7)
    told = state_of(follower)["networks"]["recogniser"]
    answer = get(follower, "/weights/recogniser")
    assert (told["step"], told["tag"]) == (7, answer.headers["ETag"])
    tensors = answer.json()["tensors"]
    assert tensors.keys() == {"layers.0.weight", "layers.0.bias", "head.weight", "head.bias"}
    for name, tensor in tensors.items():
        values = np.frombuffer(base64.b64decode(tensor["data"]), "<f4").reshape(tensor["shape"])
        assert torch.equal(torch.from_numpy(values.copy()), model.state_dict()[name])
    for path in ("/weights/recogniser", "/state"):
        again = get(follower, path, **{"If-None-Match": get(follower, path).headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_the_newest_checkpoint_is_read_and_a_broken_one_is_told(tmp_path: Path) -> None:
    follower = Follower(None, None, {DemoRole.RECOGNISER: tmp_path})
    save(Head(), tmp_path, 7)
    first = state_of(follower)["networks"]["recogniser"]
    save(Head(), tmp_path, 8)
    second = state_of(follower)["networks"]["recogniser"]
    assert (second["step"], second["tag"] != first["tag"]) == (8, True)
    save(nn.Linear(2, 2), tmp_path, 9)
    state = state_of(follower)
    assert state["networks"]["recogniser"] == second
    assert "step-9 has no recogniser of examples/rbm" in state["faults"]["recogniser"]


@each("path", ["/static/..%2f__init__.py", "/shared/../routes.py", "/weights/other", "/nothing"])
def test_nothing_else_is_served(path: str) -> None:
    assert get(Follower(None, None), path).status_code in (404, 422)


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    for path in ("/", "/static/js/main.js", "/shared/style.css", "/state"):
        assert "default-src 'none'" in get(Follower(None, None), path).headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--examples", "/nowhere"], "rbm-digits.yaml is not in /nowhere: name Oakum's folder of examples"),
        (["--recogniser", "/nowhere"], "it has no checkpoint"),
    ],
)
def test_what_keeps_the_command_from_its_work_is_told_before_there_is_a_page(
    arguments: list[str], told: str
) -> None:
    load_commands()
    done = CliRunner().invoke(app, ["demo", "digits", "--no-browser", "--port", "0", *arguments])
    assert (done.exit_code, told in str(done.exception), done.stdout) == (1, True, "")


@each("made", ["another account's", "a link to a folder that all may write"])
def test_examples_of_another_account_are_not_run_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    work, theirs = tmp_path / made / "work", tmp_path / made / "theirs"
    work.mkdir(parents=True)
    theirs.mkdir()
    (work / "examples").symlink_to(theirs)
    shutil.copy(EXAMPLES / "rbm-digits.yaml", theirs)
    load_commands()
    with monkeypatch.context() as patch:
        patch.chdir(work)
        if made == "another account's":
            patch.setattr("os.geteuid", lambda: theirs.stat().st_uid + 1)
            patch.setattr("oakum_service.files.owners.ROOT", -1)
            patch.setattr("oakum_client.cli.demo._owner_of_code", lambda: -1)
        else:
            theirs.chmod(0o1777)
        done = CliRunner().invoke(app, ["demo", "digits", "--no-browser", "--port", "0"])
    assert (done.exit_code, "say --examples examples" in str(done.exception)) == (1, True)


def test_a_port_in_use_is_told() -> None:
    load_commands()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(app, ["demo", "digits", "--no-browser", "--port", port])
    assert (done.exit_code, "--port 0 takes any free port" in str(done.exception)) == (1, True)


def test_the_services_start_names_the_demonstration_where_it_can_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    assert "oakum demo digits" in offer_demonstration(Settings())
    assert offer_demonstration(Settings(dry_run=True)) == ""
    monkeypatch.chdir(tmp_path)
    assert offer_demonstration(Settings()) == ""
