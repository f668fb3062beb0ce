"""A service under load: agents that report, users who read and write, pages and streams, while a trainer trains.

    python bench/service.py                                        # 200 users, 1,000 agents, SQLite, 4 minutes
    python bench/service.py --postgres --minutes 15 --json load.json
    python bench/service.py --users 0 --agents 1000 --minutes 1    # agents alone

The service runs in a process of its own, with its control loop and an embedded cluster on which a trainer really
trains; its cluster also has a node without processes for each agent. The load generator is another process. Its
agents report, wait for directives and obey them as real ones do. First one user does everything while the service
is idle: the last column of the table is how much longer the median answer takes under load. Ends with status 1
where an answer was an error, a turn of the control loop was older than 5 s, or memory grew.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from oakum_client.cli import output
from oakum_service.network.connections import allow_most_open_files
from serving.load import Amounts, Outcome, put_under_load

_OLDEST_TURN_S = 5.0
_GROWTH = 1.1
"""How much more memory the service may have at the end than after half of the run."""


def main(
    users: Annotated[int, typer.Option(min=0, help="Users at the command line.")] = 200,
    agents: Annotated[int, typer.Option(min=0, help="Agents, and nodes for them.")] = 1000,
    pages: Annotated[int, typer.Option(min=0, help="Dashboards that are open and visible.")] = 20,
    streams: Annotated[int, typer.Option(min=0, max=250, help="Event streams, those of the pages included.")] = 60,
    think_s: Annotated[float, typer.Option(min=0.1, help="Seconds between two things that a user does.")] = 10.0,
    writes: Annotated[float, typer.Option(min=0, max=1, help="Share of these that change something.")] = 0.2,
    minutes: Annotated[float, typer.Option(min=0.1, help="How long, after all agents train.")] = 4.0,
    postgres: Annotated[bool, typer.Option("--postgres", help="On a PostgreSQL server of its own.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything here, too.")] = None,
) -> None:
    """Put a service under load and tell how long its answers take.

    Example: python bench/service.py --users 100 --agents 400 --minutes 2 --json load.json
    """
    allow_most_open_files()
    amounts = Amounts(users, agents, pages, max(streams, pages), think_s, writes, 60.0 * minutes)
    console = output.console()

    def tell(line: str) -> None:
        console.print(line, markup=False, highlight=False)

    with _database(postgres) as (url, server_pid):
        try:
            outcome = uvloop.run(
                put_under_load(amounts, url, server_pid, lambda told: console.print(told, markup=False))
            )
        except (KeyboardInterrupt, asyncio.CancelledError):
            console.print("Interrupted: the service and its processes are gone.")
            sys.exit(130)
        except (RuntimeError, TimeoutError) as error:
            tell(f"the run has failed: {error}")
            sys.exit(1)
    console.print(_table(outcome))
    for line in _told(outcome):
        console.print(line, markup=False, highlight=False)
    if json_file is not None:
        json_file.write_text(json.dumps(dataclasses.asdict(outcome), indent=1), encoding="utf-8")
    sys.exit(1 if _problems(outcome) else 0)


@contextlib.contextmanager
def _database(postgres: bool) -> Iterator[tuple[str, int | None]]:
    """The URL of an empty database, and the process of its server; an empty URL for SQLite."""
    if not postgres:
        yield "", None
        return
    from postgres_server import running_postgres

    with running_postgres() as server:
        yield server.new_database(), min(process.pid for process in server.processes())


def _table(outcome: Outcome) -> Table:
    table = Table("answers of", "n", "per s", "p50, ms", "p99, ms", "longest, ms", "p50 / idle")
    idle = {figures.route: figures.p50_ms for figures in outcome.idle}
    for row in outcome.routes:
        alone = idle.get(row.route)
        ratio = f"{row.p50_ms / alone:.1f}" if alone else ""
        cells = (row.answers, row.per_s, f"{row.p50_ms:.0f}", f"{row.p99_ms:.0f}", f"{row.longest_ms:.0f}", ratio)
        table.add_row(row.route, *map(str, cells))
    return table


def _told(outcome: Outcome) -> Iterator[str]:
    yield f"{outcome.events} events over the streams; {outcome.agents_training} agents in a generation at the end"
    yield "cores kept busy: " + ", ".join(f"{role} {cores:g}" for role, cores in outcome.cores.items())
    yield f"the service's memory by the minute, MiB: {outcome.memory_by_minute}"
    yield f"oldest turn of the control loop by the minute, s: {outcome.turn_age_by_minute}"
    yield f"load of the machine: {outcome.load}"
    yield from (f"PROBLEM: {problem}" for problem in _problems(outcome))


def _problems(outcome: Outcome) -> list[str]:
    problems = [f"{count} x {what}" for what, count in outcome.errors.items()]
    oldest_s = max(outcome.turn_age_by_minute, default=0.0)
    if oldest_s > _OLDEST_TURN_S:
        problems.append(
            f"a turn of the control loop was {oldest_s:.1f} s old, expected {_OLDEST_TURN_S:g} s at most"
        )
    half, end = outcome.memory_at_half_mib, outcome.memory_at_end_mib
    if end > _GROWTH * half:
        problems.append(f"the service's memory grew from {half:.0f} to {end:.0f} MiB in the second half")
    return problems


if __name__ == "__main__":
    typer.run(main)
