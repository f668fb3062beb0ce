"""`oakum config`: the service's settings, and where each comes from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oakum_client.cli.app import CommandError, app, example
from oakum_client.cli.connection import connect
from oakum_client.cli.output import console, table
from oakum_client.cli.units import clock

if TYPE_CHECKING:
    from oakum_service.config import SettingsGroup

config_app = typer.Typer(no_args_is_help=True, help="Show and check the service's settings.")
app.add_typer(config_app, name="config", rich_help_panel="Service")

_WORDS = {"none": None, "true": True, "false": False}
_NO_SETTINGS = ("OAKUM_CONFIG", "OAKUM_URL", "OAKUM_TOKEN", "OAKUM_FUSED_LOOPS")
_File = Annotated[
    Path | None, typer.Option("--config", help="Configuration file; default /etc/oakum/oakum.toml. [OAKUM_CONFIG]")
]


@config_app.command("show", epilog=example("oakum config show", "oakum config show --set --json"))
def show(
    config: _File = None,
    only_set: Annotated[bool, typer.Option("--set", help="Leave out what has its default.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print every setting of the service as it would start here: its value, and where that comes from.

    Options of `oakum serve` count more than environment variables, and these more than the configuration file.
    """
    _choose_file(config)
    rows = [row for row in _setting_rows() if not (only_set and row["origin"] == "default")]
    unknown = _unknown_variables()
    if as_json:
        typer.echo(json.dumps({"settings": rows, "unknown": unknown}, indent=2))
        return
    listing = table("SETTING", "VALUE", "FROM")
    for row in rows:
        listing.add_row(row["name"], _text_of(row["value"]), row["origin"])
    console().print(listing)
    for line in unknown:
        typer.echo(line, err=True)


@config_app.command("running", epilog=example("oakum config running", "oakum config running --json"))
def running(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the settings of the running service that may be changed while it runs, and who has changed them."""
    with connect() as client:
        settings = client.settings()
    if as_json:
        typer.echo(settings.model_dump_json(indent=2))
        return
    listing = table("SETTING", "VALUE", "AT ITS START", "CHANGED BY", "AT")
    for setting in settings.settings:
        changed = ("-", "-") if setting.by is None or setting.at is None else (setting.by, clock(setting.at))
        listing.add_row(setting.name, _text_of(setting.value), _text_of(setting.at_start), *changed)
    console().print(listing)


@config_app.command("set", epilog=example("oakum config set objective fair-share", "oakum config set user_cap 64"))
def set_(
    name: Annotated[str, typer.Argument(help="The setting, such as objective; see `oakum config running`.")],
    value: Annotated[str, typer.Argument(help="Its value; none, true and false are meant as such.")],
) -> None:
    """Change a setting of the running service, from the next plan on and over its restarts.

    Try an objective first: `oakum what-if --objective fair-share`. Administrators only; the audit log has it.
    """
    with connect() as client:
        setting = client.change_setting(name, _WORDS.get(value.lower(), value))
    typer.echo(
        f"{setting.name} is {_text_of(setting.value)} now; the service was started with "
        f"{_text_of(setting.at_start)}"
    )


@config_app.command("reset", epilog=example("oakum config reset objective"))
def reset(name: Annotated[str, typer.Argument(help="The setting.")]) -> None:
    """Let the value of the running service's start hold again. Administrators only."""
    with connect() as client:
        setting = client.reset_setting(name)
    typer.echo(f"{setting.name} is {_text_of(setting.value)}, as at the service's start")


@config_app.command("objectives", epilog=example("oakum config objectives"))
def objectives(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the objectives known by name, the one in force, and what expressions may use."""
    with connect() as client:
        listed = client.objectives()
    if as_json:
        typer.echo(listed.model_dump_json(indent=2))
        return
    listing = table("OBJECTIVE", "WHAT IT MAXIMISES")
    for objective in listed.objectives:
        listing.add_row(
            f"{objective.name} *" if objective.name == listed.current else objective.name, objective.description
        )
    console().print(listing)
    typer.echo(f"In force: {listed.current}. Expressions may use {', '.join(listed.quantities)}.")


@config_app.command("check", epilog=example("oakum config check", "oakum config check --config new.toml"))
def check(config: _File = None) -> None:
    """Check the configuration file and the environment's variables; changes nothing.

    Ends with exit code 1 if a name is unknown or a value cannot be used.
    """
    from oakum_service.config_file import chosen_file

    _choose_file(config)
    rows = _setting_rows()
    if unknown := _unknown_variables():
        raise CommandError("\n".join(unknown))
    path, num_set = chosen_file(), sum(row["origin"] != "default" for row in rows)
    where = "there is no configuration file" if path is None else f"{path} can be used"
    typer.echo(f"{where}; {num_set} of {len(rows)} settings are set")


def _choose_file(config: Path | None) -> None:
    from oakum_service.config_file import VARIABLE

    if config is not None:
        os.environ[VARIABLE] = str(config.absolute())


def _setting_rows() -> list[dict[str, Any]]:
    """Name, variable, value and origin of every setting. Raises `CommandError` where one cannot be so."""
    from oakum_service.config import GROUPS
    from oakum_service.errors import ConfigurationError

    try:
        return [row for group in GROUPS for row in _rows_of_group(group)]
    except (ConfigurationError, ValueError) as error:
        raise CommandError(str(error)) from error


def _rows_of_group(group: type[SettingsGroup]) -> list[dict[str, Any]]:
    from oakum_service.config import group_of, setting_names, variable_of
    from oakum_service.config_file import chosen_file, read_section

    settings = group()
    # An objective that is a name, or an expression, is neither to pydantic.
    values = settings.model_dump(mode="json", include=set(setting_names(group)), exclude={"objective"})
    if "objective" in group.model_fields:
        values["objective"] = str(getattr(settings, "objective"))  # noqa: B009
    section, rows = read_section(group_of(group)), []
    for name in setting_names(group):
        variable, origin = variable_of(group, name), "default"
        if variable in os.environ:
            origin = variable
        elif name in section:
            origin = str(chosen_file())
        label = ".".join(filter(None, [group_of(group), name]))
        rows.append(
            {"name": label, "variable": variable, "value": _without_password(name, values[name]), "origin": origin}
        )
    return rows


def _without_password(name: str, value: Any) -> Any:
    """The value; of a database's address without the password in it."""
    if name != "database_url" or value is None:
        return value
    from oakum_service.db.url import parse_url
    from oakum_service.errors import ConfigurationError

    try:
        return parse_url(value).render_as_string(hide_password=True)
    except ConfigurationError:
        return "***"


def _unknown_variables() -> list[str]:
    """A line for each variable of the environment that looks like a setting of Oakum's and is none."""
    from oakum_service.config import GROUPS, setting_names, variable_of
    from oakum_service.config_file import nearest

    known = [variable_of(group, name) for group in GROUPS for name in setting_names(group)]
    variables = [name for name in os.environ if name.startswith("OAKUM_") and not name.startswith("OAKUM_TEST_")]
    return [
        f"{name} is no setting of Oakum's{nearest(name, known)}"
        for name in sorted(variables)
        if name not in known and name not in _NO_SETTINGS
    ]


def _text_of(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value)
