"""`oakum profile rnn`: times recurrent layers' loops on this machine. Needs torch, but no service."""

from __future__ import annotations

import typer

from oakum_client.cli.app import CommandError, example
from oakum_client.cli.profile import need_torch, profile_app
from oakum_worker.profiling.options import (
    CellOption,
    ChipOption,
    HiddenOption,
    InputOption,
    JsonOption,
    KeepOption,
    RnnBatchOption,
    SecondsOption,
    StepsOption,
    ThreadsOption,
    TypeOption,
)


@profile_app.command(
    "rnn",
    epilog=example(
        "oakum profile rnn --hidden 1024 --steps 25",
        "oakum profile rnn --cell gru --hidden 512 --threads 1 --no-keep --json",
        "oakum profile rnn --hidden 1024 --chip 256x16",
    ),
)
def rnn(
    hidden: HiddenOption,
    steps: StepsOption = 25,
    cell: CellOption = "lstm",
    input: InputOption = None,
    batch: RnnBatchOption = 1,
    threads: ThreadsOption = None,
    dtype: TypeOption = "float32",
    seconds: SecondsOption = 10.0,
    keep: KeepOption = True,
    chip: ChipOption = None,
    json_output: JsonOption = False,
) -> None:
    """Time every way of running an LSTM's or a GRU's loops on this machine, beside what a model predicts.

    The layers are those of `oakum_worker.recurrent.layers`. Where nothing was timed they run with the model's
    choice. Run it on a node of the kind that the trainer is for.
    """
    need_torch("rnn")
    from oakum_worker.errors import WorkerError
    from oakum_worker.profiling.rnn_command import rnn_report, spatial_report
    from oakum_worker.recurrent.design_space import Shape

    try:
        if chip is not None:
            text = spatial_report(hidden, cell, chip, as_json=json_output)
        else:
            shape = Shape(cell, hidden, input or hidden, steps, batch, 8 if dtype == "float64" else 4)
            text = rnn_report(shape, threads, seconds, keep=keep, as_json=json_output)
    except WorkerError as error:
        raise CommandError(str(error)) from error
    typer.echo(text)
