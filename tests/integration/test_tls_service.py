"""A service that speaks TLS alone and writes its log as JSON: CLI, agents, probes and the hooks' curl reach it,
and check whom they reach; each line of the log parses, and tells what it is about."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from certificates import Certificate, make_certificate
from oakum_service.schedulers.slurm.hooks.connection_check import try_to_post
from oakum_service.schedulers.slurm.hooks.installation import HookInstallation
from running_service import RunningService, small_spec, wait_for_size, wait_for_steps
from waiting import DEADLINE_S, wait_until


def test_a_trainer_trains_everybody_is_heard_over_tls_and_each_line_of_the_log_is_json(
    service: RunningService, tmp_path: Path
) -> None:
    certificate = make_certificate(tmp_path)
    service.configure(
        OAKUM_TLS_CERTIFICATE=str(certificate.pem),
        OAKUM_TLS_KEY=str(certificate.key),
        OAKUM_CA_FILE=str(certificate.pem),
        OAKUM_LOG_FORMAT="json",
        OAKUM_LOCAL_NODES="1",
    )
    service.start()
    found = json.loads((service.data_dir / "client.json").read_text(encoding="utf-8"))
    assert found["url"].startswith("https://127.0.0.1:")
    headers = {"Authorization": f"Bearer {found['token']}", "X-Request-ID": "request-of-the-test"}
    trusting = ssl.create_default_context(cafile=str(certificate.pem))
    with httpx.Client(base_url=found["url"], headers=headers, verify=trusting, timeout=DEADLINE_S) as https:
        spec = small_spec("elastic", epochs=100_000, max_nodes=1).model_dump(mode="json", exclude_unset=True)
        trainer = https.post("/v1/trainers", json=spec).raise_for_status().json()["id"]
        with service.client() as client:
            wait_for_size(client, "elastic", 1)
            wait_for_steps(client, "elastic")
        a_probe_and_a_scrape_are_answered(https)
    whoever_does_not_trust_it_is_not_heard(found["url"])
    the_hooks_check_whom_they_reach(found["url"], found["token"], certificate, tmp_path)
    service.interrupt()
    the_log_tells_what_each_line_is_about(service.log_file.read_text(encoding="utf-8"), found["token"], trainer)


def a_probe_and_a_scrape_are_answered(https: httpx.Client) -> None:
    wait_until("the service is ready", lambda: https.get("/readyz").status_code == 200)
    trains = 'oakum_fragments{phase="training"} 1.0'
    wait_until("its fragment is counted", lambda: trains in https.get("/metrics").text)


def whoever_does_not_trust_it_is_not_heard(url: str) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"{url}/healthz")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{url.removeprefix('https://')}/healthz")


def the_hooks_check_whom_they_reach(url: str, token: str, certificate: Certificate, folder: Path) -> None:
    other = make_certificate(folder, name="other")
    for trusted, told in ((certificate, ""), (other, "certificate")):
        made = HookInstallation(folder / f"hooks-{trusted.pem.stem}", folder / "spool", cluster="c")
        made.install(url, token, None, trusted.pem)
        assert told in try_to_post(made.config_file)
    assert try_to_post(folder / "hooks-service" / "curl.conf") == ""


def the_log_tells_what_each_line_is_about(text: str, token: str, trainer: str) -> None:
    """Which trainer, fragment, plan and request."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    assert token not in text
    submitted = [line for line in lines if line.get("request") == "request-of-the-test"]
    assert [(line["event"], line["trainer"]) for line in submitted] == [("trainer.submitted", trainer)]
    launched = [line for line in lines if line.get("event") == "fragment.launched"]
    assert {line["trainer"] for line in launched} == {trainer}
    assert all(int(line["plan"]) > 0 for line in launched)
    formed = {line["fragment"] for line in lines if line.get("event") == "generation.formed"}
    assert formed
    assert formed <= {line["fragment"] for line in launched}
    assert any(line["logger"] == "oakum.serve" and "serves http" in line["message"] for line in lines)
