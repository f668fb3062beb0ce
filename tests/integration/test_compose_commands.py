"""The commands of docker-compose.yml, run outside of containers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from running_service import RunningService
from waiting import wait_until
from warm_processes import run_warm

ROOT = Path(__file__).resolve().parents[2]


def containers() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))[
        "services"
    ]
    return services


def exit_status(command: list[str], url: str) -> int:
    """Run a healthcheck's command against the service at `url`."""
    assert command[:2] == ["CMD", "python"]
    words = [word.replace("http://127.0.0.1:8470", url).replace("timeout=2", "timeout=60") for word in command[2:]]
    return subprocess.run([sys.executable, *words], capture_output=True, check=False).returncode


def test_the_service_starts_as_in_its_container_and_becomes_healthy(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    _, *options = containers()["service"]["command"]
    # Nothing is launched: the examples' training is tested elsewhere.
    client = service.start(*options, "--dry-run")
    assert {trainer.name for trainer in client.trainers().trainers} == {"digits-classifier", "digits-autoencoder"}
    check = containers()["service"]["healthcheck"]["test"]
    wait_until("the container is healthy", lambda: exit_status(check, client.address.url) == 0)
    assert exit_status(check, "http://127.0.0.1:9") != 0


def test_the_schema_is_made_as_in_its_container(tmp_path: Path) -> None:
    for _ in range(2):  # each start of the containers runs it
        done = run_warm(
            "oakum",
            *containers()["migrate"]["command"],
            environment=os.environ | {"OAKUM_DATABASE_URL": f"sqlite:///{tmp_path}/oakum.db"},
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "oakum.db").exists()
