"""`oakum quota`: what users may have, and what they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oakum_client.cli.admin import SERVICE
from oakum_client.cli.app import CommandError, app, example
from oakum_client.cli.connection import connect
from oakum_client.cli.output import JsonFlag, console, print_json, table
from oakum_worker.errors import fault_of

if TYPE_CHECKING:
    from oakum_service.api.schemas.quotas import QuotaView

quota_app = typer.Typer(no_args_is_help=True, help="What users may have: trainers, nodes, node-hours, storage.")
app.add_typer(quota_app, name="quota", rich_help_panel=SERVICE)

User = Annotated[str, typer.Argument(help="Name of the user's tokens.", show_default=False)]


@quota_app.command("list", epilog=example("oakum quota list"))
def list_quotas(as_json: JsonFlag = False) -> None:
    """List what users have of what they may have; for others than administrators, their own."""
    with connect() as client:
        quotas = client.quotas()
    if as_json:
        print_json(quotas)
    else:
        _print_quotas(quotas.quotas)


@quota_app.command("show", epilog=example("oakum quota show alice"))
def show(user: User, as_json: JsonFlag = False) -> None:
    """Show one user's quota and what is used of it, checkpoints included."""
    with connect() as client:
        quota = client.quota(user)
    if as_json:
        print_json(quota)
    else:
        _print_quotas([quota])


@quota_app.command(
    "set", epilog=example("oakum quota set alice --nodes 64 --node-hours 5000", "oakum quota set bob --weight 4")
)
def set_quota(
    user: User,
    trainers: Annotated[int | None, typer.Option(min=0, help="Live trainers.")] = None,
    nodes: Annotated[int | None, typer.Option(min=0, help="Nodes of all trainers together.")] = None,
    node_hours: Annotated[float | None, typer.Option(min=0, help="Node-hours from Monday to Sunday.")] = None,
    storage_gib: Annotated[float | None, typer.Option(min=0, help="GiB of checkpoints.")] = None,
    weight: Annotated[float | None, typer.Option(help="Largest weight of a trainer.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Give a user limits, in place of all that were set for this user before."""
    from pydantic import ValidationError

    from oakum_service.api.schemas.quotas import QuotaLimits

    options = {
        "trainers": trainers,
        "nodes": nodes,
        "node_hours": node_hours,
        "storage_gib": storage_gib,
        "weight": weight,
    }
    if all(value is None for value in options.values()):
        raise CommandError(f"no limit is given: say which, such as --nodes 64, or `oakum quota clear {user}`")
    try:
        limits = QuotaLimits.model_validate(options)
    except ValidationError as error:
        fault = error.errors()[0]
        option = str(fault["loc"][0]).replace("_", "-")
        raise CommandError(f"--{option} {fault['input']}: {fault_of(fault)}") from error
    with connect() as client:
        quota = client.set_quota(user, limits)
    if as_json:
        print_json(quota)
    else:
        _print_quotas([quota])


@quota_app.command("clear", epilog=example("oakum quota clear alice"))
def clear(user: User) -> None:
    """Take back the limits set for a user, so that those of the service's settings apply."""
    with connect() as client:
        client.clear_quota(user)
    typer.echo(f"{user} has the usual quota")


def _print_quotas(quotas: list[QuotaView]) -> None:
    listing = table("USER", "LIMITS", "TRAINERS", "NODES", "NODE-HOURS", "STORAGE (GiB)", "WEIGHT")
    for view in quotas:
        listing.add_row(
            view.user,
            "own" if view.own else "usual",
            _use_of_limit(view.used.trainers, view.limits.trainers),
            _use_of_limit(view.used.nodes, view.limits.nodes),
            _use_of_limit(view.used.node_hours, view.limits.node_hours),
            _use_of_limit(view.used.storage_gib, view.limits.storage_gib),
            "any" if view.limits.weight is None else f"{view.limits.weight:g}",
        )
    console().print(listing)


def _use_of_limit(used: float | None, limit: float | None) -> str:
    text = "?" if used is None else f"{used:.4g}"
    return text if limit is None else f"{text} of {limit:g}"
