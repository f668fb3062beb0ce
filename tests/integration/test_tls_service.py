"""A service that speaks TLS alone: CLI, agents and the hooks' curl reach it, and check whom they reach."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from certificates import make_certificate
from oakum_service.schedulers.slurm.hooks.connection_check import try_to_post
from oakum_service.schedulers.slurm.hooks.installation import HookInstallation
from running_service import RunningService, small_spec, wait_for_size, wait_for_steps


def test_a_trainer_trains_and_everybody_is_heard_over_tls(service: RunningService, tmp_path: Path) -> None:
    certificate, other = make_certificate(tmp_path), make_certificate(tmp_path, name="other")
    service.configure(
        OAKUM_TLS_CERTIFICATE=str(certificate.pem),
        OAKUM_TLS_KEY=str(certificate.key),
        OAKUM_CA_FILE=str(certificate.pem),
    )
    service.start()
    found = json.loads((service.data_dir / "client.json").read_text(encoding="utf-8"))
    assert found["url"].startswith("https://127.0.0.1:")
    with service.client() as client:
        client.submit(small_spec("elastic", epochs=100_000))
        wait_for_size(client, "elastic", 4)
        wait_for_steps(client, "elastic")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{found['url']}/healthz")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{found['url'].removeprefix('https://')}/healthz")
    for trusted, told in ((certificate, ""), (other, "certificate")):
        made = HookInstallation(tmp_path / f"hooks-{trusted.pem.stem}", tmp_path / "spool", cluster="c")
        made.install(found["url"], found["token"], None, trusted.pem)
        assert told in try_to_post(made.config_file)
    assert try_to_post(tmp_path / "hooks-service" / "curl.conf") == ""
