"""Measures rounds of MapReduce: what mappers bring, what is shuffled, what kills cost, Spark beside it, digits.

    python bench/mapreduce.py                                 # everything, about three minutes
    python bench/mapreduce.py --only rounds --only bytes --rounds 3 --json mapreduce.json

Ranks are threads of this process over gloo, and a map sleeps for `--map-ms` beside what it computes, so that two
cores show how rounds scale. Spark runs in local mode with as many threads, and is left out where it is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.distributed as dist
import typer
from rich.table import Table

from oakum_client.cli import output
from oakum_worker.errors import GroupError
from oakum_worker.map_reduce.alone import run_round
from oakum_worker.map_reduce.dealing import deal
from oakum_worker.map_reduce.job import Arrays, add
from oakum_worker.map_reduce.preparing import PreparedBlocks
from oakum_worker.map_reduce.rounds import RoundTask, map_reduce_task
from oakum_worker.map_reduce.spark import distribute, spark_round
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.strategies.map_reduce.engine import MapReduceEngine

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
_BLOCKS, _WEIGHTS = 32, (256, 64)


class Part(StrEnum):
    """What is measured, each part in a table of its own; its value names it after `--only`."""

    ROUNDS = "rounds"
    BYTES = "bytes"
    KILLS = "kills"
    PREPARED = "prepared"
    DIGITS = "digits"


class Sleeping:
    """A job with statistics of the size of its weights, whose maps take a given time."""

    def __init__(self, map_s: float) -> None:
        self.map_s = map_s

    def map(self, state: Arrays, block: Any) -> Arrays:
        """The block's number everywhere."""
        time.sleep(self.map_s)
        pull = np.full(_WEIGHTS, 1e-3 * block, dtype=np.float32)
        return {"pull": pull, "loss": np.asarray(float(block)), "examples": np.asarray(1.0)}

    def combine(self, left: Arrays, right: Arrays) -> Arrays:
        """The sum."""
        return add(left, right)

    def update(self, state: Arrays, statistics: Arrays) -> Arrays:
        """The weights, moved a little."""
        return {"weights": state["weights"] - statistics["pull"]}


def main(
    only: Annotated[list[Part] | None, typer.Option(help="Tables to make; default all.")] = None,
    mappers: Annotated[list[int] | None, typer.Option(help="Numbers of mappers; default 1, 2, 4.")] = None,
    map_ms: Annotated[float, typer.Option(help="Sleep of one map.")] = 20.0,
    rounds: Annotated[int, typer.Option(help="Rounds of which the median counts.")] = 5,
    seeds: Annotated[int, typer.Option(help="Seeds of the digits' training.")] = 3,
    epochs: Annotated[int, typer.Option(help="Epochs of fine-tuning; the stack's are three quarters.")] = 60,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures into this file.")] = None,
) -> None:
    """Measure, print tables, and write the figures."""
    torch.set_num_threads(1)
    sizes, parts = mappers or [1, 2, 4], only or list(Part)
    figures: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        if part is Part.ROUNDS:
            figures[part] = measure_rounds(sizes, map_ms / 1000, rounds)
        elif part is Part.BYTES:
            figures[part] = [count_bytes(size) for size in sizes]
        elif part is Part.KILLS:
            figures[part] = [time_kills(kills, map_ms / 1000, rounds) for kills in (0, 1, 2)]
        elif part is Part.PREPARED:
            figures[part] = time_prepared(rounds)
        else:
            figures[part] = train_digits(seeds, epochs)
        _print(part, figures[part])
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1), encoding="utf-8")


def measure_rounds(sizes: list[int], map_s: float, rounds: int) -> list[dict[str, Any]]:
    """Rounds per second by ranks and by Spark's threads, in turns for each number of mappers."""
    found = []
    for size in sizes:
        ours = _median(_timed_steps(_loops(size, map_s), rounds))
        spark = _median(_timed_spark(size, map_s, rounds))
        ideal = _BLOCKS * map_s / size
        found.append(
            {
                "mappers": size,
                "rounds/s": 1 / ours,
                "share of ideal": ideal / ours,
                "Spark rounds/s": None if spark is None else 1 / spark,
            }
        )
    return found


def count_bytes(size: int) -> dict[str, Any]:
    """Bytes of statistics that mappers send in a round, beside mappers x weights and without a combiner."""
    loops = _loops(size, 0.0)
    _timed_steps(loops, 2)
    weights = 4 * _WEIGHTS[0] * _WEIGHTS[1]
    sent = sum(_engine(loop).bytes_sent for loop in loops) / 2
    return {
        "mappers": size,
        "MB sent": sent / 1e6,
        "(mappers - 1) x weights, MB": (size - 1) * weights / 1e6,
        "without combiner, MB": (_BLOCKS - _BLOCKS // size) * weights / 1e6,
    }


def time_kills(kills: int, map_s: float, rounds: int) -> dict[str, Any]:
    """Seconds of a round of four mappers of which some are lost before they answer, one after the other."""
    taken, mapped = [], []
    for _ in range(rounds):
        loops = _loops(4, map_s)
        _timed_steps(loops, 1)
        before = [_engine(loop).blocks_mapped for loop in loops]
        began_s = time.perf_counter()
        for _ in range(kills):
            loops.pop()  # nothing of what the lost mapper has computed reaches the others
            _break_round(loops)
        _timed_steps(loops, 1)
        taken.append(time.perf_counter() - began_s)
        mapped.append(sum(_engine(loop).blocks_mapped - n for loop, n in zip(loops, before, strict=False)))
    return {"killed": kills, "seconds": _median(taken), "blocks mapped by survivors": max(mapped)}


def _break_round(survivors: list[TrainingLoop]) -> None:
    """A round whose last rank is lost once the survivors have mapped their shares: their connections break."""
    size = len(survivors) + 1
    groups: dict[int, dist.ProcessGroup] = {}
    before = [_engine(loop).blocks_mapped for loop in survivors]

    def be_lost(group: dist.ProcessGroup) -> None:
        """Tell what the lost rank holds, nothing, and break the others' connections when they have mapped."""
        levels = torch.zeros(_BLOCKS, dtype=torch.int64)
        told = [torch.zeros_like(levels) for _ in range(size)]
        group.allgather([told], [levels]).wait()
        shares = deal([held.tolist() for held in told])[:-1]
        goals = [n + len(share.computes) for n, share in zip(before, shares, strict=True)]
        while any(_engine(loop).blocks_mapped < goal for loop, goal in zip(survivors, goals, strict=True)):
            time.sleep(0.001)
        server = _engine(survivors[0])._server
        assert server is not None
        server._events.put(GroupError("a mapper was lost"))  # as the receiving thread does
        for other in range(1, size - 1):
            with suppress(RuntimeError):  # a wait on gloo that times out closes all of a group's connections
                groups[other].recv([torch.empty(1)], size - 1, 77).wait(timedelta(milliseconds=1))

    def run(group: dist.ProcessGroup, rank: int) -> None:
        groups[rank] = group
        if rank == size - 1:
            be_lost(group)
            return
        survivors[rank].join(group, rank, size)
        try:
            survivors[rank].step()
        except GroupError:
            return
        raise RuntimeError("the round was not broken")

    _in_ranks(size, run)


def time_prepared(rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of rounds of 16 blocks in one process, by the layer of the stack that they train: with blocks
    kept as prepared, and with each map propagating its block through the layers below. Images are random, of 8 x 8
    and of 28 x 28 pixels."""
    return [
        _time_layer(widths, layer, rounds)
        for widths in ((64, 256, 128, 30), (784, 1000, 500, 250, 30))
        for layer in range(len(widths) - 1)
    ]


def _time_layer(widths: tuple[int, ...], layer: int, rounds: int) -> dict[str, Any]:
    from rbm import machines

    images = np.random.default_rng(1).random((16 * 32, widths[0]), dtype=np.float32)
    blocks = machines.blocks_of(images, 32)
    job = machines.StackedMachines(len(widths) - 1, 1, 1, seed=1)
    state = {**machines.first_state(widths, seed=1), "round": np.asarray(layer)}
    kept = PreparedBlocks(job)
    first_s = _timed_round(job, state, blocks, kept)
    pairs = [
        (_timed_round(job, state, blocks, kept), _timed_round(Propagating(job), state, blocks, None))
        for _ in range(rounds)
    ]
    kept_s, anew_s = (_median(list(taken)) for taken in zip(*pairs, strict=True))
    return {
        "layer": f"{widths[layer]}-{widths[layer + 1]}",
        "first round, ms": 1e3 * first_s,
        "kept, ms": 1e3 * kept_s,
        "propagated anew, ms": 1e3 * anew_s,
        "saved": 1 - kept_s / anew_s,
        "MB kept": kept.num_bytes / 1e6,
    }


class Propagating:
    """The stack's job with a map that propagates its block itself."""

    def __init__(self, job: Any) -> None:
        self._job = job
        self.combine, self.update = job.combine, job.update

    def map(self, state: Arrays, block: Any) -> Arrays:
        """The statistics of a block that is not prepared."""
        names = self._job.prepared_by(state) or []
        return dict(self._job.map(state, self._job.prepare({name: state[name] for name in names}, block)))


def _timed_round(job: Any, state: Arrays, blocks: list[Any], kept: PreparedBlocks | None) -> float:
    began_s = time.perf_counter()
    run_round(job, state, blocks, kept)
    return time.perf_counter() - began_s


def train_digits(seeds: int, epochs: int) -> list[dict[str, Any]]:
    """Accuracy and reconstruction error after fine-tuning, from the stack and from random weights, over seeds; and
    whether a plain loop in one process gives the stack's bits."""
    found: dict[str, dict[str, list[float]]] = {"stack": {}, "random weights": {}}
    same = True
    for seed in range(1, seeds + 1):
        stack, is_same = _stack(seed, 3 * epochs // 4)
        same &= is_same
        for name, state in (("stack", stack), ("random weights", None)):
            for metric, value in _fine_tuned(seed, state, epochs).items():
                found[name].setdefault(metric, []).append(value)
    rows: list[dict[str, Any]] = []
    for name, metrics in found.items():
        row: dict[str, Any] = {"begins from": name, "plain loop has its bits": same if name == "stack" else None}
        for metric, values in metrics.items():
            row |= {metric: statistics.mean(values), f"{metric}, least": min(values), "most": max(values)}
            row[f"{metric}, most"] = row.pop("most")
        rows.append(row)
    return rows


def _stack(seed: int, epochs: int) -> tuple[dict[str, np.ndarray], bool]:
    """The stack that rounds have trained, and whether a plain loop gives the same bits."""
    from rbm import pretraining

    spec = TrainerSpec.model_validate(
        {"name": "s", "entrypoint": "r:t", "global_batch": 4, "epochs": epochs, "seed": seed}
        | {"parallel": {"data": "map-reduce"}}
    )
    loop = _trained(TrainingLoop(pretraining.task(spec), spec))
    stack = dict(loop.task.model.arrays())  # type: ignore[operator]
    plain = _plainly(pretraining.task(spec), spec)
    return stack, all(np.array_equal(stack[name], plain[name]) for name in plain)


def _fine_tuned(seed: int, state: dict[str, np.ndarray] | None, epochs: int) -> dict[str, float]:
    """Metrics of the classifier and the autoencoder on held-out digits; None begins from random weights."""
    from rbm import fine_tuning

    found: dict[str, float] = {}
    for kind in (fine_tuning.classifier, fine_tuning.autoencoder):
        fields = {"name": "f", "entrypoint": "r:t", "global_batch": 48, "epochs": epochs, "seed": seed}
        tuned = TrainerSpec.model_validate(fields)
        torch.manual_seed(seed)
        built = kind(tuned)
        if state is not None:
            fresh = type(built.model)(state)
            values = {k: v for k, v in fresh.state_dict().items() if not k.startswith("head")}
            built.model.load_state_dict(values, strict=False)
        found |= _trained(TrainingLoop(built, tuned)).evaluations.run()
    return found


def _plainly(task: RoundTask, spec: TrainerSpec) -> dict[str, np.ndarray]:
    """The stack's state by a loop of NumPy alone, over the same batches."""
    from oakum_worker.state.cursor import Cursor
    from oakum_worker.step.sampler import ElasticSampler

    state = {name: array.copy() for name, array in task.model.arrays().items()}  # type: ignore[operator]
    blocks: Any = task.dataset
    sampler, cursor = ElasticSampler(len(blocks), lambda _: spec.global_batch, spec.seed), Cursor()
    while cursor.epoch < spec.epochs:
        size = sampler.batch_size(cursor)
        indices = sorted(sampler.indices(cursor, range(size)))
        total = run_round(task.job, state, [blocks[index] for index in indices])
        state |= task.job.update(state, total)
        state["round"] = state["round"] + 1
        cursor = cursor.after(size, len(blocks))
    return state


def _trained(loop: TrainingLoop) -> TrainingLoop:
    while not loop.finished:
        loop.step()
    return loop


def _loops(size: int, map_s: float) -> list[TrainingLoop]:
    spec = TrainerSpec.model_validate(
        {"name": "s", "entrypoint": "r:t", "global_batch": _BLOCKS, "epochs": 10_000}
        | {"parallel": {"data": "map-reduce"}}
    )
    state = {"weights": np.zeros(_WEIGHTS, dtype=np.float32)}
    loops = [
        TrainingLoop(map_reduce_task(Sleeping(map_s), state, list(range(_BLOCKS))), spec) for _ in range(size)
    ]
    for loop in loops:
        _engine(loop).patience_s = 60.0  # nothing is dealt twice, however busy the machine
    return loops


def _engine(loop: TrainingLoop) -> MapReduceEngine:
    assert isinstance(loop.assembly.engine, MapReduceEngine)
    return loop.assembly.engine


def _timed_steps(loops: list[TrainingLoop], rounds: int) -> list[float]:
    """Seconds of each round on rank 0."""

    def run(group: dist.ProcessGroup, rank: int) -> list[float]:
        loops[rank].join(group, rank, len(loops))
        taken = []
        for _ in range(rounds):
            began_s = time.perf_counter()
            loops[rank].step()
            taken.append(time.perf_counter() - began_s)
        return taken

    found: list[float] = _in_ranks(len(loops), run)[0]
    return found


def _in_ranks(size: int, run: Callable[[dist.ProcessGroup, int], Any]) -> list[Any]:
    with ThreadPoolExecutor(size) as threads:
        store = dist.HashStore()
        timeout = timedelta(seconds=60)
        ends = [threads.submit(dist.ProcessGroupGloo, store, rank, size, timeout) for rank in range(size)]
        return list(threads.map(run, [end.result() for end in ends], range(size)))


def _timed_spark(size: int, map_s: float, rounds: int) -> list[float] | None:
    if find_spec("pyspark") is None or shutil.which("java") is None:
        return None
    from pyspark import SparkConf, SparkContext

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = SparkConf().setMaster(f"local[{size}]").set("spark.ui.enabled", "false")
    context = SparkContext(conf=settings.set("spark.driver.host", "127.0.0.1"))
    context.setLogLevel("ERROR")
    try:
        state: dict[str, np.ndarray] = {"weights": np.zeros(_WEIGHTS, dtype=np.float32)}
        spread, job = distribute(context, list(range(_BLOCKS)), size), Sleeping(map_s)
        taken = []
        for _ in range(rounds + 1):
            began_s = time.perf_counter()
            state |= job.update(state, spark_round(job, state, spread))
            taken.append(time.perf_counter() - began_s)
        return taken[1:]  # The first one starts Python in the executors.
    finally:
        context.stop()


def _median(taken: list[float] | None) -> Any:
    return None if taken is None else statistics.median(taken)


def _print(part: Part, rows: list[dict[str, Any]]) -> None:
    table = Table(title=part.value)
    for name in rows[0]:
        table.add_column(name)
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    output.console().print(table)


if __name__ == "__main__":
    typer.run(main)
