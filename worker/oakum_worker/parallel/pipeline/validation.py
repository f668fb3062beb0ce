"""Checks that a schedule computes every micro-batch once and that it ends.

Sends do not wait for the receiver, and receives wait for their message. Whether a schedule ends then does not
depend on the operations' times.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator

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

_Result = tuple[str, int, int, int]
"""("a" for an activation or "g" for a gradient, pipe, stage that computed it, micro-batch)."""


def validate(schedule: Schedule) -> None:
    """Raise `ScheduleError`, which names the worker and the operation, unless the schedule obeys all rules:

    Each operation names a stage that its worker holds and micro-batches that exist. Each micro-batch goes through
    one pipe, and through each of its stages once forward and once backward (whole, or first for the inputs and
    then for the weights). The inputs of a computation are on its worker before it. Sends and receives between two
    workers match one to one in the same order. The gradients of each held stage are summed once, after its last
    backward pass, and workers that share several stages sum them in the same order. No worker waits for ever.
    """
    _check_placement(schedule)
    for worker, order in enumerate(schedule.operations):
        held = set(schedule.stages_of(worker))
        for operation in order:
            _check_operation(schedule, worker, operation, held)
    _check_computations(schedule)
    _check_syncs(schedule)
    _check_run(schedule)


def _error(schedule: Schedule, worker: int, operation: Operation, what: str) -> ScheduleError:
    return ScheduleError(f"schedule {schedule.name!r}: worker {worker}: {operation}: {what}")


def _check_placement(schedule: Schedule) -> None:
    for pipe, workers in enumerate(schedule.placement):
        if len(workers) != schedule.num_stages:
            raise ScheduleError(
                f"schedule {schedule.name!r}: pipe {pipe} has {len(workers)} stages and pipe 0 has "
                f"{schedule.num_stages}: each pipe needs the same"
            )
        for stage, worker in enumerate(workers):
            if not 0 <= worker < schedule.num_workers:
                raise ScheduleError(
                    f"schedule {schedule.name!r}: stage {stage} of pipe {pipe} is on worker {worker}, but workers "
                    f"are numbered 0 to {schedule.num_workers - 1}"
                )


def _check_operation(schedule: Schedule, worker: int, operation: Operation, held: set[tuple[int, int]]) -> None:
    """Raise `ScheduleError` if the operation alone breaks a rule: a stage that its worker does not hold,
    micro-batches that do not exist, a wrong number of them, or a wrong peer."""
    numbers = operation.micro_batches
    if (operation.pipe, operation.stage) not in held:
        raise _error(schedule, worker, operation, "the worker does not hold this stage")
    if any(not 0 <= number < schedule.num_micro_batches for number in numbers):
        raise _error(schedule, worker, operation, f"there are micro-batches 0 to {schedule.num_micro_batches - 1}")
    activations = (Kind.FORWARD, Kind.SEND_ACTIVATION, Kind.RECEIVE_ACTIVATION)
    allowed = (0,) if operation.kind is Kind.SYNC else (1, 2) if operation.kind in activations else (1,)
    if len(numbers) not in allowed:
        raise _error(schedule, worker, operation, f"has {len(numbers)} micro-batches, not {allowed}")
    if len(numbers) == 2 and numbers[1] != numbers[0] + 1:
        raise _error(schedule, worker, operation, "the two micro-batches are not consecutive")
    if operation.kind in SENDS | RECEIVES:
        _check_peer(schedule, worker, operation)


def _check_peer(schedule: Schedule, worker: int, operation: Operation) -> None:
    forwards = operation.kind in (Kind.SEND_ACTIVATION, Kind.RECEIVE_GRADIENT)
    if operation.stage == (schedule.num_stages - 1 if forwards else 0):
        raise _error(schedule, worker, operation, "there is no stage at the other end")
    if schedule.peer_of(operation) == worker:
        raise _error(schedule, worker, operation, "the other end is the same worker, which needs no message")


def _check_computations(schedule: Schedule) -> None:
    """Raise `ScheduleError` unless each micro-batch passes each stage of one pipe once forward and once
    backward."""
    counts: Counter[tuple[Kind, int, int, int]] = Counter()
    pipes: dict[int, int] = {}
    for worker, order in enumerate(schedule.operations):
        for operation in order:
            if operation.kind not in COMPUTATIONS:
                continue
            for number in operation.micro_batches:
                counts[operation.kind, operation.pipe, operation.stage, number] += 1
                if pipes.setdefault(number, operation.pipe) != operation.pipe:
                    raise _error(
                        schedule, worker, operation, f"the micro-batch is in pipe {pipes[number]} already"
                    )
    for number in range(schedule.num_micro_batches):
        if number not in pipes:
            raise ScheduleError(f"schedule {schedule.name!r}: micro-batch {number} is never computed")
        for stage, worker in enumerate(schedule.placement[pipes[number]]):
            _check_passes(schedule, worker, counts, (pipes[number], stage, number))


def _check_passes(
    schedule: Schedule,
    worker: int,
    counts: Counter[tuple[Kind, int, int, int]],
    where: tuple[int, int, int],
) -> None:
    pipe, stage, number = where
    forwards, whole = counts[(Kind.FORWARD, *where)], counts[(Kind.BACKWARD, *where)]
    inputs, weights = counts[(Kind.BACKWARD_INPUT, *where)], counts[(Kind.BACKWARD_WEIGHT, *where)]
    if forwards != 1:
        operation = Operation(Kind.FORWARD, stage, pipe, (number,))
        raise _error(schedule, worker, operation, f"is there {forwards} times, not once")
    if (whole, inputs, weights) not in ((1, 0, 0), (0, 1, 1)):
        operation = Operation(Kind.BACKWARD, stage, pipe, (number,))
        times = f"is there {whole} times whole, {inputs} times for inputs and {weights} times for weights"
        raise _error(schedule, worker, operation, f"{times}: it must be once, whole or both of its parts")


def _check_syncs(schedule: Schedule) -> None:
    orders = []
    for worker, order in enumerate(schedule.operations):
        begun: list[tuple[int, int]] = []
        for operation in order:
            held = (operation.pipe, operation.stage)
            if held in begun and operation.kind is Kind.SYNC:
                raise _error(schedule, worker, operation, "the stage's gradients are summed twice")
            if held in begun and operation.kind in COMPUTATIONS:
                raise _error(schedule, worker, operation, "comes after the sum of the stage's gradients has begun")
            if operation.kind is Kind.SYNC:
                begun.append(held)
        for pipe, stage in schedule.stages_of(worker):
            if (pipe, stage) not in begun:
                operation = Operation(Kind.SYNC, stage, pipe)
                raise _error(schedule, worker, operation, "is missing: the stage's gradients are never summed")
        orders.append([stage for _, stage in begun])
    _check_order_of_syncs(schedule, orders)


def _check_order_of_syncs(schedule: Schedule, orders: list[list[int]]) -> None:
    """Raise `ScheduleError` unless any two workers begin the sums of the stages that both hold in the same order.
    `orders[worker]` are the stages in the worker's order."""
    for worker, order in enumerate(orders):
        for other, others_order in enumerate(orders[:worker]):
            shared = set(order) & set(others_order)
            mine = [stage for stage in order if stage in shared]
            theirs = [stage for stage in others_order if stage in shared]
            if mine != theirs:
                raise ScheduleError(
                    f"schedule {schedule.name!r}: worker {worker} sums the stages {mine} in this order and worker "
                    f"{other} in the order {theirs}: they must take part in the same sums in the same order"
                )


def _check_run(schedule: Schedule) -> None:
    """Execute the schedule. Raises `ScheduleError` if a worker waits for ever or a message is never received."""
    runs = [_WorkerExecution(schedule, worker) for worker in range(schedule.num_workers)]
    mail: defaultdict[tuple[int, int], deque[Operation]] = defaultdict(deque)
    moved = True
    while moved:
        moved = sum(run.advance(mail) for run in runs) > 0
    _check_ended(schedule, [(run.worker, run.next) for run in runs if run.next is not None])
    for (sender, receiver), messages in mail.items():
        for message in messages:
            raise _error(schedule, sender, message, f"worker {receiver} never receives it")


def _check_ended(schedule: Schedule, stuck: list[tuple[int, Operation]]) -> None:
    """Raise `ScheduleError` if `stuck` names any worker, with the operation at which it waits for ever. A worker
    whose message is never sent is named first, as the likely cause."""
    for worker, operation in stuck:
        sent = [received(message) for message in schedule.messages(schedule.peer_of(operation), worker)]
        if operation not in sent:
            raise _error(schedule, worker, operation, "waits for ever: its message is never sent")
    for worker, operation in stuck:
        circle = ", ".join(f"worker {other} at {waiting}" for other, waiting in stuck if other != worker)
        raise _error(schedule, worker, operation, f"waits for ever, as do {circle}")


class _WorkerExecution:
    """Executes one worker's operations, as far as the messages of other workers allow."""

    def __init__(self, schedule: Schedule, worker: int) -> None:
        self.worker = worker
        self._schedule = schedule
        self._left: Iterator[Operation] = iter(schedule.operations[worker])
        self._results: set[_Result] = set()
        self.next = next(self._left, None)

    def advance(self, mail: defaultdict[tuple[int, int], deque[Operation]]) -> bool:
        """Execute operations until a message is missing; return whether any was executed."""
        moved = False
        while self.next is not None and self._take(self.next, mail):
            self.next = next(self._left, None)
            moved = True
        return moved

    def _take(self, operation: Operation, mail: defaultdict[tuple[int, int], deque[Operation]]) -> bool:
        if operation.kind in SENDS:
            self._require(operation, self._made_by(operation))
            mail[self.worker, self._schedule.peer_of(operation)].append(operation)
        elif operation.kind in RECEIVES:
            sender = self._schedule.peer_of(operation)
            if not mail[sender, self.worker]:
                return False
            message = mail[sender, self.worker].popleft()
            if received(message) != operation:
                what = f"the next message of worker {sender} is {message}: receive in the order of sending"
                raise _error(self._schedule, self.worker, operation, what)
            self._results |= self._made_by(message)
        elif operation.kind in COMPUTATIONS:
            self._require(operation, self._needs(operation))
            self._results |= self._made_by(operation)
        return True

    def _require(self, operation: Operation, results: set[_Result]) -> None:
        for kind, pipe, stage, number in sorted(results - self._results):
            name = {"a": "activation", "g": "gradient", "i": "backward pass for the inputs"}[kind]
            what = f"needs the {name} of micro-batch {number} from stage {stage} of pipe {pipe}, not there yet"
            raise _error(self._schedule, self.worker, operation, what)

    def _made_by(self, operation: Operation) -> set[_Result]:
        """The results that a computation produces, or the data that a send carries; empty for other operations."""
        pipe, stage = operation.pipe, operation.stage
        kinds = {
            Kind.FORWARD: "a",
            Kind.SEND_ACTIVATION: "a",
            Kind.BACKWARD: "g",
            Kind.BACKWARD_INPUT: "gi",
            Kind.SEND_GRADIENT: "g",
        }.get(operation.kind, "")
        return {(kind, pipe, stage, number) for kind in kinds for number in operation.micro_batches}

    def _needs(self, operation: Operation) -> set[_Result]:
        pipe, stage, last = operation.pipe, operation.stage, self._schedule.num_stages - 1
        match operation.kind:
            case Kind.FORWARD:
                sources = [("a", stage - 1)] if stage else []
            case Kind.BACKWARD_WEIGHT:
                sources = [("i", stage)]
            case _:
                sources = [("a", stage)] + ([("g", stage + 1)] if stage < last else [])
        return {(kind, pipe, source, number) for kind, source in sources for number in operation.micro_batches}
