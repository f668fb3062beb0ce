"""`oakum forecast`: how long nodes are expected to stay idle, and what a log tells of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from oakum_client.cli.app import CommandError, app, example
from oakum_client.cli.connection import connect
from oakum_client.cli.option_groups import with_option_groups
from oakum_client.cli.output import JsonFlag, console, print_json
from oakum_client.cli.replay import PLANNING
from oakum_client.cli.replay_options import LogOptions
from oakum_client.cli.replay_outputs import solver_errors_as_refusals
from oakum_client.cli.replay_progress import ReplayProgress
from oakum_client.cli.units import clock
from oakum_solver.wording import counted, duration

if TYPE_CHECKING:
    from oakum_service.api.schemas.forecast import ForecastView
    from oakum_solver.logs.holes import HoleLog

forecast_app = typer.Typer(
    no_args_is_help=True, help="How long nodes are expected to stay idle, by which plans choose their look-ahead."
)
app.add_typer(forecast_app, name="forecast", rich_help_panel=PLANNING)


@forecast_app.command("show", epilog=example("oakum forecast show", "oakum forecast show --json"))
def show(as_json: JsonFlag = False) -> None:
    """Say how long nodes are expected to stay idle, and what that is learnt from."""
    with connect() as client:
        view = client.forecast()
    _print(view, as_json=as_json)


@forecast_app.command(
    "learn",
    epilog=example(
        "oakum forecast learn slurm --since 30d",
        "oakum forecast learn idle.csv",
        "oakum forecast learn jobs.swf.gz --nodes 512",
    ),
)
@with_option_groups
def learn(log: LogOptions) -> None:
    """Tell the service by a log of this cluster how long nodes stay idle here, before it has seen that itself.

    What is told counts less the more the service has seen, and no more after 500 idle times.
    """
    from oakum_service.api.schemas.forecast import LEAST, MOST, ForecastRequest

    if log.is_own:
        raise CommandError("`own` is what the service has seen, which counts already: give a log of another time")
    with solver_errors_as_refusals(), ReplayProgress.display() as progress:
        holes = log.read(progress.show_reading)
        lengths_s = _spread_lengths_s(holes, MOST)
    if len(lengths_s) < LEAST:
        raise CommandError(
            f"{log.log} has {counted(len(lengths_s), 'idle time')} that ended within it: "
            f"expected {LEAST} or more; give a longer log"
        )
    with connect() as client:
        names = {node.name for node in client.nodes().nodes}
        view = client.tell_forecast(ForecastRequest(source=str(log.log)[-200:], lengths_s=lengths_s))
    if log.names_nodes and names and not names & {*holes.nodes}:
        typer.echo(
            f"note: none of the {counted(len(holes.nodes), 'node')} of {log.log} is in this cluster, as "
            f"{holes.nodes[0]}: if it is the log of another one, `oakum forecast withdraw`",
            err=True,
        )
    _print(view, as_json=False)


@forecast_app.command("withdraw", epilog=example("oakum forecast withdraw"))
def withdraw(as_json: JsonFlag = False) -> None:
    """Let only what the service has seen itself count."""
    with connect() as client:
        view = client.withdraw_forecast()
    _print(view, as_json=as_json)


def _spread_lengths_s(log: HoleLog, most: int) -> list[float]:
    """Lengths in seconds of at most so many holes of the log, spread evenly over those that ended within it."""
    import numpy as np

    lengths_s = np.sort((log.end_s - log.start_s)[log.end_s < log.duration_s])
    number = min(most, len(lengths_s))
    spread = (np.arange(number) + 0.5) * len(lengths_s) / max(1, number)
    return [float(seconds) for seconds in lengths_s[spread.astype(int)]]


def _print(view: ForecastView, *, as_json: bool) -> None:
    if as_json:
        print_json(view)
        return
    if view.new_hole_s is None or view.old_hole_s is None:
        console().print("Too few idle times have ended yet to tell how long nodes stay idle.")
    else:
        new, old = duration(view.new_hole_s), duration(view.old_hole_s)
        console().print(
            f"A node that becomes idle is expected to stay so for {new}, after an hour for another {old}."
        )
    told = "none told"
    if view.source is not None and view.at is not None:
        told = f"{view.told:,} of {view.source}, told by {view.by} at {clock(view.at)}"
    console().print(f"Learnt from {counted(view.seen, 'idle time')} that the service has seen end, and {told}.")
