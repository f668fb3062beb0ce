"""`oakum hooks`: the scripts that tell Oakum at once what Slurm has decided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oakum_service.cli.admin import SERVICE
from oakum_service.cli.app import CommandError, app, example

if TYPE_CHECKING:
    from oakum_service.hooks.installation import Installation

hooks_app = typer.Typer(no_args_is_help=True, help="Put Slurm's hooks in place, or take them away.")
app.add_typer(hooks_app, name="hooks", rich_help_panel=SERVICE)

TOKEN_NAME = "slurm-hooks"
_FOLDER = Path("/etc/slurm/oakum")
_SPOOL = Path("/var/spool/oakum")
_SLURM_CONF = Path("/etc/slurm/slurm.conf")

_Folder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the scripts are.")]
_Spool = Annotated[
    Path, typer.Option("--spool", metavar="DIR", help="Keeps what the service did not take; on a local disk.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@hooks_app.command(
    "install", epilog=example("sudo oakum hooks install --dir /etc/slurm/oakum --url http://head:8470")
)
def install(
    folder: _Folder = _FOLDER,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The service's address; default: that of the CLI.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Holds a token of the role hook; default: the one of an earlier installation, else a new one.",
        ),
    ] = None,
    spool: _Spool = _SPOOL,
    slurm_user: Annotated[str, typer.Option(metavar="NAME", help="SlurmUser of slurm.conf.")] = "slurm",
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="ClusterName; default: read from slurm.conf.")
    ] = None,
    json_output: _Json = False,
) -> None:
    """Write the hooks, and print the lines for slurm.conf. Done again, it replaces each file at once."""
    from oakum_service.errors import ServiceError
    from oakum_service.hooks.installation import Installation

    try:
        name = _cluster_name() if cluster is None else cluster
        made = Installation(folder.absolute(), spool.absolute(), cluster=name)
        address = url or _address()
        left = made.install(address, _token(token_file, made.config_file), slurm_user)
    except ServiceError as error:
        raise CommandError(str(error)) from error
    reached = _try(made)
    if json_output:
        document = {
            "dir": str(made.folder),
            "spool": str(made.spool),
            "url": address,
            "cluster": name,
            "slurm_conf": made.slurm_conf(),
            "slurm_conf_of_nodes": made.slurm_conf_of_nodes(),
            "left_to_do": left,
            "reached": reached == "",
            "error": reached,
        }
        typer.echo(json.dumps(document, indent=2))
        return
    typer.echo(_installed(made, left, slurm_user, reached))


def _installed(made: Installation, left: list[str], slurm_user: str, reached: str) -> str:
    lines = [
        f"The hooks are in {made.folder}. For slurm.conf, then `scontrol reconfigure`:",
        "",
        *(f"  {line}" for line in made.slurm_conf()),
        "",
        "Where you have a PrologSlurmctld or EpilogSlurmctld already, let it call ours. PrologEpilogTimeout may",
        "be longer, as your own prologs need. Hooks of the nodes, which Oakum does not need beside those:",
        "",
        *(f"  {line}" for line in made.slurm_conf_of_nodes()),
        "",
        f"{made.config_file} holds the token: for {slurm_user} to read, on nodes for root, and for nobody else.",
        *(f"Not allowed here, so do as root: {line}" for line in left),
        "",
        f"As {slurm_user} on the head node, every minute, send what {made.spool} has kept of a service's absence:",
        "",
        f"  systemctl enable --now {made.folder}/oakum-hooks-replay.{{service,timer}}",
        f"  or a crontab's line:  * * * * * {made.folder / 'replay'}",
        "",
        f"The service does not take events now: {reached}" if reached else "The service takes events.",
    ]
    return "\n".join(lines)


@hooks_app.command("status", epilog=example("oakum hooks status --dir /etc/slurm/oakum"))
def status(folder: _Folder = _FOLDER, spool: _Spool = _SPOOL, json_output: _Json = False) -> None:
    """Say whether the hooks are in place, reach the service, and have kept events. Exit code 1 if not reached."""
    from oakum_service.hooks.installation import Installation

    made = Installation(folder.absolute(), spool.absolute())
    error = _try(made)
    num_kept = made.num_kept()
    if json_output:
        typer.echo(json.dumps({"reached": error == "", "error": error, "kept": num_kept}))
    else:
        typer.echo(f"The service does not take events: {error}" if error else "The service takes events.")
        typer.echo(f"{num_kept} events wait in {made.spool} on this machine.")
    raise typer.Exit(int(error != ""))


@hooks_app.command("uninstall", epilog=example("sudo oakum hooks uninstall --dir /etc/slurm/oakum"))
def uninstall(
    folder: _Folder = _FOLDER,
    spool: _Spool = _SPOOL,
    slurm_conf: Annotated[
        Path, typer.Option(metavar="FILE", help="Must no longer name the hooks: a job without its prolog fails.")
    ] = _SLURM_CONF,
) -> None:
    """Remove what `install` has written, once slurm.conf no longer names it."""
    from oakum_service.hooks.installation import Installation

    made = Installation(folder.absolute(), spool.absolute())
    if naming := [line for line in _lines_of(slurm_conf) if f"={made.folder}/" in line.replace(" ", "")]:
        raise CommandError(
            f"{slurm_conf} still names the hooks; Slurm holds jobs whose prolog is gone. Remove these lines, "
            "`scontrol reconfigure`, and try again:\n  " + "\n  ".join(naming)
        )
    num_kept = made.uninstall()
    typer.echo(f"The hooks are gone from {made.folder}.")
    if num_kept:
        typer.echo(f"{num_kept} events that were never sent are left in {made.spool}.")
    typer.echo(f"`oakum token revoke {TOKEN_NAME}` on the service's machine takes away their token.")


def _address() -> str:
    from oakum_service.client import ClientError, OakumClient

    try:
        with OakumClient() as client:
            return client.address.url
    except ClientError as error:
        raise CommandError(f"{error}\nOr give the address as --url.") from error


def _token(file: Path | None, config_file: Path) -> str:
    """The given token, the one of an earlier installation, or a new one."""
    from oakum_service.hooks.installation import read_token

    if file is not None:
        try:
            return file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"--token-file {file} cannot be read: {error}") from error
    if (known := read_token(config_file)) is not None:
        return known
    from oakum_service.api.auth import Role, create_token
    from oakum_service.cli.admin import open_database
    from oakum_service.db.engine import open_sessions

    try:
        engine = open_database()
    except CommandError as error:
        raise CommandError(
            f"no token can be made here: {error}\nOn the service's machine, `oakum token create {TOKEN_NAME} "
            "--role hook` prints one: write it into a file, and give that as --token-file"
        ) from error
    with open_sessions(engine).begin() as session:
        return create_token(session, TOKEN_NAME, Role.HOOK)


def _cluster_name() -> str:
    """ClusterName of this machine's slurm.conf; empty where there is none."""
    for line in _lines_of(_SLURM_CONF):
        key, _, value = line.partition("=")
        if key.strip().lower() == "clustername":
            return value.strip()
    return ""


def _lines_of(file: Path) -> list[str]:
    """Lines of a slurm.conf without comments; none where it cannot be read."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line for raw in text.splitlines() if (line := raw.partition("#")[0].strip())]


def _try(made: Installation) -> str:
    """Send no event, as a hook would; what went wrong, or nothing."""
    from oakum_service.hooks.reaching import try_to_post

    return try_to_post(made.config_file)
