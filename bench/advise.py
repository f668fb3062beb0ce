"""What the advisor advises beside the best of an exhaustive sweep, and predicted beside measured speed-up.

    python bench/advise.py [SPEC[:MEMORY] ...] [--ranks 4] [--rounds 5]

The sweep trains every number of samples up to the share that fits, in turns. Then the size that was advised
beforehand, as `oakum advise` does, and the best of the sweep take turns once more, since the best of many noisy
figures is partly luck.

Ranks are forked processes that sum their gradients over gloo, and hide nothing of that. Where ranks share cores,
with other work or because there are more ranks than cores, the wall clock tells how cores are shared, and not how
training scales. So a rank's compute is its CPU time while the others wait, as if each rank had a core of its own,
the exchange is the shortest of all all-reduces by the wall clock, and numbers of ranks take turns. The wall
clock's own speed-up stands beside that for no more ranks than cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from oakum_client.cli.advising.mini_batch import MiniBatchAdvice, advise_mini_batch
from oakum_client.cli.advising.nodes import nodes_from_passes
from oakum_solver.advice.exchange import Link
from oakum_worker.advice.survey import Surveyor
from oakum_worker.devices import undisturbed_clock
from oakum_worker.losses import loss_of
from oakum_worker.profiling.alternating import compare
from oakum_worker.profiling.micro_batch_probe import Probe
from oakum_worker.profiling.options import parse_bytes
from oakum_worker.spec import TrainerSpec, read_spec
from oakum_worker.task import load_task

SPECS = (
    "examples/digits-classifier.yaml:2MB",
    "examples/digits-classifier.yaml:4MB",
    "examples/digits-autoencoder.yaml:4MB",
    "examples/digits-transformer.yaml:16MB",
    "examples/rbm-classifier.yaml:64MB",
)
STEPS = 6
SMALL_BYTES, LARGE_BYTES = 64_000, 1_000_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row of each table for each spec."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=SPECS)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)  # forked ranks would have no other threads
    for one in given.specs:
        path, _, memory = str(one).partition(":")
        limit = parse_bytes(memory or "1GB")
        print(f"{path} within {memory or '1GB'}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        spec = read_spec(Path(path))
        facts = asdict(Surveyor(spec, limit, lambda _: None, compiles=False).survey())
        batch = advise_mini_batch(facts)
        sweep(spec, facts, batch, limit)
        speed_up(spec, facts, batch, given.ranks, given.rounds)


def sweep(spec: TrainerSpec, facts: dict[str, Any], batch: MiniBatchAdvice, limit: int) -> None:
    """Measure the advised size beside the best of all sizes that fit; returns a row of the table."""
    if batch.best is None:
        print("  nothing fits")
        return
    advised, share = batch.best.samples, facts["share"]
    task = load_task(spec)
    probe, clock = Probe(task, spec, limit), undisturbed_clock(next(task.model.parameters()).device)
    fitting = {size: found for size in range(1, share + 1) if (found := probe.footprint(size)) is not None}

    def step_s(size: int) -> float:
        return -(-share // size) * min(probe.pass_times(size, 0.05, fewest=1, clock=clock))

    best = compare([*fitting], step_s, enough_s=60.0).fastest
    beside = 1.0
    if best != advised:
        again = compare([advised, best], step_s, close=0.01, enough_s=30.0)
        beside = again.seconds[best] / again.seconds[advised]
    peak = fitting[advised].static_bytes + fitting[advised].working_bytes
    print(
        f"  {len(fitting)} sizes fit: advised {advised}, {batch.best.samples_per_s:,.0f} samples/s in "
        f"{peak / limit:.0%} of the memory; best of the sweep {best}: advised beside best {beside:.1%}"
    )


def speed_up(spec: TrainerSpec, facts: dict[str, Any], batch: MiniBatchAdvice, ranks: int, rounds: int) -> None:
    """Predicted beside measured, for 2 to `ranks` ranks; the link is timed here."""
    if batch.best is None or batch.pass_time is None:
        return
    found = _forked(ranks, spec, batch.best.samples, rounds)
    for number in range(2, ranks + 1):
        link = _link([ran.exchanges[number] for ran in found[:number]], number)
        nodes = nodes_from_passes(
            batch.pass_time,
            facts["update_s"],
            facts["gradient_bytes"],
            link,
            global_batch=spec.global_batch,
            micro_batch=batch.best.samples,
            ranks_per_node=1,
            max_nodes=number,
            efficiency=0.8,
        )
        predicted = number * nodes.efficiency(number)
        measured = _alone_s(found) / _step_s(found, number)
        off = predicted / measured - 1
        wall = "-"
        if number <= (os.cpu_count() or 1):
            wall = f"{min(found[0].walls[1]) / max(min(ran.walls[number]) for ran in found[:number]):.2f}"
        print(
            f"  {number} ranks: predicted {predicted:.2f}, measured {measured:.2f} ({off:+.0%}); wall clock {wall}"
        )


@dataclass
class Ran:
    """The measurements of one rank, by number of ranks."""

    computes: dict[int, list[float]]
    """CPU seconds of passes and the optimizer's step, by round."""
    exchanges: dict[int, dict[int, float]]
    """Shortest all-reduce, by its bytes; of the gradients under 0."""
    walls: dict[int, list[float]]
    """Seconds of a whole step, by round."""


def _alone_s(found: list[Ran]) -> float:
    return statistics.median(found[0].computes[1])


def _step_s(found: list[Ran], number: int) -> float:
    """A rank's compute, beside that of a rank alone in the same round, and the exchange. Shares are equal, so the
    median of the ranks stands for each of them: the largest would tell of other work on the cores."""
    ratios = [
        statistics.median(ran.computes[number][turn] for ran in found[:number]) / found[0].computes[1][turn]
        for turn in range(len(found[0].computes[1]))
    ]
    exchange_s = min(ran.exchanges[number][0] for ran in found[:number])
    return statistics.median(ratios) * _alone_s(found) + exchange_s


def _link(exchanges: list[dict[int, float]], ranks: int) -> Link:
    """Latency and bandwidth between processes, from all-reduces of fewer and of more bytes."""
    small, large = (min(one[nbytes] for one in exchanges) for nbytes in (SMALL_BYTES, LARGE_BYTES))
    messages = 2 * (ranks - 1)
    bandwidth = messages * (LARGE_BYTES - SMALL_BYTES) / ranks / max(large - small, 1e-6)
    return Link(max(small / messages - SMALL_BYTES / ranks / bandwidth, 0.0), bandwidth)


def _forked(ranks: int, spec: TrainerSpec, size: int, rounds: int) -> list[Ran]:
    context = get_context("fork")
    answers: Queue[tuple[int, Ran]] = context.Queue()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        context.Process(target=_rank, args=(rank, ranks, store.port, spec, size, rounds, answers), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
    return [found[rank] for rank in range(ranks)]


def _rank(
    rank: int, ranks: int, port: int, spec: TrainerSpec, size: int, rounds: int, answers: Queue[tuple[int, Ran]]
) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    groups: dict[int, Any] = {
        number: dist.ProcessGroupGloo(dist.PrefixStore(str(number), store), rank, number)  # type: ignore[call-arg]
        for number in range(1, ranks + 1)
        if rank < number
    }
    ran = Ran({}, {}, {})
    step = _Steps(spec, size)
    for turn in range(rounds + 1):
        for number in range(1, ranks + 1):
            groups[ranks].barrier().wait()  # the others wait, without using a core
            if rank < number:
                _take_turn(step, groups[number], rank, number, ran if turn else Ran({}, {}, {}))
    answers.put((rank, ran))
    groups[ranks].barrier().wait()


def _take_turn(step: _Steps, group: dist.ProcessGroup, rank: int, number: int, ran: Ran) -> None:
    """Time the ranks' computing, one rank after the other, then whole steps of all ranks at once; the shortest
    time of each counts."""
    computes, walls = [], []
    for turn in range(number):
        group.barrier().wait()
        for _ in range(STEPS if turn == rank else 0):
            began_s = time.process_time()
            gradients = step.passes(rank, number)
            step.update()
            computes.append(time.process_time() - began_s)
    for _ in range(STEPS):
        group.barrier().wait()
        began_s = time.perf_counter()
        gradients = step.passes(rank, number)
        if number > 1:
            group.allreduce([gradients]).wait()
        step.update()
        walls.append(time.perf_counter() - began_s)
    ran.computes.setdefault(number, []).append(min(computes))
    ran.walls.setdefault(number, []).append(min(walls))
    for key, nbytes in ((0, gradients.nbytes), (SMALL_BYTES, SMALL_BYTES), (LARGE_BYTES, LARGE_BYTES)):
        for _ in range(5 * STEPS if number > 1 else 0):
            group.barrier().wait()
            _note(ran, number, key, _all_reduce_s(group, torch.zeros(nbytes // 4)))


def _note(ran: Ran, number: int, nbytes: int, seconds: float) -> None:
    known = ran.exchanges.setdefault(number, {})
    known[nbytes] = min(known.get(nbytes, seconds), seconds)


def _all_reduce_s(group: dist.ProcessGroup, tensor: torch.Tensor) -> float:
    began_s = time.perf_counter()
    group.allreduce([tensor]).wait()
    return time.perf_counter() - began_s


class _Steps:
    """A task that is trained as one of a number of ranks trains it."""

    def __init__(self, spec: TrainerSpec, size: int) -> None:
        torch.set_num_threads(1)
        self._task, self._batch, self._size = load_task(spec), spec.global_batch, size
        self._task.model.train()
        self._read: dict[tuple[int, int], list[Any]] = {}

    def passes(self, rank: int, number: int) -> torch.Tensor:
        """Forward and backward passes of the rank's share; returns its gradients."""
        task = self._task
        task.optimizer.zero_grad()
        for batch in self._batches(rank, number):
            loss_of(task.loss(task.model, batch)).value.backward()
        return torch.cat([p.grad.flatten() for p in task.model.parameters() if p.grad is not None])

    def update(self) -> None:
        self._task.optimizer.step()

    def _batches(self, rank: int, number: int) -> list[Any]:
        if (rank, number) not in self._read:
            ends = [self._batch * one // number for one in (rank, rank + 1)]
            self._read[rank, number] = [
                self._task.read(
                    [i % len(self._task.dataset) for i in range(start, min(start + self._size, ends[1]))]
                )
                for start in range(ends[0], ends[1], self._size)
            ]
        return self._read[rank, number]


if __name__ == "__main__":
    main()
