"""`oakum check`: whether a Slurm cluster is ready for Oakum."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from oakum_client.cli.admin import SERVICE
from oakum_client.cli.app import CommandError, app, example
from oakum_client.cli.output import console, table

if TYPE_CHECKING:
    from oakum_service.schedulers.slurm.preflight.finding import PreflightFinding

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


@app.command(
    rich_help_panel=SERVICE,
    epilog=example("OAKUM_SLURM_PARTITION=fill oakum check", "oakum check --no-job --json"),
)
def check(
    job: Annotated[bool, typer.Option("--job/--no-job", help="Run a tiny job on a node of the partition.")] = True,
    wait: Annotated[int, typer.Option(min=1, help="Seconds that this job may wait for a node.")] = 30,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check whether the Slurm cluster is ready for Oakum, and print the line to change for each problem.

    Run it as the service's account, with its OAKUM_* variables. It changes nothing. Exit code 1 means that there
    are errors.
    """
    from oakum_service.config import Settings
    from oakum_service.errors import ServiceError
    from oakum_service.schedulers.slurm.preflight.checks import check_cluster, has_errors

    try:
        findings = check_cluster(Settings(), job=job, wait_s=wait)
    except ServiceError as error:
        raise CommandError(str(error)) from error
    if json_output:
        typer.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        _print_findings(findings)
    raise typer.Exit(int(has_errors(findings)))


def _print_findings(findings: list[PreflightFinding]) -> None:
    from rich.text import Text

    listing = table("LEVEL", "SUBJECT", "FOUND", "CHANGE")
    for finding in findings:
        level = Text(finding.level, style=_STYLES[finding.level])
        listing.add_row(level, finding.subject, finding.found, finding.change)
    console().print(listing)
    counts = Counter(finding.level for finding in findings)
    totals = [f"{counts[level]} {level}{'s' * (counts[level] != 1)}" for level in counts if level != "ok"]
    typer.echo(", ".join(totals) or "nothing to change")
