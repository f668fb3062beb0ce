"""`oakum hooks`: installs the scripts by which Slurm reports at once which nodes it gives to jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oakum_client.cli.admin import SERVICE
from oakum_client.cli.app import CommandError, app, example
from oakum_solver.wording import counted
from oakum_worker.errors import reason_of

if TYPE_CHECKING:
    from oakum_service.schedulers.slurm.hooks.installation import HookInstallation

hooks_app = typer.Typer(no_args_is_help=True, help="Install or remove Slurm's hooks.")
app.add_typer(hooks_app, name="hooks", rich_help_panel=SERVICE)

_FOLDER = Path("/etc/slurm/oakum")
_SPOOL = Path("/var/spool/oakum")
_SLURM_CONF = Path("/etc/slurm/slurm.conf")

_Folder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder of the hook scripts.")]
_Spool = Annotated[
    Path,
    typer.Option(
        "--spool", metavar="DIR", help="Folder for events that the service has not accepted; on a local disk."
    ),
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
            help="File with a token of the role hook; default: the one of an earlier installation, else a new "
            "one.",
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Authorities to trust, at the same path on every machine with hooks. [OAKUM_CA_FILE]",
            envvar="OAKUM_CA_FILE",
        ),
    ] = None,
    spool: _Spool = _SPOOL,
    slurm_user: Annotated[str, typer.Option(metavar="NAME", help="SlurmUser of slurm.conf.")] = "slurm",
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="ClusterName; default: read from slurm.conf.")
    ] = None,
    json_output: _Json = False,
) -> None:
    """Write the hooks, and print the lines for slurm.conf. Running it again replaces each file atomically."""
    from oakum_service.errors import ServiceError
    from oakum_service.schedulers.slurm.hooks.installation import HookInstallation

    try:
        name = _cluster_name() if cluster is None else cluster
        installation = HookInstallation(folder.absolute(), spool.absolute(), cluster=name)
        address = url or _service_address()
        root_commands = installation.install(
            address, _hook_token(token_file, installation.config_file), slurm_user, ca_file
        )
    except ServiceError as error:
        raise CommandError(str(error)) from error
    fault = _connection_fault(installation)
    if json_output:
        document = {
            "dir": str(installation.folder),
            "spool": str(installation.spool),
            "url": address,
            "cluster": name,
            "slurm_conf": installation.slurm_conf(),
            "slurm_conf_of_nodes": installation.slurm_conf_of_nodes(),
            "left_to_do": root_commands,
            "reached": fault == "",
            "error": fault,
        }
        typer.echo(json.dumps(document, indent=2))
        return
    typer.echo(_installation_text(installation, root_commands, slurm_user, fault))


def _installation_text(
    installation: HookInstallation, root_commands: list[str], slurm_user: str, fault: str
) -> str:
    from oakum_service.schedulers.slurm.hooks.installation import RESTART

    lines = [
        f"The hooks are in {installation.folder}. For slurm.conf:",
        "",
        *(f"  {line}" for line in installation.slurm_conf()),
        "",
        "Where you have a PrologSlurmctld or EpilogSlurmctld already, let it call ours. PrologEpilogTimeout may",
        "be longer, as your own prologs need. Hooks of the nodes, which Oakum does not need beside those:",
        "",
        *(f"  {line}" for line in installation.slurm_conf_of_nodes()),
        "",
        f"Then {RESTART}.",
        "`oakum hooks status` then runs a tiny job to see whether they are run.",
        "",
        f"{installation.config_file} holds the token: for {slurm_user} to read, on nodes for root, "
        "and for nobody else.",
        *(f"Not allowed here, so do as root: {line}" for line in root_commands),
        "",
        f"As {slurm_user} on the head node, every minute, send what {installation.spool} has kept of a "
        "service's absence:",
        "",
        f"  systemctl enable --now {installation.folder}/oakum-hooks-replay.{{service,timer}}",
        f"  or a crontab's line:  * * * * * {installation.folder / 'replay'}",
        "",
        f"The service does not take events now: {fault}" if fault else "The service takes events.",
    ]
    return "\n".join(lines)


@hooks_app.command("status", epilog=example("oakum hooks status --dir /etc/slurm/oakum"))
def status(
    folder: _Folder = _FOLDER,
    spool: _Spool = _SPOOL,
    job: Annotated[
        bool, typer.Option("--job/--no-job", help="Run a tiny job, to see whether Slurm runs the hooks.")
    ] = True,
    partition: Annotated[
        str | None, typer.Option(help="Partition of that job; default: Slurm's.", show_default=False)
    ] = None,
    wait: Annotated[int, typer.Option(min=1, help="Seconds that the job may wait for a node.")] = 30,
    json_output: _Json = False,
) -> None:
    """Say whether the hooks are installed, reach the service and are run by Slurm, and how many events they have
    kept. Exit code 1 if the service is not reached, or Slurm does not run them."""
    from oakum_service.config import Settings
    from oakum_service.schedulers.slurm.hooks.installation import HookInstallation
    from oakum_service.schedulers.slurm.hooks.trial_job import try_hooks

    installation = HookInstallation(folder.absolute(), spool.absolute())
    fault = _connection_fault(installation)
    trial = try_hooks(installation.config_file, Settings().slurm, partition, wait) if job and not fault else None
    num_kept = installation.num_kept()
    if json_output:
        document: dict[str, object] = {"reached": fault == "", "error": fault, "kept": num_kept}
        if trial is not None:
            document |= {"job": trial.job, "heard": trial.heard, "run_by_slurm": trial.are_run, "told": trial.told}
        typer.echo(json.dumps(document))
    else:
        typer.echo(f"The service does not take events: {fault}" if fault else "The service takes events.")
        if trial is not None:
            typer.echo(f"The hooks: {trial.told}." + (f" To do: {trial.change}." if trial.change else ""))
        typer.echo(f"In {installation.spool} on this machine, {counted(num_kept, 'unsent event')}.")
    raise typer.Exit(int(fault != "" or (trial is not None and trial.are_run is False)))


@hooks_app.command("uninstall", epilog=example("sudo oakum hooks uninstall --dir /etc/slurm/oakum"))
def uninstall(
    folder: _Folder = _FOLDER,
    spool: _Spool = _SPOOL,
    slurm_conf: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="slurm.conf, which must not name the hooks any more: a job whose prolog is missing fails.",
        ),
    ] = _SLURM_CONF,
) -> None:
    """Remove the installed files, once slurm.conf no longer names them."""
    from oakum_service.schedulers.slurm.hooks.installation import RESTART, TOKEN_NAME, HookInstallation

    installation = HookInstallation(folder.absolute(), spool.absolute())
    if lines := [line for line in _lines_of(slurm_conf) if f"={installation.folder}/" in line.replace(" ", "")]:
        raise CommandError(
            f"{slurm_conf} still names the hooks; Slurm holds jobs whose prolog is gone. Remove these lines, then "
            f"{RESTART}, and try again:\n  " + "\n  ".join(lines)
        )
    num_kept = installation.uninstall()
    typer.echo(f"The hooks are gone from {installation.folder}.")
    if num_kept:
        typer.echo(f"In {installation.spool}, {counted(num_kept, 'unsent event')} left.")
    typer.echo(f"`oakum token revoke {TOKEN_NAME}` on the service's machine takes away their token.")


def _service_address() -> str:
    from oakum_client.rest.client import OakumClient
    from oakum_client.rest.errors import ClientError

    try:
        with OakumClient(for_terminal=True) as client:
            return client.address.url
    except ClientError as error:
        raise CommandError(f"{error}\nOr give the address as --url.") from error


def _hook_token(file: Path | None, config_file: Path) -> str:
    """The token for the hooks: the one in `file` if given, else that of an earlier installation in `config_file`,
    else a new one made in the database. Raises `CommandError` where the file cannot be read or no token can be
    made."""
    from oakum_service.schedulers.slurm.hooks.installation import TOKEN_NAME, read_token

    if file is not None:
        try:
            return file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"--token-file {file} cannot be read: {reason_of(error)}") from error
    if (earlier := read_token(config_file)) is not None:
        return earlier
    from oakum_client.cli.admin import open_database
    from oakum_service.db.engine import open_sessions
    from oakum_service.identity import audit, tokens

    try:
        engine = open_database()
    except CommandError as error:
        raise CommandError(
            f"no token can be made here: {error}\nOn the service's machine, `oakum token create {TOKEN_NAME} "
            "--role hook` prints one: write it into a file, and give that as --token-file"
        ) from error
    with open_sessions(engine).begin() as session:
        return tokens.create(session, audit.local_actor(), TOKEN_NAME, "hook")


def _cluster_name() -> str:
    """ClusterName in this machine's slurm.conf; empty if there is none."""
    for line in _lines_of(_SLURM_CONF):
        key, _, value = line.partition("=")
        if key.strip().lower() == "clustername":
            return value.strip()
    return ""


def _lines_of(file: Path) -> list[str]:
    """Lines of a slurm.conf without comments; none if the file cannot be read."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line for raw in text.splitlines() if (line := raw.partition("#")[0].strip())]


def _connection_fault(installation: HookInstallation) -> str:
    """Post an empty list of events to the service, as a hook would. Returns what went wrong; empty if it was
    accepted."""
    from oakum_service.schedulers.slurm.hooks.connection_check import try_to_post

    return try_to_post(installation.config_file)
