"""Settings: from the environment, with the variable's name where one cannot be so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_service.config import LocalClusterSettings, Settings
from oakum_service.db.engine import open_engine
from oakum_service.errors import ConfigurationError
from oakum_solver.guard import StarvationGuard
from oakum_solver.objectives import NamedObjective
from oakum_solver.problem import Terms


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("OAKUM_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OAKUM_PORT": "0",
        "OAKUM_OBJECTIVE": "speedup",
        "OAKUM_LOOK_AHEAD_S": "12.5",
        "OAKUM_LOCAL_NODES": "9",
        "OAKUM_LOCAL_LOAD": "0.7",
    }.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert (settings.port, settings.objective, settings.look_ahead_s) == (0, NamedObjective.SPEEDUP, 12.5)
    assert (settings.local.nodes, settings.local.load) == (9, 0.7)


def test_what_is_given_counts_more_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAKUM_PORT", "1")
    monkeypatch.setenv("OAKUM_LOCAL_NODES", "1")
    settings = Settings(port=2, local=LocalClusterSettings(nodes=3))
    assert (settings.port, settings.local.nodes) == (2, 3)


def test_how_nodes_are_shared_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OAKUM_OBJECTIVE": "weight * samples / rate_one / (1 + attained / rate_one / 3600)",
        "OAKUM_USER_CAP": "16",
        "OAKUM_STARVATION_GUARD_S": "7200",
        "OAKUM_STARVATION_QUANTUM_S": "300",
        "OAKUM_MILP_SOLVER": "highs",
        "OAKUM_GROUPS": "true",
    }.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert str(settings.objective) == "weight * samples / rate_one / (1 + attained / rate_one / 3600)"
    assert (settings.user_cap, settings.milp_solver) == (16, "highs")
    assert settings.starvation_guard == StarvationGuard(wait_s=7200.0, quantum_s=300.0)
    assert settings.planning_rules.terms == Terms(completion=False)


def test_by_default_users_are_not_capped_and_nobody_waits_for_ever() -> None:
    settings = Settings()
    assert (settings.user_cap, settings.milp_solver, settings.groups) == (None, "cbc", False)
    assert settings.starvation_guard == StarvationGuard(wait_s=3600.0, quantum_s=600.0)
    assert settings.planning_rules.terms == Terms(departures=False, completion=False)


def test_the_starvation_guard_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAKUM_STARVATION_GUARD_S", "inf")
    assert Settings().starvation_guard == StarvationGuard()


def test_a_solver_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oakum_service.config.settings.find_spec", lambda name: None)
    assert Settings().milp_solver == "cbc"
    with pytest.raises(ConfigurationError, match="OAKUM_MILP_SOLVER is 'highs': highspy is not installed"):
        Settings(milp_solver="highs")


def test_everything_lives_in_the_data_directory(tmp_path: Path) -> None:
    settings = Settings(data_dir=Path("data"))
    assert settings.database == f"sqlite:///{tmp_path / 'data' / 'oakum.db'}"
    folder = tmp_path / "data"
    assert (settings.fragments_dir, settings.checkpoints_dir) == (folder / "fragments", folder / "checkpoints")
    assert (settings.client_file, settings.service_file) == (folder / "client.json", folder / "service.json")


def test_an_empty_database_url_is_none() -> None:
    assert Settings(database_url="").database.startswith("sqlite:///")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("OAKUM_PORT", "eighty", "Input should be a valid integer"),
        ("OAKUM_PORT", "65536", "Input should be less than or equal to 65535"),
        ("OAKUM_POLL_S", "0", "Input should be greater than 0"),
        (
            "OAKUM_OBJECTIVE",
            "fun",
            "objective 'fun': expected throughput, speedup, weighted, fair-share, deadline",
        ),
        ("OAKUM_OBJECTIVE", "samples / waited_s", "tried on made-up trainers: objective 'samples / waited_s' is "),
        ("OAKUM_MILP_SOLVER", "glpk", "Input should be 'cbc' or 'highs'"),
        ("OAKUM_USER_CAP", "0", "Input should be greater than or equal to 1"),
        ("OAKUM_STARVATION_GUARD_S", "nan", "Input should be greater than 0"),
        ("OAKUM_STARVATION_QUANTUM_S", "inf", "Input should be a finite number"),
        ("OAKUM_GROUPS", "often", "Input should be a valid boolean"),
        ("OAKUM_LOCAL_NODES", "0", "Input should be greater than or equal to 1"),
        ("OAKUM_LOCAL_LOAD", "1", "Input should be less than 1"),
    ],
)
def test_a_setting_that_cannot_be_so_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as caught:
        Settings()
    assert str(caught.value).startswith(f"{name} is '{value}': {why}")


@pytest.mark.parametrize("command", [["serve"], ["token", "list"], ["db", "upgrade"]])
def test_a_command_tells_it_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    load_commands()
    monkeypatch.setenv("OAKUM_PORT", "eighty")
    assert run(command) == 1
    assert capsys.readouterr().err.startswith("oakum: OAKUM_PORT is 'eighty': ")


def test_an_objective_that_is_none_is_told_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    load_commands()
    assert run(["serve", "--objective", "weight * sample"]) == 1
    assert capsys.readouterr().err.startswith("oakum: OAKUM_OBJECTIVE is 'weight * sample': ")
    assert not Path(".oakum").exists()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://root:geheim@host/db", "expected sqlite:/// or postgresql://"),
        ("not a url", "expected sqlite:////path"),
    ],
)
def test_another_database_is_refused_without_its_password(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        open_engine(url)
    assert "geheim" not in str(caught.value)
