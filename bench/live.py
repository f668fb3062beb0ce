"""Takes the whole service through hours of a log in virtual time, and sets what it achieves beside the replay.

    python bench/live.py theta.swf.gz --trainers 10 --trainers 40            # hooks tell what happens
    python bench/live.py idle.csv --hours 6 --poll-s 10 --json live.json      # the scheduler is only looked at

The service is the real one: controller, planner, executor and database. The scheduler beside it is simulated, and
so are agents, which take as long to start up and to switch as the replay's cost model says. Nothing waits: time
skips to the next moment at which something happens. Beside the twin's utility (what it has achieved over the bound
at which rescaling is free) stand that of the replay with the same trainers, rules and costs, and what the idle
node-time went into in both. What the service promises is checked all the time; exits with status 1 where a promise
was broken.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from oakum_client.cli import output
from oakum_client.cli.app import CommandError
from oakum_client.cli.output_file import OutputFile
from oakum_client.cli.replay_options import LogOptions
from oakum_solver.errors import SolverError
from oakum_solver.logs.holes import HoleLog
from oakum_solver.replay.engine import replay
from oakum_solver.replay.workload import Workload, paper_workload, read_workload
from twin.comparison import Comparison
from twin.scheduler import Manners
from twin.site import TwinSettings, run_twin
from twin.training import Pace

_EXAMPLE = "Example: python bench/live.py theta.swf.gz --hours 24 --trainers 10 --trainers 40 --json live.json"
_LINES = 10
"""How often progress is told for one run where standard error is no terminal."""
Tell = Callable[[str, float], None]


@contextmanager
def progress() -> Iterator[Tell]:
    """Context that yields what is told how far the work has got: what it is, and the share done. Ctrl-C ends the
    command with status 130 and a sentence on how far it got."""
    newest = ("reading the log", 0.0)
    with _shown() as show:

        def tell(what: str, share: float) -> None:
            nonlocal newest
            newest = (what, share)
            show(what, share)

        try:
            yield tell
        except KeyboardInterrupt:
            print(f"live.py: interrupted, {newest[0]} at {newest[1]:.0%}; no file is written", file=sys.stderr)
            raise typer.Exit(130) from None


@contextmanager
def _shown() -> Iterator[Tell]:
    if not sys.stderr.isatty():
        told: dict[str, int] = {}

        def print_line(what: str, share: float) -> None:
            if told.get(what) != (tenth := int(_LINES * share)):
                told[what] = tenth
                print(f"{what}: {share:.0%}", file=sys.stderr, flush=True)

        yield print_line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading the log", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


def compare(log: HoleLog, workload: Workload, settings: TwinSettings, tell: Tell) -> Comparison:
    """Run the replay and the twin, one after the other."""
    number = len(workload.items)
    what = f"{log.name}, {number} trainers"
    replayed = replay(log, workload, settings.of_replay(), lambda share, *_: tell(f"{what}: replay", share))
    twin = run_twin(log, workload, settings, lambda share: tell(f"{what}: twin", share))
    return Comparison(log.name, number, twin, replayed)


def print_comparison(one: Comparison) -> None:
    """One table: utilities, then causes."""
    screen, twin = output.console(), one.twin
    screen.print(
        f"{one.log}: {one.replay.hours:.4g} h of {one.replay.nodes:,} nodes, {one.replay.events:,} events, "
        f"{one.replay.idle_node_hours:,.0f} idle node-hours, {one.trainers} trainers; {twin.wall_s:.0f} s"
    )
    listing = output.table("", "TWIN", "REPLAY", right=("TWIN", "REPLAY"))
    listing.add_row("Utility (of the bound)", f"{one.utility:.4f}", f"{one.replayed_utility:.4f}")
    for use, (mine, its) in one.causes.items():
        listing.add_row(f"  {use.value}", f"{mine:.2%}", f"{its:.2%}")
    screen.print(listing)
    screen.print(
        f"The twin reaches {one.of_replay:.4f} of the replay. It made {twin.plans:,} plans and {twin.fragments:,} "
        f"fragments; of {twin.foreground_jobs:,} foreground jobs {twin.kept_waiting:,} waited for it, "
        f"{twin.longest_wait_s:.1f} s at most."
    )
    for sentence in twin.broken:
        screen.print(f"BROKEN: {sentence}")
    screen.print()


def main(
    log: Annotated[Path, typer.Argument(help="Jobs (.swf) or an idle log (.csv: node,start_s,end_s), also .gz.")],
    hours: Annotated[float, typer.Option(min=0, help="Hours of the log.")] = 24.0,
    from_hours: Annotated[float, typer.Option("--from", min=0, help="Hours to skip at its beginning.")] = 0.0,
    trainers: Annotated[list[int], typer.Option(min=1, help="Numbers of trainers, one run each.")] = [10],  # noqa: B006
    workload: Annotated[Path | None, typer.Option(help="Trainers from a JSON file of `oakum replay`.")] = None,
    hooks: Annotated[
        bool, typer.Option("--hooks", help="The scheduler's hooks tell what happens; so by default.")
    ] = False,
    poll_s: Annotated[float | None, typer.Option(min=0.1, help="No hooks: look every so many seconds.")] = None,
    startup: Annotated[float, typer.Option(min=0, help="Seconds that a node takes to start up.")] = 20.0,
    stall: Annotated[float, typer.Option(min=0, help="Seconds for which a rescale stops a trainer.")] = 1.0,
    spread: Annotated[
        float, typer.Option(min=0, max=3, help="Standard deviation of the logarithms of both.")
    ] = 0.0,
    pending: Annotated[float, typer.Option(min=0, help="Seconds from a submission to the job's begin.")] = 0.3,
    completing: Annotated[float, typer.Option(min=0, help="Seconds until a job's node is free.")] = 0.3,
    time_limit: Annotated[
        float, typer.Option(min=60, help="Longest time limit of a fragment's job, in seconds.")
    ] = Manners.time_limit_s,
    refused: Annotated[float, typer.Option(min=0, max=1, help="Share of submissions that are refused.")] = 0.0,
    deaths: Annotated[float, typer.Option(min=0, help="Agents that die, for each day of a node.")] = 0.0,
    turn_s: Annotated[float, typer.Option(min=1, help="Seconds between two turns without news.")] = 300.0,
    seed: Annotated[int, typer.Option(help="Of all that is drawn at random.")] = 1,
    nodes: Annotated[int | None, typer.Option(min=1, help="Nodes, where the SWF header does not say.")] = None,
    procs_per_node: Annotated[int | None, typer.Option(min=1, help="Processors of a node, likewise.")] = None,
    placement: Annotated[
        Literal["first", "fifo"], typer.Option(help="Jobs take the lowest-numbered or longest-free nodes.")
    ] = "first",
    easy: Annotated[bool, typer.Option("--easy", help="Schedule the jobs anew.")] = False,
    turnover: Annotated[float, typer.Option(min=0, help="Seconds after a job until nodes are usable.")] = 0.0,
    keep_maintenance: Annotated[bool, typer.Option("--keep-maintenance", help="Keep empty stretches.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Compare the twin with the replay."""
    if hooks and poll_s is not None:
        raise typer.BadParameter("--hooks and --poll-s are two ways to see the scheduler: give one of them")
    options = LogOptions(
        log,
        nodes=nodes,
        procs_per_node=procs_per_node,
        placement=placement,
        easy=easy,
        turnover=turnover,
        keep_maintenance=keep_maintenance,
        from_hours=from_hours,
        hours=hours,
    )
    if options.is_own or options.is_slurm:
        raise typer.BadParameter(f"{log}: expected a file in .swf, .swf.gz, .csv or .csv.gz")
    settings = TwinSettings(
        Manners(
            hooks=poll_s is None,
            poll_s=Manners.poll_s if poll_s is None else poll_s,
            pending_s=pending,
            completing_s=completing,
            time_limit_s=time_limit,
            refused=refused,
        ),
        Pace(startup_s=startup, stall_s=stall, spread=spread, deaths_per_node_day=deaths),
        turn_s=turn_s,
        seed=seed,
    )
    compared: list[Comparison] = []
    file = None if json_file is None else OutputFile(json_file, "--json")
    with progress() as tell:
        workloads = [read_workload(workload)] if workload is not None else [paper_workload(n) for n in trainers]
        holes = options.read(lambda share: tell("reading the log", share))
        for each in workloads:
            compared.append(compare(holes, each, settings, tell))
            print_comparison(compared[-1])
    if file is not None:
        file.write([json.dumps([one.as_document() for one in compared], indent=2)])
    if any(one.twin.broken for one in compared):
        raise typer.Exit(1)


def run() -> None:
    """Run the command line; errors that a user can mend are told in a sentence."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=_EXAMPLE)(main)
    try:
        app(standalone_mode=True)
    except (SolverError, CommandError) as error:
        print(f"live.py: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    run()
