"""`python -m oakum_worker`: training alone in one process, without a service or a scheduler, and its profiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from oakum_worker.advice.command import advise_command
from oakum_worker.errors import DivergedError, SpecError, WorkerError
from oakum_worker.profiling import layout_command, rnn_command  # noqa: F401  their commands are profiles
from oakum_worker.profiling.command import profile_app
from oakum_worker.randomness.batch_dims import BatchDims
from oakum_worker.rehearsal import rehearse_and_warn
from oakum_worker.spec import TrainerSpec, explain, read_spec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import load_task
from oakum_worker.trying.command import try_command

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)
app.add_typer(profile_app, name="profile")
app.command("try")(try_command)
app.command("advise")(advise_command)


@app.callback()
def oakum_worker() -> None:
    """Train a task without Oakum's service."""


@app.command()
def run(
    entrypoint: Annotated[str | None, typer.Argument(help="package.module:function")] = None,
    spec: Annotated[Path | None, typer.Option(help="Trainer spec; the other options override it.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1)] = None,
    global_batch: Annotated[int | None, typer.Option(min=1)] = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    workdir: Annotated[Path | None, typer.Option(help="Folder put first on the import path.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Train alone in this process, and print the final loss and metrics.

    The exit status says how it ended: 0 finished, 1 the task's code raised an error, 2 the spec or the task cannot
    be used, 3 training diverged.
    """
    overrides = {
        "entrypoint": entrypoint,
        "epochs": epochs,
        "global_batch": global_batch,
        "seed": seed,
        "workdir": None if workdir is None else str(workdir.resolve()),
    }
    errors = Console(stderr=True, soft_wrap=True)
    try:
        trainer_spec = _spec_from(spec, {name: value for name, value in overrides.items() if value is not None})
        result = _train(trainer_spec, errors)
    except WorkerError as error:
        diverged = isinstance(error, DivergedError)
        text = f"diverged: {error}" if diverged else str(error)
        errors.print(text, style="red", markup=False, highlight=False)
        raise typer.Exit(3 if diverged else 2) from error
    typer.echo(json.dumps(result) if as_json else _as_text(result))


def _spec_from(path: Path | None, overrides: dict[str, Any]) -> TrainerSpec:
    fields = (
        read_spec(path).model_dump(exclude_unset=True) if path else {"name": "alone", "workdir": str(Path.cwd())}
    )
    if path is None:
        fields |= {"epochs": 1, "global_batch": 64}
    try:
        return TrainerSpec.model_validate(fields | overrides)
    except ValidationError as error:
        raise SpecError("\n".join(explain(error))) from error


def _train(spec: TrainerSpec, console: Console) -> dict[str, Any]:
    torch.set_num_threads(spec.threads_per_rank)
    task, batch_dims = load_task(spec), BatchDims()
    rehearse_and_warn(task, spec, batch_dims=batch_dims)
    loop = TrainingLoop(task, spec, batch_dims=batch_dims)
    evaluations = loop.evaluations
    metrics: dict[str, float] = {}
    loss = float("nan")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(spec.name, total=loop.progress.total_steps)
        while not loop.finished:
            loss = loop.step().loss
            if evaluations.is_due:
                metrics = evaluations.run()
                evaluations.record(metrics)
            progress.update(bar, completed=loop.step_count, description=_describe(spec.name, loss, metrics))
    loop.conclude()
    best = {} if evaluations.best is None else {"best": evaluations.best.model_dump()}
    early = {"ended_early": evaluations.ended_early} if evaluations.ended_early else {}
    return {
        "steps": loop.step_count,
        "epochs": loop.progress.epoch,
        "samples": loop.progress.samples,
        "loss": loss,
        "metrics": metrics,
        **best,
        **early,
    }


def _describe(name: str, loss: float, metrics: dict[str, float]) -> str:
    return "  ".join([name, f"loss {loss:.4f}", *(f"{key} {value:.4f}" for key, value in metrics.items())])


def _as_text(result: dict[str, Any]) -> str:
    lines = [
        f"{result['steps']} steps, {result['epochs']} epochs, {result['samples']} samples",
        f"loss {result['loss']:.6g}",
    ]
    lines += [f"{name} {value:.6g}" for name, value in result["metrics"].items()]
    if (best := result.get("best")) is not None:
        lines.append(f"best {best['metric']} {best['value']:.6g}, after step {best['step']}")
    if early := result.get("ended_early"):
        lines.append(f"ended early: {early}")
    return "\n".join(lines)


if __name__ == "__main__":
    app()
