"""`oakum replay`: what the holes of a given log would have trained. Needs no service."""

from __future__ import annotations

from oakum_client.cli.app import app, example
from oakum_client.cli.option_groups import with_option_groups
from oakum_client.cli.reach import Reach
from oakum_client.cli.replay_options import (
    LogOptions,
    OutputOptions,
    PlannerOptions,
    TrainerOptions,
    replay_settings,
)
from oakum_client.cli.replay_outputs import ReplayOutputs, solver_errors_told

PLANNING = "Planning"


@app.command(
    rich_help_panel=PLANNING,
    epilog=example(
        "oakum replay theta.swf.gz --workload paper --trainers 40 --report theta.html",
        "oakum replay idle.csv --workload trainers.json --cost in-place --json",
        "oakum replay slurm --since 30d --cost in-place",
    ),
)
@with_option_groups
def replay(log: LogOptions, trainers: TrainerOptions, planner: PlannerOptions, output: OutputOptions) -> None:
    """Replay a machine's log: how much would trainers have trained in its idle node-time?"""
    inputs = {} if log.is_slurm else {"the log": log.log}
    if trainers.workload_file is not None:
        inputs["the workload"] = trainers.workload_file
    # All options are checked before the log is read, which takes a while: a mistake costs nothing.
    outputs = ReplayOutputs.checked(output, inputs)
    with solver_errors_told(), Reach.shown() as reach:
        from oakum_solver.replay.engine import replay as replay_log

        settings = replay_settings(trainers, planner)
        workload = trainers.read_workload()
        result = replay_log(log.read(reach.reading), workload, settings, reach.replaying)
    outputs.write(result)
