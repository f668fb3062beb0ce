"""`oakum replay`: what the holes of a log would have trained. Needs no service, unless that is asked for its rules
or its history."""

from __future__ import annotations

from dataclasses import replace

import typer

from oakum_client.cli.app import app, example
from oakum_client.cli.option_groups import with_option_groups
from oakum_client.cli.replay_options import (
    LogOptions,
    OutputOptions,
    PlannerOptions,
    TrainerOptions,
    replay_settings,
)
from oakum_client.cli.replay_outputs import ReplayOutputs, solver_errors_as_refusals
from oakum_client.cli.replay_own import own_document, read_own
from oakum_client.cli.replay_progress import ReplayProgress
from oakum_client.cli.site_rules import SERVICE

PLANNING = "Planning"


@app.command(
    rich_help_panel=PLANNING,
    epilog=example(
        "oakum replay theta.swf.gz --workload paper --trainers 40 --report theta.html",
        "oakum replay idle.csv --workload trainers.json --cost in-place --json",
        "oakum replay slurm --since 30d --as service --look-ahead 300",
        "oakum replay own --since 7d",
    ),
)
@with_option_groups
def replay(log: LogOptions, trainers: TrainerOptions, planner: PlannerOptions, output: OutputOptions) -> None:
    """Replay a machine's log: how much would trainers have trained in its idle node-time?

    `oakum replay own` replays what the running service has seen, with its trainers, rules and costs, and sets
    what it has really achieved beside it.
    """
    inputs = {} if log.is_slurm or log.is_own else {"the log": log.log}
    if trainers.workload_file is not None:
        inputs["the workload"] = trainers.workload_file
    # All options are checked before the log is read, which takes a while: a mistake costs nothing.
    outputs = ReplayOutputs.from_options(output, inputs)
    if log.is_own:
        planner = _as_the_service(log, trainers, planner)
    with solver_errors_as_refusals(), ReplayProgress.display() as progress:
        from oakum_solver.replay.engine import replay as replay_log
        from oakum_solver.replay.engine import replay_both
        from oakum_solver.replay.whole_nodes import achieved_on_whole_nodes

        settings = replay_settings(trainers, planner)
        own = read_own(log.since_s) if log.is_own else None
        workload = trainers.read_workload() if own is None else own.workload
        holes = log.read(progress.show_reading) if own is None else own.log
        run = replay_both if trainers.learn_curves else replay_log
        whole_achieved = (
            achieved_on_whole_nodes(holes, workload, settings, progress.show_replaying)
            if trainers.whole_nodes
            else None
        )
        result = run(holes, workload, settings, progress.show_replaying)
    result = replace(result, whole_achieved=whole_achieved)
    outputs.write(result, None if own is None else own_document(own, result, settings.objective))


def _as_the_service(log: LogOptions, trainers: TrainerOptions, planner: PlannerOptions) -> PlannerOptions:
    """The planner's options for the service's own history, which has its own trainers and times."""
    if trainers.names_trainers or log.cuts_time:
        raise typer.BadParameter(
            "`own` has trainers and times of its own: leave out --workload, --from and the like"
        )
    return planner if planner.as_site is not None else replace(planner, as_site=SERVICE)
