"""How long a schedule takes and what it holds, from the times of its operations.

Times are in any one unit. `validate` says whether a schedule computes the right thing; this says how fast.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.pipeline.operations import (
    RECEIVES,
    SENDS,
    Kind,
    Operation,
    Schedule,
    received,
)

Times = float | Sequence[float]
"""The same for every stage, or one for each."""


@dataclass(frozen=True, slots=True)
class Span:
    """When a worker was at an operation. A receive lasts as long as its message is waited for."""

    operation: Operation
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """One step of a replica."""

    schedule: Schedule
    starts: tuple[tuple[float, ...], ...]
    """starts[worker][position]: of each operation, in the worker's order."""
    ends: tuple[tuple[float, ...], ...]
    makespan: float
    """When the last computation of any worker ended."""
    busy: float
    """Time in which workers computed, summed over them."""
    peak_activations: tuple[float, ...]
    """For each worker the most that it held at once: micro-batches between their forward and the end of their
    backward, each weighted with its stage's `activation`; by default a count of micro-batches (Ma)."""
    sync_ends: tuple[float, ...]
    """For each worker when the gradients of all its stages were summed."""

    @cached_property
    def spans(self) -> tuple[tuple[Span, ...], ...]:
        """spans[worker], in the worker's order."""
        return tuple(
            tuple(Span(*span) for span in zip(order, starts, ends, strict=True))
            for order, starts, ends in zip(self.schedule.operations, self.starts, self.ends, strict=True)
        )

    @property
    def num_workers(self) -> int:
        """Ranks of the replica."""
        return len(self.starts)

    @property
    def bubble_ratio(self) -> float:
        """The part of the workers' time until `makespan` in which they did not compute."""
        available = self.makespan * self.num_workers
        return (available - self.busy) / available if available else 0.0

    @property
    def unoverlapped(self) -> tuple[float, ...]:
        """For each worker how long its gradient sums went on after the makespan.

        The greatest is the last term of T = (F + p) C_f + (B + p) C_b + max_i unoverlapped_i (Chimera,
        arXiv:2107.06925, section 3.4): here the sum is exact, as bubbles are where they are.
        """
        return tuple(max(0.0, end - self.makespan) for end in self.sync_ends)

    @property
    def step(self) -> float:
        """When all is computed and summed."""
        return self.makespan + max(self.unoverlapped, default=0.0)


def simulate(
    schedule: Schedule,
    forward: Times = 1.0,
    backward: Times = 2.0,
    *,
    doubled: Times | None = None,
    inputs: Times | None = None,
    weights: Times | None = None,
    latency: float = 0.0,
    transfer: Times = 0.0,
    sync: Times = 0.0,
    activation: Times = 1.0,
    split_activation: Times = 0.0,
) -> Simulation:
    """Take every worker through its operations, each as soon as the worker is free and its messages are there.

    `forward` and `backward` are of one micro-batch through one stage; a forward pass of two takes `doubled`, by
    default twice `forward`. The parts of a split backward pass take `inputs` and `weights`, by default a half of
    `backward` each, and between them a micro-batch holds `split_activation` besides. A message needs `transfer`
    for each micro-batch in it, that of the lower of its two stages, and arrives `latency` later; messages from one
    worker to another go one after the other, and sending costs the sender no time. `sync` is how long summing a
    stage's gradients takes once all holders have begun; a worker takes part in one sum at a time. Raises
    `ScheduleError` if workers wait for each other for ever.
    """
    forwards = _by_stage(forward, schedule)
    backwards = _by_stage(backward, schedule)
    costs = {
        "F": forwards,
        "FF": [2 * time for time in forwards] if doubled is None else _by_stage(doubled, schedule),
        "B": backwards,
        "I": [time / 2 for time in backwards] if inputs is None else _by_stage(inputs, schedule),
        "W": [time / 2 for time in backwards] if weights is None else _by_stage(weights, schedule),
    }
    held, besides = _by_stage(activation, schedule), _by_stage(split_activation, schedule)
    changes = {
        "F": held,
        "FF": [2 * size for size in held],
        "B": [-size for size in held],
        "I": besides,
        "W": [-size - more for size, more in zip(held, besides, strict=True)],
    }
    run = _Run(schedule)
    run.take(costs, changes, latency, _by_stage(transfer, schedule))
    return Simulation(
        schedule=schedule,
        starts=tuple(tuple(starts) for starts in run.starts),
        ends=tuple(tuple(ends) for ends in run.ends),
        makespan=run.makespan,
        busy=run.busy,
        peak_activations=tuple(run.peaks),
        sync_ends=_sync_ends(run.syncs, _by_stage(sync, schedule), schedule.num_workers),
    )


def _by_stage(times: Times, schedule: Schedule) -> list[float]:
    if isinstance(times, (int, float)):
        return [float(times)] * schedule.num_stages
    if len(times) != schedule.num_stages:
        raise ScheduleError(
            f"{len(times)} times were given for {schedule.num_stages} stages: give one for all or one each"
        )
    return [float(time) for time in times]


class _Action(NamedTuple):
    """An operation in the form that is quick to simulate."""

    worker: int
    code: str
    """F or FF for one or two micro-batches, B, I, W; S, or > for sends and < for receives."""
    stage: int
    size: int
    """Micro-batches."""
    message: int
    """The number of the message that is sent or received."""
    link: tuple[int, int]
    """From whom to whom it is."""


class _Run:
    """Takes all workers through their operations, in an order that does not depend on times."""

    def __init__(self, schedule: Schedule) -> None:
        workers = range(schedule.num_workers)
        self._actions = _actions(schedule)
        self.starts: list[list[float]] = [[] for _ in workers]
        self.ends: list[list[float]] = [[] for _ in workers]
        self.peaks = [0.0 for _ in workers]
        self.makespan = 0.0
        self.busy = 0.0
        self.syncs: defaultdict[int, dict[int, float]] = defaultdict(dict)
        """When each worker began to sum each stage: stage -> worker -> time."""

    def take(
        self,
        costs: dict[str, list[float]],
        changes: dict[str, list[float]],
        latency: float,
        transfer: list[float],
    ) -> None:
        """Fill in what becomes of them. Both `costs` and `changes` of what is held are by code and stage."""
        clocks = [0.0] * len(self.starts)
        held = [0.0] * len(self.starts)
        arrivals: dict[int, float] = {}
        link_free: defaultdict[tuple[int, int], float] = defaultdict(float)
        for worker, code, stage, size, message, link in self._actions:
            start = end = clocks[worker]
            if code == "<":
                end = max(start, arrivals[message])
            elif code == ">":
                link_free[link] = max(start, link_free[link]) + transfer[stage] * size
                arrivals[message] = link_free[link] + latency
            elif code == "S":
                self.syncs[stage][worker] = start
            else:
                end = start + costs[code][stage]
                self.busy += end - start
                self.makespan = max(self.makespan, end)
                held[worker] += changes[code][stage]
                self.peaks[worker] = max(self.peaks[worker], held[worker])
            clocks[worker] = end
            self.starts[worker].append(start)
            self.ends[worker].append(end)


def _actions(schedule: Schedule) -> list[_Action]:
    """All operations in an order in which they can be taken one after the other.

    A worker that lacks a message is set aside until that has been sent. Found once for each schedule, which keeps
    it, since schedules are simulated again and again with other times.
    """
    known: list[_Action] | None = schedule.__dict__.get("_actions")
    if known is not None:
        return known
    actions: list[_Action] = []
    positions = [0] * schedule.num_workers
    sent: dict[Operation, int] = {}
    waiting: dict[Operation, int] = {}
    ready = list(range(schedule.num_workers))
    while ready:
        worker = ready.pop()
        for operation in schedule.operations[worker][positions[worker] :]:
            code, stage, message, link = operation.kind.value, operation.stage, -1, (worker, worker)
            size = len(operation.micro_batches)
            if operation.kind in RECEIVES:
                if operation not in sent:
                    waiting[operation] = worker
                    break
                code, message = "<", sent[operation]
            elif operation.kind in SENDS:
                arriving = received(operation)
                code, message, link = ">", len(sent), (worker, schedule.peer_of(operation))
                stage = min(stage, arriving.stage)
                sent[arriving] = message
                if arriving in waiting:
                    ready.append(waiting.pop(arriving))
            elif operation.kind is Kind.FORWARD and size == 2:
                code = "FF"
            actions.append(_Action(worker, code, stage, size, message, link))
            positions[worker] += 1
    if waiting:
        stuck = ", ".join(f"worker {worker} for {operation}" for operation, worker in waiting.items())
        raise ScheduleError(f"the schedule {schedule.name!r} never ends: {stuck} waits for ever")
    schedule.__dict__["_actions"] = actions
    return actions


def _sync_ends(syncs: dict[int, dict[int, float]], durations: list[float], num_workers: int) -> tuple[float, ...]:
    """When each worker has the sums of all its stages, taking part in them one at a time in its order."""
    ends = [0.0] * num_workers
    for stage in sorted(syncs, key=lambda stage: (max(syncs[stage].values()), -stage)):
        start = max(max(syncs[stage].values()), *(ends[worker] for worker in syncs[stage]))
        for worker in syncs[stage]:
            ends[worker] = start + durations[stage]
    return tuple(ends)
