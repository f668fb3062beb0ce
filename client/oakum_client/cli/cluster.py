"""Commands that show the cluster and its plan: plan, nodes, holes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from oakum_client.cli.app import CLUSTER, CommandError, app, example
from oakum_client.cli.columns import Column, ColumnsOption, Listing, SortOption
from oakum_client.cli.connection import connect
from oakum_client.cli.output import JsonFlag, console, print_json, table
from oakum_client.cli.units import age, clock, duration, parse_duration
from oakum_service.states import NodeState

if TYPE_CHECKING:
    from oakum_service.api.schemas.cluster import NodeView
    from oakum_service.api.schemas.plans import PlanView

_USES = {
    "Trained": "trained_node_s",
    "Stalls, repeated steps": "stalled_node_s",
    "Starting up": "start_up_node_s",
    "Found late": "late_node_s",
    "Wanted by nobody": "unwanted_node_s",
}
_NODE_STYLES = {"foreground": "dim", "hole": "green", "unavailable": "yellow"}


@app.command(rich_help_panel=CLUSTER, epilog=example("oakum plan", "oakum plan 42 --json"))
def plan(
    number: Annotated[
        int | None, typer.Argument(metavar="[ID]", help="A plan's number; by default the current one.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a plan: which nodes each trainer gets, and why."""
    with connect() as client:
        view = client.plan(number)
    if as_json:
        print_json(view)
    else:
        _print_plan(view)


def _print_plan(view: PlanView) -> None:
    replaces = "" if view.parent is None else f", replaces plan {view.parent}"
    screen = console()
    screen.print(
        f"Plan {view.id} of {clock(view.made_at)} from snapshot {view.snapshot}{replaces}\n"
        f"Objective {view.objective}. {view.summary}"
    )
    if not view.allocations:
        screen.print("No trainer wants nodes.")
        return
    listing = table("TRAINER", "SIZE", "NODES", "REASON", right=("SIZE",))
    for allocation in view.allocations:
        nodes = ", ".join(allocation.nodes) or "-"
        listing.add_row(allocation.trainer, str(len(allocation.nodes)), nodes, allocation.reason)
    screen.print()
    screen.print(listing)


@app.command(rich_help_panel=CLUSTER, epilog=example("oakum nodes", "oakum nodes --state hole --sort -for"))
def nodes(
    state: Annotated[NodeState | None, typer.Option(help="Nodes in this state only.", show_default=False)] = None,
    columns: ColumnsOption = None,
    sort: SortOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the nodes: what each is used for, and when its hole ends."""
    listing = _node_listing()
    listing.check(columns, sort)
    with connect() as client:
        document = client.nodes()
    matching = [node for node in document.nodes if state in (None, node.state)]
    if as_json:
        print_json(document.model_copy(update={"nodes": matching}))
        return
    screen = console()
    screen.print(listing.table(matching, columns, sort))
    if document.nodes:
        screen.print(f"\nSnapshot {document.snapshot}: the last change was {age(document.taken_at)} ago.")
    else:
        screen.print("\nNo nodes have been seen yet.")


def _node_listing() -> Listing[NodeView]:
    from rich.text import Text

    now = time.time()
    return Listing(
        {
            "node": Column("NODE", lambda node: Text(node.name)),
            "state": Column("STATE", lambda node: Text(node.state, style=_NODE_STYLES.get(node.state, ""))),
            "for": Column(
                "FOR", lambda node: duration(max(0, round(now - node.since))), key=lambda node: now - node.since
            ),
            "used-by": Column("USED BY", _used_by),
            "ends": Column("HOLE ENDS", _hole_end, key=lambda node: node.hole_ends_at),
        },
        usual=("node", "state", "for", "used-by", "ends"),
    )


def _used_by(node: NodeView) -> str:
    if node.trainer:
        return f"{node.trainer} ({node.fragment_phase})" if node.fragment_phase else node.trainer
    if node.avoided_until is not None:
        left_s = max(0, round(node.avoided_until - time.time()))
        return f"avoided for {duration(left_s)}: {node.avoided_because}"
    return f"job {node.foreground_job}" if node.foreground_job else "-"


def _hole_end(node: NodeView) -> str:
    if node.hole_ends_at is None:
        return "-"
    left_s = node.hole_ends_at - time.time()
    return f"in about {duration(round(left_s))}" if left_s > 0 else "any moment"


@app.command(
    rich_help_panel=CLUSTER, epilog=example("oakum holes", "oakum holes --since 6h --json", "oakum holes --used")
)
def holes(
    since: Annotated[str, typer.Option(help="How far back: 90s, 15m, 6h, 2d.")] = "1h",
    used: Annotated[
        bool, typer.Option("--used", help="Say what became of the idle node-time of the last 7 days instead.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the holes: which node was idle, when and for how long."""
    if used:
        _print_used(as_json)
        return
    since_s = parse_duration(since)
    with connect() as client:
        document = client.holes(since_s)
    if as_json:
        print_json(document)
        return
    if not document.holes:
        typer.echo(f"No node was idle in the last {duration(since_s)}.")
        return
    listing = table("NODE", "FROM", "TO", "LASTED", right=("LASTED",))
    now = time.time()
    for hole in document.holes:
        end = "still idle" if hole.end_at is None else clock(hole.end_at)
        lasted_s = (hole.end_at or now) - hole.start_at
        listing.add_row(hole.node, clock(hole.start_at), end, duration(lasted_s))
    console().print(listing)


def _print_used(as_json: bool) -> None:
    """Print where the idle node-time went, by cause."""
    with connect() as client:
        went = client.cluster().idle_time
    if went is None:
        raise CommandError("the service's version does not tell what became of idle node-time: update it")
    if as_json:
        print_json(went)
        return
    if not went.idle_node_s:
        typer.echo(f"No node was idle since {clock(went.since)}.")
        return
    listing = table("IDLE NODE-TIME", "NODE-HOURS", "SHARE", right=("NODE-HOURS", "SHARE"))
    for name, field in _USES.items():
        node_s: float = getattr(went, field)
        listing.add_row(name, f"{node_s / 3600:,.1f}", f"{node_s / went.idle_node_s:.1%}")
    console().print(listing)
    console().print(f"\nSince {clock(went.since)}. `oakum replay own` compares it with what could have been.")
