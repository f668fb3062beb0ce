"""How long a schedule takes and what it holds, from the times of its operations.

Times are in any one unit. `validate` says whether a schedule computes the right thing; this says how fast.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.pipeline.operations import (
    COMPUTATIONS,
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

    spans: tuple[tuple[Span, ...], ...]
    """spans[worker], in the worker's order."""
    peak_activations: tuple[float, ...]
    """For each worker the most that it held at once: micro-batches between their forward and the end of their
    backward, each weighted with its stage's `activation`; by default a count of micro-batches (Ma)."""
    sync_ends: tuple[float, ...]
    """For each worker when the gradients of all its stages were summed."""

    @property
    def num_workers(self) -> int:
        """Ranks of the replica."""
        return len(self.spans)

    @property
    def makespan(self) -> float:
        """When the last computation of any worker ended."""
        return max((span.end for span in self._computations()), default=0.0)

    @property
    def busy(self) -> float:
        """Time in which workers computed, summed over them."""
        return sum(span.end - span.start for span in self._computations())

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
        makespan = self.makespan
        return tuple(max(0.0, end - makespan) for end in self.sync_ends)

    @property
    def step(self) -> float:
        """When all is computed and summed."""
        return self.makespan + max(self.unoverlapped, default=0.0)

    def _computations(self) -> list[Span]:
        return [span for worker in self.spans for span in worker if span.operation.kind in COMPUTATIONS]


def simulate(
    schedule: Schedule,
    forward: Times = 1.0,
    backward: Times = 2.0,
    *,
    doubled: Times | None = None,
    input_share: float = 0.5,
    latency: float = 0.0,
    transfer: float = 0.0,
    sync: Times = 0.0,
    activation: Times = 1.0,
) -> Simulation:
    """Take every worker through its operations, each as soon as the worker is free and its messages are there.

    `forward` and `backward` are of one micro-batch through one stage; a forward pass of two takes `doubled`, by
    default twice `forward`. Of a split backward pass the part for the inputs takes `input_share`. A message needs
    `transfer` for each micro-batch in it and arrives `latency` later; messages from one worker to another go one
    after the other, and sending costs the sender no time. `sync` is how long summing a stage's gradients takes
    once all its holders have begun; a worker takes part in one sum at a time.
    Raises `ScheduleError` if workers wait for each other for ever.
    """
    stages = schedule.num_stages
    forwards = _by_stage(forward, stages)
    costs = _Costs(
        forward=forwards,
        doubled=[2 * time for time in forwards] if doubled is None else _by_stage(doubled, stages),
        backward=_by_stage(backward, stages),
        input_share=input_share,
    )
    spans = _run(schedule, costs, latency, transfer)
    return Simulation(
        spans=tuple(tuple(worker) for worker in spans),
        peak_activations=_peaks(schedule, _by_stage(activation, stages)),
        sync_ends=_sync_ends(schedule, spans, _by_stage(sync, stages)),
    )


@dataclass(frozen=True)
class _Costs:
    forward: list[float]
    doubled: list[float]
    backward: list[float]
    input_share: float

    def of(self, operation: Operation) -> float:
        """How long the worker is at an operation that waits for nobody."""
        stage = operation.stage
        match operation.kind:
            case Kind.FORWARD:
                return (self.doubled if len(operation.micro_batches) == 2 else self.forward)[stage]
            case Kind.BACKWARD:
                return self.backward[stage]
            case Kind.BACKWARD_INPUT:
                return self.backward[stage] * self.input_share
            case Kind.BACKWARD_WEIGHT:
                return self.backward[stage] * (1 - self.input_share)
            case _:
                return 0.0


def _by_stage(times: Times, num_stages: int) -> list[float]:
    if isinstance(times, (int, float)):
        return [float(times)] * num_stages
    if len(times) != num_stages:
        raise ScheduleError(f"{len(times)} times were given for {num_stages} stages: give one for all or one each")
    return [float(time) for time in times]


def _run(schedule: Schedule, costs: _Costs, latency: float, transfer: float) -> list[list[Span]]:
    """Each worker's spans. A worker that lacks a message is set aside until it has been sent."""
    spans: list[list[Span]] = [[] for _ in range(schedule.num_workers)]
    clocks = [0.0] * schedule.num_workers
    arrivals: dict[Operation, float] = {}
    link_free: defaultdict[tuple[int, int], float] = defaultdict(float)
    waiting: dict[Operation, int] = {}
    ready = list(range(schedule.num_workers))
    while ready:
        worker = ready.pop()
        order = schedule.operations[worker]
        for operation in order[len(spans[worker]) :]:
            start = clocks[worker]
            if operation.kind in RECEIVES:
                if operation not in arrivals:
                    waiting[operation] = worker
                    break
                clocks[worker] = max(start, arrivals[operation])
            elif operation.kind in SENDS:
                message, receiver = received(operation), schedule.peer_of(operation)
                sent = max(start, link_free[worker, receiver]) + transfer * len(operation.micro_batches)
                link_free[worker, receiver] = sent
                arrivals[message] = sent + latency
                if message in waiting:
                    ready.append(waiting.pop(message))
            else:
                clocks[worker] = start + costs.of(operation)
            spans[worker].append(Span(operation, start, clocks[worker]))
    if waiting:
        stuck = ", ".join(f"worker {worker} for {operation}" for operation, worker in waiting.items())
        raise ScheduleError(f"the schedule {schedule.name!r} never ends: {stuck} waits for ever")
    return spans


def _peaks(schedule: Schedule, activation: list[float]) -> tuple[float, ...]:
    """The most that each worker holds at once, which its order alone decides."""
    peaks = []
    for order in schedule.operations:
        held = peak = 0.0
        for operation in order:
            if operation.kind is Kind.FORWARD:
                held += activation[operation.stage] * len(operation.micro_batches)
                peak = max(peak, held)
            elif operation.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
                held -= activation[operation.stage] * len(operation.micro_batches)
        peaks.append(peak)
    return tuple(peaks)


def _sync_ends(schedule: Schedule, spans: list[list[Span]], sync: list[float]) -> tuple[float, ...]:
    """When each worker has the sums of all its stages, taking part in them one at a time in its order."""
    begun: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for worker, worker_spans in enumerate(spans):
        for span in worker_spans:
            if span.operation.kind is Kind.SYNC:
                begun[span.operation.stage][worker] = span.start
    ends = [0.0] * schedule.num_workers
    for stage in sorted(begun, key=lambda stage: (max(begun[stage].values()), -stage)):
        start = max(max(begun[stage].values()), *(ends[worker] for worker in begun[stage]))
        for worker in begun[stage]:
            ends[worker] = start + sync[stage]
    return tuple(ends)
