"""Measures what a change of membership costs: Oakum through its real service, compared with torchrun and torchft.

    python bench/rescale.py                                   # everything but torchft
    python bench/rescale.py --torchft /tmp/torchft/bin/python --rounds 5 --json rescale.json
    python bench/rescale.py --only steady                     # steps/s against DistributedDataParallel alone

Every contestant trains the same model in processes of this machine; processes are added, removed and killed in
turn. Each process logs its finished steps. The gap of a membership is the time from the last step of the
membership before to its own first step. `--torchft` names a Python interpreter that has torch and torchft.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from oakum_client.cli import output
from peers.contestants import Contestant, Oakum, Torchft, Torchrun
from peers.disturbances import Cost, cost_of, disturbances, settle
from peers.steady import Agreement, Steady, compare_steps, price_agreement

_COMPUTE_S = 0.03
_OUR_MODELS = ("small", "frozen", "dense")
_PEERS_MODEL = "frozen"
_STEADY = (("small", 0.008, 40), ("dense", 0.03, 6))
"""(model, seconds slept as computation in a step, steps of a block)."""


class Part(StrEnum):
    """Parts of the benchmark."""

    OURS = "ours"
    PEERS = "peers"
    STEADY = "steady"


@dataclass
class Figures:
    """Everything measured so far."""

    rescaling: list[Cost] = field(default_factory=list)
    steady: list[Steady] = field(default_factory=list)
    agreement: list[Agreement] = field(default_factory=list)

    def write(self, file: Path | None) -> None:
        """Write the figures so far as JSON, so that a later failure does not lose them."""
        if file is not None:
            file.write_text(json.dumps(dataclasses.asdict(self), indent=1), encoding="utf-8")


@dataclass(frozen=True)
class Entry:
    """A contestant with its model."""

    model: str
    rounds: int
    build: Callable[[Path], Contestant]


def _ours(nodes: int, model: str, folder: Path) -> Contestant:
    return Oakum(folder, nodes, model, _COMPUTE_S)


def entries(parts: set[Part], nodes: int, rounds: int, torchft: Path | None) -> Iterator[Entry]:
    """Oakum with each model, the other contestants with one."""
    for model in _OUR_MODELS if Part.OURS in parts else ():
        yield Entry(model, rounds, partial(_ours, nodes, model))
    if Part.PEERS not in parts:
        return
    workload = (nodes, _PEERS_MODEL, _COMPUTE_S)
    yield Entry(_PEERS_MODEL, rounds, lambda folder: Torchrun(folder, *workload, quick=True))
    # With torch's defaults a round takes five minutes.
    yield Entry(_PEERS_MODEL, -(-rounds // 3), lambda folder: Torchrun(folder, *workload, quick=False))
    if torchft is not None:
        yield Entry(_PEERS_MODEL, rounds, lambda folder: Torchft(folder, *workload, python=str(torchft)))


def run(entry: Entry, nodes: int, progress: Progress) -> list[Cost]:
    """Disturb one contestant for some rounds; a contestant that does not train again is reported and abandoned."""
    model, rounds = entry.model, entry.rounds
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory(prefix="rescale-") as folder:
        contestant = entry.build(Path(folder))
        task = progress.add_task(
            f"{contestant.name}, {model}", total=rounds * len(list(disturbances(contestant, nodes)))
        )
        try:
            contestant.start()
            settle(contestant, nodes)
            for disturbance in [one for _ in range(rounds) for one in disturbances(contestant, nodes)]:
                progress.update(task, description=f"{contestant.name}, {model}: {disturbance.event}")
                costs += cost_of(disturbance, contestant, model, nodes)
                progress.advance(task)
        except TimeoutError as error:
            progress.console.print(f"{contestant.name} did not come back: {error}", style="red")
            for log in sorted(Path(folder).glob("*.log")):
                print(
                    f"--- {log.name}",
                    *log.read_text(errors="replace").splitlines()[-15:],
                    sep="\n",
                    file=sys.stderr,
                )
        finally:
            contestant.end()
    return costs


def measure_steps(figures: Figures, rounds: int, progress: Progress) -> None:
    """Measure undisturbed steps of Oakum and of plain DistributedDataParallel."""
    task = progress.add_task("steady state", total=2 * (len(_STEADY) + 1))
    for ranks in (2, 4):
        for model, compute_s, steps in _STEADY:
            figures.steady.append(compare_steps(model, compute_s, ranks, rounds, steps))
            progress.advance(task)
        figures.agreement.append(price_agreement(ranks, 300))
        progress.advance(task)


def rescale_table(costs: list[Cost]) -> Table:
    """One row for each contestant, model and event."""
    table = Table(title="Rescaling")
    for column in ("contestant", "model", "event", "n", "gap, s: median", "max", "less a step", "reported"):
        table.add_column(column)
    for column in ("kill to next step", "steps lost"):
        table.add_column(column)
    for (contestant, model, event), group in _grouped(costs):
        gaps = [cost.gap_s for cost in group]
        reported = [cost.reported_s for cost in group if cost.reported_s is not None]
        after = [cost.after_s for cost in group if cost.after_s is not None and event.startswith("kill")]
        table.add_row(
            contestant,
            model,
            event,
            str(len(group)),
            f"{statistics.median(gaps):.2f}",
            f"{max(gaps):.2f}",
            f"{statistics.median(cost.gap_s - cost.step_s for cost in group):.2f}",
            f"{statistics.median(reported):.2f}" if reported else "",
            f"{statistics.median(after):.2f}" if after else "",
            str(max(cost.steps_lost for cost in group)),
        )
    return table


def _grouped(costs: list[Cost]) -> list[tuple[tuple[str, str, str], list[Cost]]]:
    groups: dict[tuple[str, str, str], list[Cost]] = {}
    for cost in costs:
        groups.setdefault((cost.contestant, cost.model, cost.event), []).append(cost)
    return list(groups.items())


def steady_table(steady: list[Steady]) -> Table:
    """One row for each model and number of ranks."""
    table = Table("model", "ranks", "ours, ms", "plain DDP, ms", "ratio", "quartiles", title="Steady state")
    for one in steady:
        low, middle, high = statistics.quantiles(one.ratios, n=4)
        table.add_row(
            one.model,
            str(one.ranks),
            f"{1e3 * one.ours_s:.1f}",
            f"{1e3 * one.theirs_s:.1f}",
            f"{middle:.3f}",
            f"{low:.3f} ... {high:.3f}",
        )
    return table


def agreement_table(agreements: list[Agreement]) -> Table:
    """What the switch agreement costs in each step."""
    table = Table("ranks", "write and read, us", "longer bucket, us", "a collective of its own, us")
    table.title = "Agreeing on a switch"
    for one in agreements:
        table.add_row(
            str(one.ranks),
            f"{1e6 * one.tail_s:.0f}",
            f"{1e6 * one.longer_s:.0f}",
            f"{1e6 * one.own_collective_s:.0f}",
        )
    return table


def main(
    nodes: Annotated[int, typer.Option(min=3, max=8, help="Ranks, one for each virtual node.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="How often each disturbance is repeated.")] = 3,
    only: Annotated[list[Part] | None, typer.Option(help="Run these parts alone; may be repeated.")] = None,
    torchft: Annotated[Path | None, typer.Option(help="A Python interpreter that has torch and torchft.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Measure what changes of membership cost, and steady steps, and print tables.

    Example: python bench/rescale.py --nodes 4 --rounds 3 --json rescale.json
    """
    parts = set(only or Part)
    figures = Figures()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for entry in entries(parts, nodes, rounds, torchft):
            figures.rescaling += run(entry, nodes, progress)
            figures.write(json_file)
        if Part.STEADY in parts:
            measure_steps(figures, 10 * rounds, progress)
            figures.write(json_file)
    console = output.console()
    if figures.rescaling:
        console.print(rescale_table(figures.rescaling))
    if figures.steady:
        console.print(steady_table(figures.steady), agreement_table(figures.agreement))


if __name__ == "__main__":
    typer.run(main)
