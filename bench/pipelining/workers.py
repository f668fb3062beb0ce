"""Processes that run cases together, each as one worker of the pipeline."""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti

from oakum_worker.chain import Chain
from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.pipeline.gradients import StageGradients
from oakum_worker.parallel.pipeline.links import PeerLinks, pairs_of
from oakum_worker.parallel.pipeline.message_driven import MessageDrivenEngine
from oakum_worker.parallel.pipeline.operations import COMPUTATIONS, Operation
from oakum_worker.parallel.pipeline.scheduled import ScheduledEngine
from oakum_worker.parallel.subgroups import StoreSubgroups
from pipelining.cases import Case, Seen

TORCHS: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zero-bubble-v": ScheduleZBVZeroBubble,
}
_TIMEOUT = timedelta(minutes=5)
_PATIENCE_S = 300.0
_SAMPLES, _WIDTH = 2, 64


class _Sleep(torch.autograd.Function):
    """A computation that sleeps, so that other processes get the processor."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.backward_s = backward_s
        if forward_s:
            time.sleep(forward_s)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if ctx.backward_s:
            time.sleep(ctx.backward_s)
        return gradients[0], None, None


class SleepingLayer(nn.Module):
    """Half of its backward pass is for its input and half for its weight; all, where its input needs none."""

    def __init__(self, forward_s: float, backward_s: float, jitter: float, seed: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_WIDTH))
        self._times = forward_s, backward_s
        self._jitter = jitter
        self._random = random.Random(seed)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        forward_s, backward_s = (time * self._longer() for time in self._times)
        halved = values.requires_grad
        values = _Sleep.apply(values, forward_s, backward_s / 2)
        weight = _Sleep.apply(self.weight, 0.0, backward_s / 2 if halved else backward_s)
        return values * weight

    def _longer(self) -> float:
        # The same for a micro-batch in whatever order passes are taken, since forward passes have one order.
        return 1.0 + (self._random.expovariate(1 / self._jitter) if self._jitter else 0.0)


class _Batches:
    """An engine's `MicroBatches`."""

    def __init__(self, values: torch.Tensor, num_micro_batches: int) -> None:
        self._parts = values.chunk(num_micro_batches)

    def num_samples(self, number: int) -> int:
        return len(self._parts[number])

    def prepare(self, number: int) -> None:
        pass

    def forget(self, number: int) -> None:
        pass

    def inputs(self, number: int) -> torch.Tensor:
        return self._parts[number]

    def loss(self, output: torch.Tensor, number: int) -> torch.Tensor:
        return output.mean() / len(self._parts)

    def drawing(self, number: int) -> AbstractContextManager[Callable[..., Any]]:
        return nullcontext(lambda function, *arguments: function(*arguments))


def run_cases(cases: Sequence[Case]) -> Iterator[list[Seen]]:
    """Run the cases one after the other and yield the workers' measurements; all cases need equally many ranks."""
    context = mp.get_context("spawn")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    lines, processes = [], []
    for rank in range(cases[0].num_ranks):
        ours, theirs = context.Pipe()
        process = context.Process(target=_main, args=(list(cases), store.port, rank, theirs), daemon=True)
        process.start()
        theirs.close()
        lines.append(ours)
        processes.append(process)
    try:
        for _ in cases:
            yield [_receive(line) for line in lines]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _receive(line: Connection) -> Seen:
    if not line.poll(_PATIENCE_S):
        raise TimeoutError(f"a worker took more than {_PATIENCE_S:g} s for a case")
    answer = line.recv()
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer


def _main(cases: list[Case], port: int, rank: int, line: Connection) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        size = cases[0].num_ranks
        dist.init_process_group("gloo", store=dist.PrefixStore("all", store), rank=rank, world_size=size)
        for number, case in enumerate(cases):
            apart = dist.PrefixStore(f"case-{number}", store)
            line.send(_run(case, rank, StoreSubgroups(apart, rank, _TIMEOUT)))
    except Exception:
        line.send(traceback.format_exc())
    line.recv()  # until the bench is over


def _run(case: Case, rank: int, subgroups: StoreSubgroups) -> Seen:
    schedule = case.build()
    share = schedule.num_workers / (schedule.num_stages * schedule.num_pipes) if schedule.num_pipes == 1 else 1.0
    times = case.forward_s * share / case.layers, case.forward_s * case.backward_ratio * share / case.layers
    num_layers = schedule.num_stages * case.layers
    layers = [SleepingLayer(*times, case.jitter, seed=number) for number in range(num_layers)]
    seen = Seen()
    if case.runner == "torch":
        step = _torch_step(case, rank, layers)
    else:
        step = _our_step(case, rank, subgroups, layers, seen)
    for number in range(case.num_steps + 1):
        values = torch.randn(_SAMPLES * case.num_micro_batches, _WIDTH)
        dist.barrier()
        begin_s = time.perf_counter()
        step(values)
        seen.walls_s.append(time.perf_counter() - begin_s)
        if number == 0:  # to warm up
            for kept in (seen.begins_s, seen.ends_s, seen.walls_s):
                kept.clear()
    return seen


def _our_step(
    case: Case, rank: int, subgroups: StoreSubgroups, layers: list[SleepingLayer], seen: Seen
) -> Callable[[torch.Tensor], None]:
    schedule = case.build()
    chain = Chain(layers, inputs=lambda batch: batch, loss=lambda output, _: output.mean())
    cuts = tuple(range(start, start + case.layers) for start in range(0, len(layers), case.layers))
    arrangement = Arrangement(case.num_ranks, case.num_replicas, schedule, cuts)
    seat = arrangement.seat(rank)
    assert seat is not None
    links = PeerLinks(subgroups, arrangement.ranks_of(seat.replica), seat.worker, pairs_of(schedule))
    holders = [arrangement.holders_of(stage) for stage in range(schedule.num_stages)]
    gradients = StageGradients(chain, cuts, holders, rank, subgroups)
    spans: list[tuple[float, float]] = []

    def observe(operation: Operation, begin_s: float, end_s: float) -> None:
        if operation.kind in COMPUTATIONS:
            spans.append((begin_s, end_s))

    arguments = schedule, seat.worker, chain, cuts, links, gradients.sync
    engine: Any
    if case.runner == "message-driven":
        engine = MessageDrivenEngine(*arguments, observe=observe, limit=case.limit)
    else:
        engine = ScheduledEngine(*arguments, observe=observe)

    def step(values: torch.Tensor) -> None:
        spans.clear()
        gradients.begin()
        engine.run(_Batches(values, case.num_micro_batches))
        gradients.finish()
        seen.begins_s.append(spans[0][0])
        seen.ends_s.append(spans[-1][1])
        seen.max_live = engine.max_live

    return step


def _torch_step(case: Case, rank: int, layers: list[SleepingLayer]) -> Callable[[torch.Tensor], None]:
    placement = case.build().placement[0]
    kind = TORCHS[case.schedule]
    own = [stage for stage, worker in enumerate(placement) if worker == rank]
    stages = [
        PipelineStage(
            nn.Sequential(*layers[stage * case.layers : (stage + 1) * case.layers]),
            stage,
            len(placement),
            torch.device("cpu"),
        )
        for stage in own
    ]
    is_multi = issubclass(kind, PipelineScheduleMulti)
    runner = kind(
        stages if is_multi else stages[0], case.num_micro_batches, loss_fn=lambda output, _: output.mean()
    )

    def step(values: torch.Tensor) -> None:
        options = {"target": values} if len(placement) - 1 in own else {}
        runner.step(*([values] if 0 in own else []), **options)

    return step
