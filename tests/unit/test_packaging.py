"""The files by which others install and run Oakum stay true to the code."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import yaml

from oakum_service.config import Settings
from oakum_worker.spec import read_spec

ROOT = Path(__file__).resolve().parents[2]


def _compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return document


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _packages() -> set[Path]:
    """Oakum's own packages, each in a folder of the repository."""
    return {file.parent for file in ROOT.glob("*/oakum*/__init__.py")}


def _commands() -> set[str]:
    from typer.main import get_command

    from oakum_client.cli import load_commands
    from oakum_client.cli.app import app

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


def test_no_password_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    passwords = re.findall(r"\$\{[^}]*PASSWORD[^}]*\}", text)
    assert len(passwords) == 2
    assert all(re.fullmatch(r"\$\{OAKUM_DB_PASSWORD:\?[^}]+\}", password) for password in passwords)
    for service in _compose()["services"].values():
        for name, value in service.get("environment", {}).items():
            if "PASSWORD" in name or "URL" in name:
                assert not re.search(r"://[^$/]*:[^$/@]+@", value), name


def test_images_are_pinned_to_a_release() -> None:
    images = {service["image"] for service in _compose()["services"].values()}
    images.add(re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)[0])
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"oakum:{version}" in images
    for image in images - {f"oakum:{version}"}:
        assert re.fullmatch(r"[a-z]+:\d+\.\d+(\.\d+)?-[a-z-]+", image), image


def test_every_container_is_limited_and_gets_no_new_privileges() -> None:
    for name, service in _compose()["services"].items():
        limits = service["deploy"]["resources"]["limits"]
        assert float(limits["cpus"]) > 0, name
        assert re.fullmatch(r"\d+[mg]", limits["memory"]), name
        assert limits["pids"] > 0, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        if name != "database":  # whose image begins as root and changes to its own account
            assert service["cap_drop"] == ["ALL"], name


def test_only_the_proxy_is_reachable_from_other_machines_and_only_when_asked_for() -> None:
    for name, service in _compose()["services"].items():
        if service.get("profiles") != ["tls"]:
            assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    proxy = _compose()["services"]["proxy"]
    assert proxy["depends_on"] == {"service": {"condition": "service_healthy"}}
    (file,) = (volume.split(":")[0] for volume in proxy["volumes"] if volume.startswith("./"))
    assert "reverse_proxy {$OAKUM_BACKEND:service:8470}" in (ROOT / file).read_text(encoding="utf-8")


def test_the_service_believes_the_compose_file_s_proxy_and_nobody_else() -> None:
    compose = _compose()
    named = json.loads(compose["services"]["service"]["environment"]["OAKUM_PROXIES"])
    assert named == [compose["services"]["proxy"]["networks"]["default"]["ipv4_address"]]
    (network,) = compose["networks"]["default"]["ipam"]["config"]
    proxy = ip_address(named[0])
    assert proxy in ip_network(network["subnet"])
    assert proxy not in ip_network(network["ip_range"])
    assert proxy != next(ip_network(network["subnet"]).hosts()), "the gateway, from which everybody comes"


def test_a_container_is_healthy_when_the_service_is_ready() -> None:
    test = _compose()["services"]["service"]["healthcheck"]["test"]
    assert "/readyz" in test[-1]
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert json.dumps(test[1:]) in dockerfile


def test_every_folder_that_the_image_needs_is_copied_and_exists() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert {package.parent.name for package in _packages()} <= sources
    assert {"migrations", "pyproject.toml", "constraints.txt"} <= sources
    assert all((ROOT / source).exists() for source in sources)


def test_every_package_is_installed_checked_and_measured() -> None:
    tool = _pyproject()["tool"]
    folders = {package.parent.name for package in _packages()}
    build = tool["hatch"]["build"]
    assert {ROOT / package for package in build["targets"]["wheel"]["packages"]} == _packages()
    assert set(build["dev-mode-dirs"]) == folders
    assert set(tool["coverage"]["run"]["source"]) == folders
    assert folders <= set(tool["mypy"]["files"])
    assert folders <= set(tool["mypy"]["mypy_path"])
    assert folders <= set(tool["ruff"]["src"])
    assert set(tool["importlinter"]["root_packages"]) == {package.name for package in _packages()}


def test_the_command_is_where_its_script_looks_for_it() -> None:
    module, function = _pyproject()["project"]["scripts"]["oakum"].split(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert importlib.util.find_spec("oakum.__main__") is not None


def test_the_example_specs_are_accepted() -> None:
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        assert read_spec(path).name == path.stem


def test_every_dependency_is_pinned() -> None:
    project = _pyproject()["project"]
    wanted = [*project["dependencies"], *(d for group in project["optional-dependencies"].values() for d in group)]
    names = {re.split(r"[\[><=]", requirement)[0].lower() for requirement in wanted} - {"oakum"}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().split("==") for line in lines if "==" in line)
    assert names <= set(pins)
    assert pins["torch"] == "2.13.0"


def test_every_dependency_is_justified() -> None:
    project = _pyproject()["project"]
    wanted = [*project["dependencies"], *(d for group in project["optional-dependencies"].values() for d in group)]
    names = {re.split(r"[\[><=]", requirement)[0].lower() for requirement in wanted} - {"oakum"}
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").lower()
    assert not [name for name in names if f"`{name}`" not in text]


def test_before_a_commit_the_commands_of_make_lint_run() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    entries = [hook["entry"] for repository in config["repos"] for hook in repository["hooks"]]
    # --assume-old: an environment that is not made yet would be made first, by commands that are no linters.
    command = ["make", "--dry-run", "--silent", "--assume-old=.venv/.dev", "lint"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines
    assert entries == lines


def test_what_a_package_imports_comes_with_its_extra() -> None:
    """A node has the extra `worker` alone, a laptop that replays a log `solver`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for wing, package, names in (
        ("worker", "oakum_worker", ("worker",)),
        ("solver", "oakum_solver", ("solver", "highs", "report")),
    ):
        listed = [*project["dependencies"], *(each for name in names for each in extras[name])]
        known = {re.split(r"[^\w-]", each)[0] for each in listed} | {"yaml", "pydantic_core", package}
        imported = {(name, path.name) for path in (ROOT / wing / package).rglob("*.py") for name in _imports(path)}
        lacking = {(name, path) for name, path in imported if name not in known | sys.stdlib_module_names}
        assert lacking == set()


def _imports(module: Path) -> Iterator[str]:
    """The first name of each module that is imported, wherever in the file."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
