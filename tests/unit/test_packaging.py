"""The files by which others install and run Oakum stay true to the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from oakum_service.config import Settings
from oakum_worker.spec import read_spec

ROOT = Path(__file__).resolve().parents[2]


def _compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return document


def _commands() -> set[str]:
    from typer.main import get_command

    from oakum_service.cli import load_commands
    from oakum_service.cli.app import app

    load_commands()
    return set(get_command(app).commands)  # type: ignore[attr-defined]


def test_every_service_of_the_compose_file_runs_a_command_that_exists() -> None:
    commands = {service["command"][0] for service in _compose()["services"].values() if "command" in service}
    assert commands == {"serve", "db"}
    assert commands <= _commands()


def test_every_variable_of_the_compose_file_is_a_setting() -> None:
    known = {f"OAKUM_{name.upper()}" for name in Settings.model_fields}
    for service in ("migrate", "service"):
        assert set(_compose()["services"][service]["environment"]) <= known


def test_the_compose_file_waits_for_a_healthy_migrated_database() -> None:
    services = _compose()["services"]
    assert services["migrate"]["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert services["service"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}


def test_every_folder_that_the_image_needs_is_copied_and_exists() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert {"solver", "worker", "service", "migrations", "pyproject.toml", "constraints.txt"} <= sources
    assert all((ROOT / source).exists() for source in sources)


def test_the_example_specs_are_accepted() -> None:
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        assert read_spec(path).name == path.stem


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(d for group in project["optional-dependencies"].values() for d in group)]
    names = {re.split(r"[\[><=]", requirement)[0].lower() for requirement in wanted} - {"oakum"}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().split("==") for line in lines if "==" in line)
    assert names <= set(pins)
    assert pins["torch"] == "2.13.0"


def test_every_dependency_is_justified() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(d for group in project["optional-dependencies"].values() for d in group)]
    names = {re.split(r"[\[><=]", requirement)[0].lower() for requirement in wanted} - {"oakum"}
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").lower()
    assert not [name for name in names if f"`{name}`" not in text]
