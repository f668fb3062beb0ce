"""Completes a schedule: adds messages between workers and the sums of gradients to the computations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from oakum_worker.parallel.pipeline.operations import RECEIVES, Kind, Operation, Schedule, received
from oakum_worker.parallel.pipeline.simulation import Span, simulate


def with_communication(
    name: str,
    num_micro_batches: int,
    placement: Sequence[Sequence[int]],
    computations: Iterable[Iterable[Operation]],
) -> Schedule:
    """Build a schedule from each worker's computations by adding sends, receives and gradient sums.

    `computations[worker]` are the worker's forward and backward passes in order. Raises `ScheduleError` if workers
    would wait for each other for ever. `validation.validate` checks whether the computations are the right ones.
    """
    schedule = Schedule(
        name=name,
        num_micro_batches=num_micro_batches,
        placement=tuple(tuple(workers) for workers in placement),
        operations=tuple(tuple(operations) for operations in computations),
    )
    return _with_syncs(_with_receives(_with_sends(schedule)))


def _with_sends(schedule: Schedule) -> Schedule:
    """Insert each send right after the computation whose result it carries. Returns the new schedule."""
    operations = []
    for worker, order in enumerate(schedule.operations):
        sending: list[Operation] = []
        for operation in order:
            sending.append(operation)
            message = _message(operation, schedule.num_stages)
            if message is not None and schedule.peer_of(message) != worker:
                sending.append(message)
        operations.append(tuple(sending))
    return replace(schedule, operations=tuple(operations))


def _message(operation: Operation, num_stages: int) -> Operation | None:
    """The send for the result of `operation`, if a neighbouring stage needs it; else None."""
    if operation.kind is Kind.FORWARD and operation.stage + 1 < num_stages:
        return Operation(Kind.SEND_ACTIVATION, operation.stage, operation.pipe, operation.micro_batches)
    if operation.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT) and operation.stage > 0:
        return Operation(Kind.SEND_GRADIENT, operation.stage, operation.pipe, operation.micro_batches)
    return None


def _with_receives(schedule: Schedule) -> Schedule:
    """Insert each receive before the first use of its message, after the receives of all earlier messages of
    the sender. Returns the new schedule.

    Two workers so receive messages in the order of sending, which NCCL demands because it has no tags.
    Receiving the earlier messages first delays no worker: they were sent before the one that is needed.
    """
    operations = []
    for worker, order in enumerate(schedule.operations):
        sent = {
            sender: [received(message) for message in schedule.messages(sender, worker)]
            for sender in range(schedule.num_workers)
        }
        places = {
            _need(message, number): (sender, place)
            for sender, messages in sent.items()
            for place, message in enumerate(messages)
            for number in message.micro_batches
        }
        num_read = dict.fromkeys(sent, 0)
        receiving: list[Operation] = []
        for operation in order:
            for number in operation.micro_batches:
                sender, place = places.get(_need(operation, number), (worker, -1))
                receiving += sent[sender][num_read[sender] : place + 1]
                num_read[sender] = max(num_read[sender], place + 1)
            receiving.append(operation)
        operations.append(tuple(receiving))
    return replace(schedule, operations=tuple(operations))


def _need(operation: Operation, number: int) -> tuple[bool, int, int, int] | None:
    """The data that a pass needs, or that a receive brings, for micro-batch `number`: (whether it is an
    activation, pipe, stage, micro-batch). None for other operations."""
    match operation.kind:
        case Kind.FORWARD | Kind.RECEIVE_ACTIVATION:
            return (True, operation.pipe, operation.stage, number)
        case Kind.BACKWARD | Kind.BACKWARD_INPUT | Kind.RECEIVE_GRADIENT:
            return (False, operation.pipe, operation.stage, number)
        case _:
            return None


def _with_syncs(schedule: Schedule) -> Schedule:
    """Insert the beginning of each gradient sum, by the rule "eager-sync-opt" (Chimera, arXiv:2107.06925,
    section 3.2). Returns the new schedule.

    The sum of a stage's gradients begins right after its last backward pass if the worker has idle time
    afterwards, by a simulation with B = 2F. Otherwise it begins after the worker's last computation, which it
    would only slow down. Deeper stages, which finish first, come first, so that all workers begin the sums in
    the same order.
    """
    spans = simulate(schedule, forward=1.0, backward=2.0).spans
    operations = []
    for worker, order in enumerate(schedule.operations):
        synced = list(order)
        earliest = 0
        held = sorted(schedule.stages_of(worker), key=lambda held: (-held[1], held[0]))
        for num_put_in, (pipe, stage) in enumerate(held):
            done = _num_until_done(order, pipe, stage)
            earliest = max(earliest, done if _is_idle_in(spans[worker][done:]) else len(order))
            synced.insert(earliest + num_put_in, Operation(Kind.SYNC, stage, pipe))
        operations.append(tuple(synced))
    return replace(schedule, operations=tuple(operations))


def _num_until_done(order: Sequence[Operation], pipe: int, stage: int) -> int:
    """Position in the worker's `order` after the stage's last backward pass and the send of its result."""
    return max(
        number
        for number, operation in enumerate(order, start=1)
        if (operation.pipe, operation.stage) == (pipe, stage) and operation.kind not in RECEIVES
    )


def _is_idle_in(spans: Sequence[Span]) -> bool:
    return any(span.end > span.start for span in spans if span.operation.kind in RECEIVES)
