"""The configuration file, beneath the environment and options; and `oakum config`, which tells what comes from
where."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cells import each
from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_service import config_file
from oakum_service.config import GROUPS, LocalClusterSettings, Settings, setting_names
from oakum_service.errors import ConfigurationError
from oakum_solver.objectives import NamedObjective

load_commands()
EXAMPLE = Path(__file__).resolve().parents[3] / "deploy" / "oakum.toml"
GOOD = """
port = 9000
objective = "throughput"
user_cap = 16

[local]
nodes = 6

[slurm]
options = {gres = "gpu:4"}
type_features = ["a100"]

[notices]
everybody = [{email = "ops@example.org", on = ["failed"]}]
mail_from = "oakum@example.org"

[quota]
node_hours = 12.5
"""


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("OAKUM_") and not name.startswith("OAKUM_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(config_file, "DEFAULT", tmp_path / "etc" / "oakum.toml")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OAKUM_CONFIG", str(tmp_path / "site.toml"))
    return tmp_path / "site.toml"


def test_settings_of_all_groups_come_from_the_file(file: Path) -> None:
    file.write_text(GOOD)
    settings = Settings()
    assert (settings.port, settings.objective, settings.user_cap) == (9000, NamedObjective.THROUGHPUT, 16)
    assert settings.local.nodes == 6
    assert (settings.slurm.options, settings.slurm.type_features) == ({"gres": "gpu:4"}, ["a100"])
    assert settings.notices.everybody[0].email == "ops@example.org"
    assert settings.quota.node_hours == 12.5


def test_the_environment_counts_more_than_the_file_and_options_more_than_both(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(GOOD)
    monkeypatch.setenv("OAKUM_PORT", "1")
    monkeypatch.setenv("OAKUM_LOCAL_NODES", "2")
    assert (Settings().port, Settings().local.nodes, Settings().user_cap) == (1, 2, 16)
    given = Settings(port=5, local=LocalClusterSettings(nodes=3))
    assert (given.port, given.local.nodes) == (5, 3)


def test_the_usual_file_is_read_and_an_empty_variable_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Settings().port == 8470
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "oakum.toml").write_text("port = 7000")
    assert Settings().port == 7000
    monkeypatch.setenv("OAKUM_CONFIG", "")
    assert Settings().port == 8470


@each(
    ("text", "told"),
    [
        ("potr = 3", "site.toml: potr is no setting: did you mean port?"),
        ("[local]\nnode = 3", "site.toml: [local] node is no setting: did you mean nodes?"),
        ("[lokal]\nnodes = 3", "[lokal] is no group of settings, expected [local], [slurm], [notices], [quota]"),
        ("port = 'many'", "site.toml: port is 'many': Input should be a valid integer"),
        ("[local]\nload = 7", "site.toml: local.load is 7: Input should be less than 1"),
        ("local = 3", "site.toml: local is no setting"),
        ("port = ", "site.toml is no TOML: Invalid value"),
        ("objective = 'fastest'", "site.toml: objective is 'fastest'"),
    ],
)
def test_what_is_wrong_with_the_file_is_told(
    file: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert run(["config", "check"]) == 1
    assert told in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_told(file: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"site.toml cannot be read: No such file .*set OAKUM_CONFIG to"):
        Settings()


def test_a_variable_that_is_wrong_is_named_and_not_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("port = 3")
    monkeypatch.setenv("OAKUM_PORT", "few")
    with pytest.raises(ConfigurationError, match=r"^OAKUM_PORT is 'few'"):
        Settings()


def shown(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert run(["config", "show", "--json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_setting_is_shown_with_its_value_and_origin(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(GOOD)
    monkeypatch.setenv("OAKUM_DATABASE_URL", "postgresql://oakum:hidden@db/oakum")
    monkeypatch.setenv("OAKUM_LOKAL_NODES", "3")
    found = shown(capsys)
    rows = {row["name"]: row for row in found["settings"]}
    assert len(rows) == sum(len(setting_names(group)) for group in GROUPS)
    assert rows["port"] == {"name": "port", "variable": "OAKUM_PORT", "value": 9000, "origin": str(file)}
    assert (rows["objective"]["value"], rows["local.load"]["origin"]) == ("throughput", "default")
    assert rows["database_url"]["value"] == "postgresql://oakum:***@db/oakum"
    assert rows["database_url"]["origin"] == "OAKUM_DATABASE_URL"
    assert "hidden" not in json.dumps(found)
    assert found["unknown"] == ["OAKUM_LOKAL_NODES is no setting of Oakum's: did you mean OAKUM_LOCAL_NODES?"]
    only_set = {row["name"] for row in shown(capsys, "--set")["settings"]}
    assert only_set == {
        *("port", "objective", "user_cap", "database_url", "local.nodes", "slurm.options", "slurm.type_features"),
        *("notices.everybody", "notices.mail_from", "quota.node_hours"),
    }


def test_the_table_shows_the_same(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD)
    assert run(["config", "show", "--set"]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert ["port", "9000"] in lines
    assert ["objective", "throughput"] in lines


def test_a_misspelt_variable_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["config", "check"]) == 0
    assert capsys.readouterr().out.startswith("there is no configuration file; 0 of ")
    monkeypatch.setenv("OAKUM_USERCAP", "3")
    assert run(["config", "check"]) == 1
    assert "OAKUM_USERCAP is no setting of Oakum's: did you mean OAKUM_USER_CAP?" in capsys.readouterr().err


def test_another_file_is_checked_before_it_is_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OAKUM_CONFIG", "")  # restored afterwards
    new = tmp_path / "new.toml"
    new.write_text("port = 1\nuser_cap = 0\n")
    assert run(["config", "check", "--config", str(new)]) == 1
    assert f"{new}: user_cap is 0: Input should be greater than or equal to 1" in capsys.readouterr().err
    new.write_text("port = 1\n")
    assert run(["config", "check", "--config", "new.toml"]) == 0
    num_settings = sum(len(setting_names(group)) for group in GROUPS)
    assert capsys.readouterr().out == f"{new} can be used; 1 of {num_settings} settings are set\n"


def test_the_example_can_be_used_and_names_every_group(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    file.write_text(text)
    assert run(["config", "check"]) == 0, capsys.readouterr().err
    # Also with every line that is a comment of a setting taken in.
    lines = [line.removeprefix("# ") if " = " in line else line for line in text.splitlines()]
    file.write_text("\n".join(lines))
    assert run(["config", "check"]) == 0, capsys.readouterr().err
    for table in ("[local]", "[slurm]", "[notices]", "[quota]"):
        assert table in text
