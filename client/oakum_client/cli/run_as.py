"""`oakum run-as`: installs the launcher by which trainers' code runs in their users' Unix accounts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from oakum_client.cli.admin import SERVICE
from oakum_client.cli.app import CommandError, app, example

run_as_app = typer.Typer(no_args_is_help=True, help="Run trainers' code in their users' Unix accounts.")
app.add_typer(run_as_app, name="run-as", rich_help_panel=SERVICE)

_LAUNCHER = Path("/usr/local/libexec/oakum/run-as")
_Launcher = Annotated[Path, typer.Option("--launcher", metavar="FILE", help="Where the launcher is.")]


@run_as_app.command(
    "install", epilog=example("sudo oakum run-as install --service-account oakum --spool /shared/oakum-users")
)
def install(
    service_account: Annotated[str, typer.Option(metavar="NAME", help="The account that the service runs in.")],
    spool: Annotated[
        Path, typer.Option(metavar="DIR", help="Shared folder for the accounts' folders; root's, on all nodes.")
    ],
    python: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Python with oakum_worker that users may execute; default: this one."),
    ] = None,
    least_uid: Annotated[int, typer.Option(min=1, help="Least id of an account that runs code.")] = 1000,
    refuse: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An account that runs no code; may be repeated.")
    ] = None,
    variables: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="Environment variable of all users' code; repeatable."),
    ] = None,
    launcher: _Launcher = _LAUNCHER,
    config: Annotated[Path, typer.Option(metavar="FILE", help="The launcher's configuration.")] = Path(
        "/etc/oakum/run-as.json"
    ),
) -> None:
    """Install the launcher and the rule of sudo that lets the service's account run it, on this machine. The
    service's host and every node need that."""
    from oakum_service.errors import ConfigurationError
    from oakum_service.run_as.installation import LauncherInstallation

    try:
        LauncherInstallation(
            service_account,
            spool,
            python or Path(sys.executable),
            least_uid,
            tuple(refuse or ()),
            dict(_variable(variable) for variable in variables or ()),
            launcher,
            config,
        ).install()
    except ConfigurationError as error:
        raise CommandError(str(error)) from error
    typer.echo(
        f"{service_account} may run {launcher} as root, which runs fragments in their users' accounts.\n"
        "Install it on every node too, then start the service with\n\n"
        f"  OAKUM_SLURM_RUN_AS=submitter OAKUM_SLURM_SPOOL_DIR={spool} OAKUM_SLURM_LAUNCHER={launcher}\n\n"
        f"and look with `oakum run-as check USER` as {service_account}."
    )


@run_as_app.command("check", epilog=example("sudo -u oakum oakum run-as check alice"))
def check(
    account: Annotated[str | None, typer.Argument(metavar="[USER]", help="The user to run code for.")] = None,
    launcher: _Launcher = _LAUNCHER,
) -> None:
    """Tell whether this account may run the launcher here, and whether the launcher runs code for a user."""
    if shutil.which("sudo") is None:
        raise CommandError("there is no sudo on this machine: install it, then `oakum run-as install`")
    command = ["sudo", "-n", "--", str(launcher), "check", *([] if account is None else ["--account", account])]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise CommandError(answer.stderr.strip() or f"{launcher} ended with status {answer.returncode}")
    facts = json.loads(answer.stdout)
    typer.echo("\n".join(f"{name}: {value}" for name, value in facts.items()))


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise CommandError(f"--env {text!r}: expected NAME=VALUE")
    return name, value
