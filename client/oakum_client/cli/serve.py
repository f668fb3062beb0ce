"""`oakum serve`: runs the service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from oakum_client.cli.app import CommandError, app, example
from oakum_service.scheduler_table import scheduler_names

SERVICE = "Service"


@app.command(
    rich_help_panel=SERVICE,
    epilog=example(
        "oakum serve",
        "oakum serve --nodes 8 --seed 3 --submit examples/digits-classifier.yaml",
        "OAKUM_SLURM_PARTITION=fill oakum serve --scheduler slurm",
    ),
)
def serve(
    config: Annotated[
        Path | None, typer.Option(help="Configuration file; default /etc/oakum/oakum.toml. [OAKUM_CONFIG]")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Database, checkpoints and logs. [OAKUM_DATA_DIR]")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [OAKUM_HOST]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 for any free one. [OAKUM_PORT]")] = None,
    database_url: Annotated[
        str | None, typer.Option(help="SQLAlchemy URL; default SQLite in the data directory. [OAKUM_DATABASE_URL]")
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="What plans maximise: a name or an expression. [OAKUM_OBJECTIVE]")
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(help=f"{scheduler_names()}; 'local' is the embedded cluster. [OAKUM_SCHEDULER]"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Plan and show everything, launch nothing. [OAKUM_DRY_RUN]")
    ] = False,
    nodes: Annotated[int | None, typer.Option(help="Nodes of the embedded cluster. [OAKUM_LOCAL_NODES]")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of its foreground jobs. [OAKUM_LOCAL_SEED]")] = None,
    load: Annotated[
        float | None, typer.Option(help="Share of node-time its foreground jobs ask for. [OAKUM_LOCAL_LOAD]")
    ] = None,
    swf: Annotated[
        Path | None, typer.Option(help="Take its foreground jobs from this SWF log. [OAKUM_LOCAL_SWF]")
    ] = None,
    submit: Annotated[
        list[Path] | None,
        typer.Option(help="Submit this spec at the start, unless its name has been submitted before."),
    ] = None,
    verbose: Annotated[bool, typer.Option(help="Log every event, not only warnings.")] = False,
) -> None:
    """Run the service until Ctrl-C: control loop, REST API and dashboard in one process."""
    from oakum_client.serve_command import serve_until_stopped
    from oakum_service.config import LocalClusterSettings, Settings
    from oakum_service.config_file import VARIABLE as CONFIG_VARIABLE
    from oakum_service.errors import ServiceError
    from oakum_solver.errors import SolverError
    from oakum_worker.errors import SpecError

    if config is not None:
        os.environ[CONFIG_VARIABLE] = str(config.absolute())
    local: dict[str, Any] = {"nodes": nodes, "seed": seed, "load": load, "swf": swf}
    options: dict[str, Any] = {
        "data_dir": data_dir,
        "host": host,
        "port": port,
        "database_url": database_url,
        "objective": objective,
        "scheduler": scheduler,
        "dry_run": dry_run or None,
    }
    try:
        settings = Settings(
            **{name: value for name, value in options.items() if value is not None},
            local=LocalClusterSettings(**{name: value for name, value in local.items() if value is not None}),
        )
        serve_until_stopped(settings, submit or [], verbose=verbose)
    except (ServiceError, SolverError, SpecError, ValueError) as error:
        raise CommandError(str(error)) from error
