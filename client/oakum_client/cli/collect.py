"""`oakum collect`: reads Slurm's state here and posts it to a service that may not read it itself."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from oakum_client.cli.admin import SERVICE
from oakum_client.cli.app import CommandError, app, example
from oakum_client.cli.units import parse_duration
from oakum_solver.wording import counted

_DOCUMENT_LINES = (
    "oakum token create collector --role hook > /etc/oakum/collector.token   # at the service",
    "oakum collect --to http://head:8470 --token-file /etc/oakum/collector.token",
)


@app.command(rich_help_panel=SERVICE, epilog=example(*_DOCUMENT_LINES))
def collect(
    url: Annotated[str, typer.Option("--to", metavar="URL", help="The service's address.")],
    token_file: Annotated[
        Path, typer.Option(metavar="FILE", help="File with a token of the role 'hook', read for each post.")
    ],
    every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Shortest time between two readings: 10s, 1m. [OAKUM_SLURM_POLL_FLOOR_S]"
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Authorities to trust, as PEM. [OAKUM_CA_FILE]", envvar="OAKUM_CA_FILE"),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Post one state and end.")] = False,
) -> None:
    """Read Slurm's state and post it to the service, until interrupted.

    For sites where the service's account may not see every job: run this under an account that may. It does
    nothing else. The same OAKUM_SLURM_* variables as for the service say how to read the state; the service itself
    runs with OAKUM_SLURM_STATE=push.
    """
    import logging

    from oakum_service.config import SlurmSettings
    from oakum_service.errors import SchedulerError, ServiceError
    from oakum_service.schedulers.slurm.collector import Collector, PostError, StatePoster
    from oakum_service.schedulers.slurm.reading.sources import open_source

    if not url.startswith(("http://", "https://")):
        raise CommandError(f"--to is {url!r}, expected an address such as http://head:8470")
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    signal.signal(signal.SIGTERM, _end_command)
    try:
        settings = SlurmSettings()
        changes: dict[str, object] = {"state": "cli"} if settings.state == "push" else {}
        if every is not None:
            changes["poll_floor_s"] = _parse_period(every)
        settings = settings.model_copy(update=changes)
        poster = StatePoster(url, token_file, ca_file=ca_file)
        collector = Collector(open_source(settings), poster.post, settings)
        if once:
            state = collector.once()
            posted = f"{counted(len(state.nodes), 'node')} and {counted(len(state.jobs), 'job')}"
            typer.echo(f"Posted {posted} of Slurm {state.version}.")
            return
        typer.echo(f"Posting Slurm's state to {url}, every {settings.poll_floor_s:g} s at most. Ctrl-C ends it.")
        collector.run()
    except (SchedulerError, ServiceError, PostError) as error:
        raise CommandError(str(error)) from error


def _parse_period(text: str) -> float:
    seconds = parse_duration(text)
    if seconds < 1:
        raise CommandError(f"--every is {text!r}, expected 1s or more")
    return seconds


def _end_command(_signal: int, _frame: FrameType | None) -> None:
    """Signal handler that ends the command as Ctrl-C does; a Slurm command that is running ends, too."""
    raise SystemExit(0)
