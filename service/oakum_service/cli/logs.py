"""What a trainer's fragments wrote."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Annotated

import typer

from oakum_service.cli.app import TRAINERS, app, example
from oakum_service.cli.connection import connect
from oakum_service.cli.output import JsonFlag, TrainerRef, print_json

if TYPE_CHECKING:
    from oakum_service.client import OakumClient

_PERIOD_S = 1.0


@app.command(rich_help_panel=TRAINERS, epilog=example("oakum logs digits --tail 50", "oakum logs digits --follow"))
def logs(
    trainer: TrainerRef,
    tail: Annotated[int, typer.Option("--tail", "-n", min=1, max=10_000, help="How many lines.")] = 200,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the trainer ends.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the last lines that a trainer's fragments wrote."""
    with connect() as client:
        text = client.logs(trainer, tail)
        if as_json:
            print_json(text)
            return
        _echo(text.lines)
        if follow:
            _follow(client, trainer, tail, text.lines)


def _follow(client: OakumClient, ref: str, tail: int, seen: list[str]) -> None:
    ended = False
    while not ended:
        time.sleep(_PERIOD_S)
        # Asked before the lines are, so that the last lines of a trainer that ends meanwhile are printed too.
        ended = client.trainer(ref).state.ended
        lines = client.logs(ref, tail).lines
        _echo(new_lines(seen, lines))
        seen = lines


def new_lines(seen: list[str], lines: list[str]) -> list[str]:
    """The lines that were not there in the tail before.

    Tails of several nodes are joined, so each node's lines move on their own; the prefix tells them apart.
    """
    before = _by_node(seen)
    fresh: list[str] = []
    for node, after in _by_node(lines).items():
        fresh += after[_overlap(before.get(node, []), after) :]
    return fresh


def _by_node(lines: list[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        groups[line.split(maxsplit=1)[0] if line.strip() else ""].append(line)
    return groups


def _overlap(before: list[str], after: list[str]) -> int:
    """Length of the longest end of `before` that `after` begins with."""
    for size in range(min(len(before), len(after)), 0, -1):
        if before[-size:] == after[:size]:
            return size
    return 0


def _echo(lines: list[str]) -> None:
    for line in lines:
        typer.echo(line)
