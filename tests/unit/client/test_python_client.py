"""`from oakum import Client`, against a service that answers from memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import oakum
from answering_service import Service, trainer
from oakum_client import trainer_ends
from oakum_client.python_client import Client, ExportError
from oakum_client.rest.client import OakumClient
from oakum_client.rest.errors import ApiError, ClientError
from oakum_worker.errors import SpecError
from oakum_worker.spec import TrainerSpec

FIELDS = {"name": "digits", "entrypoint": "tasks:digits", "global_batch": 8, "epochs": 2}


@pytest.fixture
def answering() -> Service:
    return Service()


@pytest.fixture
def client(answering: Service) -> Client:
    return Client("http://oakum.test", "secret", transport=httpx.MockTransport(answering))


def test_it_is_the_clis_own_under_a_name_that_needs_no_torch() -> None:
    assert oakum.Client is Client
    assert issubclass(Client, OakumClient)
    code = "import sys; from oakum import Client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError, match="has no 'Clint': it has Client, Session, session"):
        _ = oakum.Clint


def test_a_spec_is_a_file_its_fields_or_a_value(
    client: Client, answering: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "code" / "digits.yaml"
    file.parent.mkdir()
    file.write_text("\n".join(f"{name}: {value}" for name, value in FIELDS.items()))
    for spec in (file, str(file), FIELDS, {**FIELDS, "workdir": "code"}, TrainerSpec.model_validate(FIELDS)):
        assert client.submit(spec, begin_from="old/20").state == "waiting"
    sent = [body.get("workdir") for body in answering.sent("POST", "/v1/trainers")]
    assert sent == [str(file.parent), str(file.parent), str(tmp_path), str(file.parent), None]
    assert answering.requests[-1] == ("POST", "/v1/trainers?begin_from=old%2F20")
    with pytest.raises(SpecError, match="epochs"):
        client.submit({**FIELDS, "epochs": 0})
    with pytest.raises(SpecError, match=r"nowhere.yaml: cannot be read"):
        client.submit("nowhere.yaml")


def test_waiting_ends_with_the_trainers(
    client: Client, answering: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_ends, "_LOOK_AGAIN_DEAF_S", 0.0)
    answering.documents["GET", "/v1/trainers/id-digits"] = [trainer(), trainer(), trainer(state="failed")]
    assert [view.state for view in client.wait("digits")] == ["failed"]
    answering.documents["GET", "/v1/trainers/id-digits"] = trainer()
    with pytest.raises(TimeoutError, match="not ended within 0 s: digits"):
        client.wait("digits", timeout_s=0)
    with pytest.raises(ApiError, match="no trainer 'nobody'"):
        client.wait("nobody")


def test_what_cannot_be_exported_is_a_client_error(client: Client, answering: Service, tmp_path: Path) -> None:
    answering.documents["GET", "/v1/trainers/digits"] = trainer(checkpoint_folder=str(tmp_path / "gone"))
    with pytest.raises(ClientError, match="which is not on this machine"):
        client.export("digits", tmp_path / "model.pt")
    answering.documents["GET", "/v1/trainers/digits"] = trainer(checkpoint_folder=str(tmp_path))
    with pytest.raises(ExportError, match="there is no checkpoint after step 7 any more; there are: none"):
        client.export("digits", tmp_path / "model.pt", step=7)
    with pytest.raises(ExportError, match="digits has no best checkpoint"):
        client.export("digits", tmp_path / "model.pt", step="best")
    (tmp_path / "model.pt").touch()
    with pytest.raises(ExportError, match="is there already: choose another name, or give force=True"):
        client.export("digits", tmp_path / "model.pt")
