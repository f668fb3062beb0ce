"""Simulates a schedule: its duration and its memory, from the times of its operations.

All times are in one unit, whichever it is. `validation.validate` checks whether a schedule computes the right
thing.
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
"""One time for every stage, or a sequence with one time for each stage."""


@dataclass(frozen=True, slots=True)
class Span:
    """Begin and end of an operation on a worker. A receive lasts while the worker waits for the message."""

    operation: Operation
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """The simulation of one step of a replica."""

    schedule: Schedule
    starts: tuple[tuple[float, ...], ...]
    """starts[worker][position] is the start time of an operation, in the worker's order."""
    ends: tuple[tuple[float, ...], ...]
    makespan: float
    """Time at which the last computation of any worker ended."""
    busy: float
    """Time spent computing, summed over the workers."""
    peak_activations: tuple[float, ...]
    """For each worker, the maximum memory of activations: each micro-batch counts its stage's `activation` from
    its forward pass to the end of its backward pass. By default a number of micro-batches (Ma in the Chimera
    paper)."""
    sync_ends: tuple[float, ...]
    """For each worker, the time at which the gradients of all its stages were summed."""

    @cached_property
    def spans(self) -> tuple[tuple[Span, ...], ...]:
        """spans[worker] are the spans of the worker's operations, in order."""
        return tuple(
            tuple(Span(*span) for span in zip(order, starts, ends, strict=True))
            for order, starts, ends in zip(self.schedule.operations, self.starts, self.ends, strict=True)
        )

    @property
    def num_workers(self) -> int:
        """Number of ranks of the replica."""
        return len(self.starts)

    @property
    def bubble_ratio(self) -> float:
        """Share of the workers' time until `makespan` in which they did not compute."""
        available = self.makespan * self.num_workers
        return (available - self.busy) / available if available else 0.0

    @property
    def unoverlapped(self) -> tuple[float, ...]:
        """For each worker, the time for which its gradient sums continued after the makespan.

        The largest is the last term of T = (F + p) C_f + (B + p) C_b + max_i unoverlapped_i (Chimera,
        arXiv:2107.06925, section 3.4). The paper estimates it; here it follows from the simulated bubbles.
        """
        return tuple(max(0.0, end - self.makespan) for end in self.sync_ends)

    @property
    def step(self) -> float:
        """Time at which all computations and gradient sums are done."""
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
    """Simulate a step in which each operation starts as soon as its worker is free and its messages have
    arrived. Returns when each operation ran, and what memory the workers held.

    `forward` and `backward` are the times of a pass of one micro-batch through one stage; a forward pass of two
    micro-batches takes `doubled`, by default twice `forward`. The parts of a split backward pass take `inputs`
    and `weights`, by default half of `backward` each; between them a micro-batch holds `split_activation` in
    addition. A message takes `transfer` (of the lower of its two stages) for each of its micro-batches, and
    arrives `latency` later; messages from one worker to another follow one another, and sending takes the
    sender no time. `sync` is the time of a stage's gradient sum after all its holders have begun it; a worker
    takes part in one sum at a time. Raises `ScheduleError` if workers wait for each other for ever.
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
    run = _SimulationState(schedule)
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
    """One operation of a worker: a pass, a gradient sum, or the sending or receiving of a message."""

    worker: int
    code: str
    """F or FF (forward of one or two micro-batches), B, I, W (backward whole or split), S (sync), > (send), <
    (receive)."""
    stage: int
    size: int
    """Number of micro-batches."""
    message: int
    """Number of the message that is sent or received."""
    link: tuple[int, int]
    """(sender, receiver) of the message."""


class _SimulationState:
    """A simulation in progress: the clocks and the memory of all workers. Actions are taken in an order that does
    not depend on times."""

    def __init__(self, schedule: Schedule) -> None:
        workers = range(schedule.num_workers)
        self._actions = _actions(schedule)
        self.starts: list[list[float]] = [[] for _ in workers]
        self.ends: list[list[float]] = [[] for _ in workers]
        self.peaks = [0.0 for _ in workers]
        self.makespan = 0.0
        self.busy = 0.0
        self.syncs: defaultdict[int, dict[int, float]] = defaultdict(dict)
        """Stage -> worker -> time at which the worker began the stage's gradient sum."""

    def take(
        self,
        costs: dict[str, list[float]],
        changes: dict[str, list[float]],
        latency: float,
        transfer: list[float],
    ) -> None:
        """Compute starts, ends and memory of all actions.

        `costs[code][stage]` is a time, `changes[code][stage]` the change of the worker's memory by such an action.
        """
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
    """All operations in an order in which each comes after the operations that it depends on.

    The order is cached with the schedule, because a schedule is simulated many times with different times. Raises
    `ScheduleError` if workers wait for each other for ever.
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
    """For each worker, the time at which its last gradient sum ends; 0 for a worker without sums.
    `syncs[stage][worker]` is when a worker begins the stage's sum, `durations[stage]` what the sum takes; a worker
    takes part in one sum at a time."""
    ends = [0.0] * num_workers
    for stage in sorted(syncs, key=lambda stage: (max(syncs[stage].values()), -stage)):
        start = max(max(syncs[stage].values()), *(ends[worker] for worker in syncs[stage]))
        for worker in syncs[stage]:
            ends[worker] = start + durations[stage]
    return tuple(ends)
