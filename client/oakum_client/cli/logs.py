"""`oakum logs`: what a trainer's fragments wrote."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Annotated

import typer

from oakum_client.cli.app import TRAINERS, app, example
from oakum_client.cli.connection import connect
from oakum_client.cli.error_lines import error_lines
from oakum_client.cli.output import JsonFlag, TrainerRef, print_json

if TYPE_CHECKING:
    from oakum_client.rest.client import OakumClient
    from oakum_service.api.schemas.trainers import LogText

_PERIOD_S = 1.0
_MOST_LINES = 10_000


@app.command(
    rich_help_panel=TRAINERS, epilog=example("oakum logs digits --tail 50", "oakum logs digits --errors --follow")
)
def logs(
    trainer: TrainerRef,
    tail: Annotated[int, typer.Option("--tail", "-n", min=1, max=_MOST_LINES, help="Number of lines.")] = 200,
    errors: Annotated[
        bool, typer.Option("--errors", "-e", help="Print tracebacks, errors and warnings only.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the trainer ends.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the last lines that a trainer's fragments wrote; with --errors only tracebacks, errors and
    warnings."""
    with connect() as client:
        text = _read_log(client, trainer, tail, errors=errors)
        if as_json:
            print_json(text)
            return
        _print_lines(text.lines)
        if follow:
            _print_new_lines(client, trainer, tail, text.lines, errors=errors)


def _read_log(client: OakumClient, ref: str, tail: int, *, errors: bool) -> LogText:
    """The last `tail` lines of the trainer's log; with `errors`, the last `tail` that belong to errors or
    warnings."""
    if not errors:
        return client.logs(ref, tail)
    text = client.logs(ref, _MOST_LINES)
    return text.model_copy(update={"lines": error_lines(text.lines)[-tail:]})


def _print_new_lines(client: OakumClient, ref: str, tail: int, seen: list[str], *, errors: bool) -> None:
    ended = False
    while not ended:
        time.sleep(_PERIOD_S)
        # Read the state before the lines, so that the last lines of a trainer that ends meanwhile are printed.
        ended = client.trainer(ref).state.ended
        lines = _read_log(client, ref, tail, errors=errors).lines
        _print_lines(new_lines(seen, lines))
        seen = lines


def new_lines(seen: list[str], lines: list[str]) -> list[str]:
    """The lines in the new tail that were not in the one before.

    A tail joins lines of several nodes, each of which moves on its own; the prefix of a line names its node.
    """
    before = _lines_by_node(seen)
    new: list[str] = []
    for node, after in _lines_by_node(lines).items():
        new += after[_overlap(before.get(node, []), after) :]
    return new


def _lines_by_node(lines: list[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        groups[line.split(maxsplit=1)[0] if line.strip() else ""].append(line)
    return groups


def _overlap(before: list[str], after: list[str]) -> int:
    """Length of the longest end of `before` with which `after` begins."""
    for size in range(min(len(before), len(after)), 0, -1):
        if before[-size:] == after[:size]:
            return size
    return 0


def _print_lines(lines: list[str]) -> None:
    for line in lines:
        typer.echo(line)
