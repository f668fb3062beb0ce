"""The Typer app on which every command module registers, and the exit codes of commands.

Exit codes: 0 done, 1 refused or failed (the reason is on stderr), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

app = typer.Typer(
    name="oakum",
    help=(
        "Fill a cluster's idle node-time with elastic PyTorch training.\n\n"
        "The service is found through OAKUM_URL and OAKUM_TOKEN, or through the file that `oakum serve` "
        "writes into OAKUM_DATA_DIR (./.oakum)."
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

TRAINERS = "Trainers"
CLUSTER = "Cluster"
"""Title of a panel of the help page, as is `TRAINERS`."""


class CommandError(Exception):
    """An expected failure of a command. The user sees its message only."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        _commands()(args=None if arguments is None else list(arguments), prog_name="oakum")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except CommandError as error:
        typer.echo(f"oakum: {error}", err=True)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


@functools.cache
def _commands() -> Callable[..., Any]:
    """All registered commands, built once: a process that runs several command lines would else spend a tenth of a
    second on each."""
    return get_command(app)


def example(*lines: str) -> str:
    """Text for the end of a command's help page that shows how to use the command."""
    return "[dim]Example:[/dim]\n" + "\n".join(f"  [bold]$ {line}[/bold]" for line in lines)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"oakum {version('oakum')}")
        raise typer.Exit


@app.callback()
def _oakum(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
