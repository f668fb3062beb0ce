"""Prints the result of `oakum submit --dry-run`: the plan with a trainer that is not submitted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from oakum_client.cli.trying import TryResult
from oakum_client.cli.units import duration, rate
from oakum_solver.wording import counted

if TYPE_CHECKING:
    from oakum_client.rest.client import OakumClient
    from oakum_service.api.schemas.submissions import DryRunView
    from oakum_worker.spec import TrainerSpec


def show_plans(client: OakumClient, tried: list[tuple[TrainerSpec, TryResult]], *, as_json: bool) -> None:
    """For each of the tried specs, ask the service what its trainer would get if only that one were submitted, and
    print the answers."""
    views = [client.dry_run(spec, trial.total_samples) for spec, trial in tried]
    if as_json:
        typer.echo(json.dumps({"plans": [view.model_dump(mode="json") for view in views]}, indent=2))
        return
    for view, (_, trial) in zip(views, tried, strict=True):
        typer.echo("\n".join(_plan_lines(view, trial.total_samples)))
    typer.echo("Nothing was submitted.")


def _plan_lines(view: DryRunView, total_samples: int | None) -> list[str]:
    size = f"{len(view.nodes)} of {counted(view.num_idle, 'idle node')}"
    if not view.nodes:
        lines = [f"{view.name} would have to wait: {view.reason}"]
    else:
        lines = [f"{view.name} would get {size} ({', '.join(view.nodes)}): {view.reason}"]
    if view.slots_reason:
        lines.append(f"  {view.slots_reason}")
    if view.held:
        lines.append("  The cluster is held: nothing starts before `oakum resume`.")
    if view.start_in_s is not None:
        lines.append(
            f"  It would train in about {duration(view.start_in_s)}. {_end_sentence(view, total_samples)}"
        )
    if view.hole_ends_in_s is not None:
        lines.append(f"  The first of these nodes is wanted in {duration(view.hole_ends_in_s)}.")
    for other in view.changed:
        verb = "shrink" if other.nodes_then < other.nodes_now else "grow"
        lines.append(f"  {other.name} would {verb} from {other.nodes_now} to {counted(other.nodes_then, 'node')}.")
    return lines


def _end_sentence(view: DryRunView, total_samples: int | None) -> str:
    if view.samples_per_s is None:
        return "Its speed is unknown: the spec has no curve for these nodes. It is measured once the trainer runs."
    if total_samples is None or view.finish_in_s is None:
        return f"At {rate(view.samples_per_s)} samples/s; only the try can tell how many samples there are."
    return (
        f"{counted(total_samples, 'sample')} at {rate(view.samples_per_s)} samples/s: it would end in about "
        f"{duration(view.finish_in_s)}, if these holes stay."
    )
