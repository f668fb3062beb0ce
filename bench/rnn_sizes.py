"""Torch's recurrent layers beside the fused loops alone and beside a layer, which takes the faster for its size.

    python bench/rnn_sizes.py                                  # all sizes, about five minutes
    python bench/rnn_sizes.py --hidden 512 --hidden 1024 --batch 16

Prints torch's time divided by each of the two: medians of processor time in alternating turns of one process, 25
steps, float32, one thread, layers as wide as their inputs. A layer measures a size when it first meets it, which
is not counted.
"""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Annotated, Any
from unittest import mock

import torch
import typer
from rich import box
from rich.table import Table
from torch import nn

from oakum_client.cli import output
from oakum_worker.recurrent import layers
from oakum_worker.recurrent.verdicts import Verdict

_STEPS, _FEWEST_TURNS, _MOST_TURNS = 25, 5, 3000
_LOOPS = Verdict(fused_s=1.0, torch_s=2.0)


def measure(cell: str, hidden: int, batch: int, seconds: float, *, trains: bool) -> str:
    """Torch's time by that of the loops, and by that of a layer, in turns for about `seconds`."""
    torch.manual_seed(0)
    reference = (nn.LSTM if cell == "LSTM" else nn.GRU)(hidden, hidden)
    layer = (layers.LSTM if cell == "LSTM" else layers.GRU)(hidden, hidden)
    layer.load_state_dict(reference.state_dict())
    ways: dict[str, nn.Module] = {"torch": reference, "loops": copy.deepcopy(layer), "layer": layer}
    inputs = torch.randn(_STEPS, batch, hidden)
    taken_s: dict[str, list[float]] = {name: [] for name in ways}
    with torch.set_grad_enabled(trains):
        for way, module in ways.items():
            _run(way, module, inputs)
        until_s = time.monotonic() + seconds
        for turn in range(_MOST_TURNS):
            for way in _rotated(list(ways), turn):
                before_s = time.thread_time()
                _run(way, ways[way], inputs)
                taken_s[way].append(time.thread_time() - before_s)
            if turn >= _FEWEST_TURNS and time.monotonic() > until_s:
                break
    medians = {way: statistics.median(each) for way, each in taken_s.items()}
    return f"{medians['torch'] / medians['loops']:.2f} -> {medians['torch'] / medians['layer']:.2f}"


def _run(way: str, module: nn.Module, inputs: torch.Tensor) -> None:
    by_loops: Any = mock.patch.object(layers, "faster", return_value=_LOOPS) if way == "loops" else nullcontext()
    with by_loops:
        made = module(inputs)[0]
        if torch.is_grad_enabled():
            torch.autograd.grad(made.sum(), list(module.parameters()))


def _rotated(ways: list[str], turn: int) -> Iterator[str]:
    at = turn % len(ways)
    ordered = ways[at:] + ways[:at]
    return iter(ordered if turn % 2 else reversed(ordered))


def main(
    hidden: Annotated[list[int] | None, typer.Option(help="Widths; all by default.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Sequences at once; 1, 16 and 64 by default.")] = None,
    seconds: Annotated[float, typer.Option(help="For each size.")] = 1.0,
) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    batches = batch or [1, 16, 64]
    columns = [f"{what}, batch {size}" for what in ("inference", "training") for size in batches]
    table = Table("layer", "hidden", *columns, box=box.MARKDOWN)
    for cell, width in itertools.product(("LSTM", "GRU"), hidden or [64, 128, 256, 512, 1024]):
        cells = []
        for trains, size in itertools.product((False, True), batches):
            cells.append(measure(cell, width, size, seconds, trains=trains))
        table.add_row(cell, str(width), *cells)
    output.console().print(table)


if __name__ == "__main__":
    typer.run(main)
