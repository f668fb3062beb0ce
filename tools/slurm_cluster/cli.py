"""The commands behind `make slurm` and `make slurm-down`."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from slurm_cluster.cluster import Cluster
from slurm_cluster.errors import ClusterError
from slurm_cluster.options import ClusterOptions

app = typer.Typer(
    help="A real Slurm of several virtual nodes on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
FolderOption = Annotated[Path, typer.Option("--folder", help="Holds everything of the cluster.")]
_FOLDER = Path(".slurm")
_ENVIRONMENT = {"partition": {}, "qos": {"OAKUM_SLURM_QOS": "fill"}, "none": {}}


@app.command()
def up(
    folder: FolderOption = _FOLDER,
    nodes: Annotated[int, typer.Option(help="Virtual nodes.")] = ClusterOptions.nodes,
    gpus: Annotated[int, typer.Option(help="GPUs of each node, counted by Slurm alone.")] = ClusterOptions.gpus,
    preemption: Annotated[
        str, typer.Option(help="How foreground jobs take nodes: partition, qos or none.")
    ] = ClusterOptions.preemption,
    grace: Annotated[
        int, typer.Option(help="Seconds from SIGTERM to SIGKILL at a preemption.")
    ] = ClusterOptions.grace_s,
    enforce_limits: Annotated[
        bool, typer.Option(help="Have associations and limits of QOS bind.")
    ] = ClusterOptions.enforce_limits,
    line: Annotated[
        list[str] | None, typer.Option(help="A further line of slurm.conf, such as Prolog=/path; repeatable.")
    ] = None,
) -> None:
    """Bring the cluster up, and print how to use it. Nothing happens where it already runs."""
    if preemption not in _ENVIRONMENT:
        raise ClusterError(f"--preemption is {preemption!r}: choose partition, qos or none")
    began_s = time.monotonic()
    cluster = Cluster(folder)
    options = ClusterOptions(
        nodes=nodes,
        gpus=gpus,
        preemption=preemption,  # type: ignore[arg-type]
        grace_s=grace,
        enforce_limits=enforce_limits,
        lines=tuple(line or ()),
    )
    if cluster.up(options):
        typer.echo(f"Slurm of {nodes} nodes is up after {time.monotonic() - began_s:.1f} s.", err=True)
    else:
        typer.echo(f"The cluster in {cluster.folder.path} already runs, and stays as it is.", err=True)
    _explain(cluster)


@app.command()
def down(folder: FolderOption = _FOLDER) -> None:
    """End every process and job of the cluster, and remove its folder."""
    cluster = Cluster(folder)
    found = cluster.down()
    typer.echo(f"{cluster.folder.path}: {'the cluster is gone' if found else 'there was no cluster'}.", err=True)


@app.command()
def status(folder: FolderOption = _FOLDER) -> None:
    """Show nodes and jobs. Exit code 1 where a daemon does not run."""
    cluster = Cluster(folder)
    cluster.record()
    if not cluster.is_up():
        raise ClusterError(f"daemons of {cluster.folder.path} have ended: `make slurm` starts the cluster anew")
    typer.echo(cluster.command("sinfo"))
    typer.echo(cluster.command("squeue"))


@app.command()
def env(folder: FolderOption = _FOLDER) -> None:
    """Print the variables for a shell: eval "$(... env)"."""
    for name, value in _environment(Cluster(folder)).items():
        typer.echo(f"export {name}={shlex.quote(value)}")


def _environment(cluster: Cluster) -> dict[str, str]:
    preemption = cluster.record().options.preemption
    oakum = {"OAKUM_SCHEDULER": "slurm", "OAKUM_SLURM_PARTITION": "fill", "OAKUM_SLURM_PREEMPTION": preemption}
    return cluster.environment() | oakum | _ENVIRONMENT[preemption]


def _explain(cluster: Cluster) -> None:
    variables = "\n".join(f"  export {name}={shlex.quote(value)}" for name, value in _environment(cluster).items())
    typer.echo(
        f"In the shell that is to use it:\n{variables}\n"
        "Then: sinfo, sbatch, sacct, and `oakum serve --scheduler slurm`.\n"
        f"slurmrestd: {cluster.rest_url} or unix:{cluster.folder.rest_socket}; a JWT: scontrol token\n"
        f"Logs: {cluster.folder.logs}. `make slurm-down` takes everything away."
    )


def main() -> None:
    """Run the command line; an expected failure is one line and exit code 1."""
    try:
        app(prog_name="slurm_cluster")
    except ClusterError as error:
        typer.echo(f"slurm: {error}", err=True)
        sys.exit(1)
