"""`python -m oakum_worker profile rnn`: which way of running a recurrent layer's loops is the fastest here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

import torch
import typer

from oakum_worker.errors import NoLoopsError, SpecError
from oakum_worker.profiling.command import profile_app, progress_bar, reported
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
    parse_chip,
)
from oakum_worker.recurrent import spatial
from oakum_worker.recurrent.choices import remembered
from oakum_worker.recurrent.design_space import GATES, Shape
from oakum_worker.recurrent.kernels import kernels
from oakum_worker.recurrent.measuring import RnnProfile, TimedDesign, profile
from oakum_worker.recurrent.verdicts import Verdict, measure

_SHOWN = 12


@profile_app.command("rnn")
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
    as_json: JsonOption = False,
) -> None:
    """Time every way of running an LSTM's or a GRU's loops on this machine."""
    with reported():
        if chip is not None:
            text = spatial_report(hidden, cell, chip, as_json=as_json)
        else:
            shape = Shape(cell, hidden, input or hidden, steps, batch, 8 if dtype == "float64" else 4)
            text = rnn_report(shape, threads, seconds, keep=keep, as_json=as_json)
    typer.echo(text)


def rnn_report(shape: Shape, threads: int | None, seconds: float, *, keep: bool, as_json: bool) -> str:
    """Time the ways to run a layer of this shape for about `seconds`, with a progress bar on a terminal. Returns
    the report, as text or JSON. With `keep`, the fastest way is remembered for later layers. Raises `NoLoopsError`
    where the loops cannot run."""
    loaded = kernels()
    if isinstance(loaded, NoLoopsError):
        raise loaded
    count = threads or torch.get_num_threads()
    before = remembered(shape, count)
    with progress_bar(f"{shape.cell} of {shape.hidden}") as progress:
        best = profile(loaded, shape, count, seconds=seconds, keep=keep, progress=progress)
        progress("the fastest beside torch")
        verdict = measure(loaded, shape, count, "none", best.fastest.choice)
    if as_json:
        earlier = asdict(before) if before else None
        document = asdict(best) | {"regret": best.regret, "remembered_before": earlier, "verdict": asdict(verdict)}
        return json.dumps(document, indent=2)
    lanes = loaded.vector_bytes // shape.number_bytes
    last = ["loops of layers of this size run with the fastest from now on"] if keep else []
    return "\n".join([*_lines(best, lanes), _beside_torch(verdict), *last])


def spatial_report(hidden: int, cell: str, chip: str, *, as_json: bool) -> str:
    """The report, as text or JSON, on the accelerator of the paper: the best tiling for a layer of `hidden` units,
    and fixed tilings for comparison. Raises `SpecError` for a `chip` that cannot be read or is too small."""
    units, rv = parse_chip(chip)
    gates = GATES["gru" if cell == "gru" else "lstm"]
    try:
        best = spatial.search(hidden, gates, spatial.Chip(units, rv))
    except ValueError as error:
        raise SpecError(str(error)) from error
    fixed = list(fixed_tilings(hidden, gates, units, rv))
    if as_json:
        tilings = [asdict(one) | {"cycles": one.cycles(hidden)} for one in (best, *fixed)]
        return json.dumps({"hidden": hidden, "gates": gates, "units": units, "tilings": tilings}, indent=2)
    lines = ["  hu   ru   rv  vector units    cycles  fragmentation"]
    for one in (best, *fixed):
        lines.append(
            f"{one.hu:4}{one.ru:5}{one.rv:5}{one.units(gates):14}{one.cycles(hidden):10,}"
            f"{100 * one.fragmentation(hidden):13.1f} %{'  *' if one is best else ''}"
        )
    lines += ["", f"a step of a {cell} of {hidden} on {units} vector units of {rv}; * found by the search"]
    return "\n".join(lines)


def fixed_tilings(hidden: int, gates: int, units: int, rv: int) -> Iterator[spatial.Tiling]:
    """Yield tilings that do not depend on the layer's size, as a library's fixed tile: hu is 1, 4, 16, ..., and ru
    takes the vector units that are left."""
    hu = 1
    while hu * gates <= units:
        yield spatial.Tiling(hu, units // (gates * hu), rv)
        hu *= 4


def _lines(report: RnnProfile, lanes: int) -> Iterator[str]:
    shape, machine = report.shape, report.machine
    yield (
        f"{shape.cell} of {shape.hidden}, inputs of {shape.input}, {shape.steps} steps, batch {shape.batch}: "
        f"{shape.weight_bytes / 2**20:,.1f} MiB of weights"
    )
    yield (
        f"one core reads {machine.l2_bytes_per_s / 1e9:.0f} GB/s from L2, {machine.l3_bytes_per_s / 1e9:.0f} from "
        f"L3, {machine.memory_bytes_per_s / 1e9:.0f} from memory; a barrier takes {1e6 * machine.barrier_s:.1f} us"
    )
    yield ""
    yield "  hu   ru   rv  tile  threads  back and forth   predicted    measured"
    shown = list(report.candidates[:_SHOWN])
    shown += [one for one in report.candidates[_SHOWN:] if one.choice == report.model.choice]
    for one in shown:
        yield _row(one, lanes, is_models=one.choice == report.model.choice)
    yield ""
    yield (
        f"{len(report.candidates)} choices, each timed {report.rounds} times; the model's (m) computed "
        f"{report.model.looked_at} of their times and takes {100 * report.regret:.0f} % longer than the fastest"
    )


def _beside_torch(verdict: Verdict) -> str:
    name = "the fused loops" if verdict.is_fused else "torch"
    return f"inference runs by {name}, {verdict}"


def _row(one: TimedDesign, lanes: int, *, is_models: bool) -> str:
    choice = one.choice
    return (
        f"{choice.hidden_at_once(lanes):4}{choice.unroll:5}{lanes:5}{choice.tile:6}{choice.threads:9}"
        f"{'yes' if choice.serpentine else 'no':>16}{1e6 * one.predicted_s:9,.1f} us"
        f"{1e6 * one.measured_s:9,.1f} us"
        f"{'  m' if is_models else ''}"
    )
