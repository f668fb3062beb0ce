"""A schedule that does not compute every micro-batch once, or never ends, is refused with the reason."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from cells import each
from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.pipeline.operations import Kind, Operation, Schedule
from oakum_worker.parallel.pipeline.schedules import build
from oakum_worker.parallel.pipeline.validation import validate

Order = list[Operation]


def changed(schedule: Schedule, worker: int, change: Callable[[Order], object]) -> Schedule:
    """The schedule with one worker's order changed in place."""
    orders = [list(order) for order in schedule.operations]
    change(orders[worker])
    return replace(schedule, operations=tuple(tuple(order) for order in orders))


def place(order: Order, kind: Kind, *numbers: int) -> int:
    """The index of an operation in a worker's order."""
    return next(
        i for i, operation in enumerate(order) if (operation.kind, operation.micro_batches) == (kind, numbers)
    )


def drop(kind: Kind, *numbers: int) -> Callable[[Order], object]:
    return lambda order: order.pop(place(order, kind, *numbers))


def swap(first: tuple[Kind, int], second: tuple[Kind, int]) -> Callable[[Order], object]:
    def change(order: Order) -> None:
        a, b = place(order, *first), place(order, *second)
        order[a], order[b] = order[b], order[a]

    return change


ONE_F_ONE_B = build("1f1b", num_workers=3, num_micro_batches=3)
"""Worker 1: RA0 F0 SA0 RA1 F1 SA1 RG0 B0 SG0 RA2 F2 SA2 RG1 B1 SG1 RG2 B2 SG2 S."""


@each(
    ("worker", "change", "message"),
    [
        (1, drop(Kind.FORWARD, 2), "worker 1: FORWARD of micro-batch 2 .* is there 0 times"),
        (1, drop(Kind.BACKWARD, 0), "worker 1: BACKWARD of micro-batch 0 .* 0 times whole"),
        (2, drop(Kind.RECEIVE_ACTIVATION, 2), "worker 2: FORWARD of micro-batch 2 .* needs the activation"),
        (
            1,
            drop(Kind.SEND_ACTIVATION, 0),
            "worker 2: RECEIVE_ACTIVATION of micro-batch 0 .* next message of worker 1",
        ),
        (1, drop(Kind.SEND_ACTIVATION, 2), "worker 2: RECEIVE_ACTIVATION of micro-batch 2 .* waits for ever"),
        (0, drop(Kind.RECEIVE_GRADIENT, 2), "worker 0: BACKWARD of micro-batch 2 .* needs the gradient"),
        (1, drop(Kind.SYNC), "worker 1: SYNC on stage 1 of pipe 0: is missing"),
        (1, lambda order: order.append(order[-1]), "worker 1: SYNC .* summed twice"),
        (1, lambda order: order.insert(-3, order.pop()), "worker 1: BACKWARD of micro-batch 2 .* after the sum"),
        (1, lambda order: order.append(order[1]), "worker 1: FORWARD of micro-batch 0 .* is there 2 times"),
        (
            1,
            swap((Kind.FORWARD, 2), (Kind.SEND_ACTIVATION, 2)),
            "worker 1: SEND_ACTIVATION of .* 2 .* not there yet",
        ),
        (
            1,
            swap((Kind.RECEIVE_ACTIVATION, 0), (Kind.RECEIVE_ACTIVATION, 1)),
            "worker 1: RECEIVE_ACTIVATION of micro-batch 1 .* next message of worker 0 is SEND_ACTIVATION .* 0",
        ),
        (
            0,
            swap((Kind.BACKWARD, 0), (Kind.FORWARD, 0)),
            "worker 0: BACKWARD .* needs the activation of micro-batch 0",
        ),
        (
            0,
            swap((Kind.FORWARD, 0), (Kind.FORWARD, 1)),
            "worker 0: SEND_ACTIVATION of micro-batch 0 .* not there yet",
        ),
        (1, lambda order: order.append(replace(order[1], stage=0)), "worker 1: .* does not hold this stage"),
        (1, lambda order: order.append(replace(order[1], micro_batches=(3,))), "there are micro-batches 0 to 2"),
        (1, lambda order: order.append(replace(order[1], micro_batches=(0, 2))), "are not consecutive"),
        (1, lambda order: order.append(replace(order[1], micro_batches=(0, 1, 2))), "has 3 micro-batches"),
        (
            0,
            lambda order: order.append(Operation(Kind.SEND_GRADIENT, 0, 0, (0,))),
            "worker 0: SEND_GRADIENT .* no stage at the other end",
        ),
    ],
)
def test_a_broken_order_is_refused_with_worker_operation_and_reason(
    worker: int, change: Callable[[Order], object], message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        validate(changed(ONE_F_ONE_B, worker, change))


def test_workers_that_wait_for_each_other_are_told_apart_from_those_that_end() -> None:
    late = changed(
        ONE_F_ONE_B, 0, lambda order: order.insert(0, order.pop(place(order, Kind.RECEIVE_GRADIENT, 0)))
    )
    with pytest.raises(
        ScheduleError, match=r"worker 0: RECEIVE_GRADIENT of micro-batch 0 .* waits for ever, as do worker 1"
    ):
        validate(late)


def test_a_message_that_nobody_receives_is_refused() -> None:
    extra = Operation(Kind.SEND_ACTIVATION, 0, 0, (2,))
    with pytest.raises(
        ScheduleError, match=r"worker 0: SEND_ACTIVATION of micro-batch 2 .* worker 1 never receives it"
    ):
        validate(changed(ONE_F_ONE_B, 0, lambda order: order.append(extra)))


def test_weight_gradients_before_input_gradients_are_refused() -> None:
    schedule = build("zero-bubble", num_workers=2, num_micro_batches=2)
    swapped = changed(schedule, 1, swap((Kind.BACKWARD_INPUT, 0), (Kind.BACKWARD_WEIGHT, 0)))
    with pytest.raises(ScheduleError, match=r"BACKWARD_WEIGHT .* needs the backward pass for the inputs"):
        validate(swapped)


def test_a_backward_pass_whole_and_in_parts_is_refused() -> None:
    schedule = build("zero-bubble", num_workers=2, num_micro_batches=2)
    with pytest.raises(ScheduleError, match=r"0 times for weights"):
        validate(changed(schedule, 1, drop(Kind.BACKWARD_WEIGHT, 0)))


def test_workers_that_sum_stages_in_different_orders_are_refused() -> None:
    schedule = build("chimera", num_workers=4, num_micro_batches=4)

    def swap_syncs(order: Order) -> None:
        first, second = (i for i, operation in enumerate(order) if operation.kind is Kind.SYNC)
        order[first], order[second] = order[second], order[first]

    with pytest.raises(
        ScheduleError, match=r"worker 2 sums the stages \[2, 1\] .* worker 1 in the order \[1, 2\]"
    ):
        validate(changed(schedule, 1, swap_syncs))


def test_a_micro_batch_in_two_pipes_is_refused() -> None:
    schedule = build("chimera", num_workers=2, num_micro_batches=2)
    both = changed(schedule, 0, lambda order: order.append(Operation(Kind.FORWARD, 1, 1, (0,))))
    with pytest.raises(ScheduleError, match=r"worker 0: FORWARD of micro-batch 0 .* in pipe 0 already"):
        validate(both)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (((0, 1, 5),), "stage 2 of pipe 0 is on worker 5"),
        (((0, 1, 2), (2, 1)), "pipe 1 has 2 stages and pipe 0 has 3"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(placement: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        validate(replace(ONE_F_ONE_B, placement=placement))


def test_stages_on_one_worker_send_each_other_nothing() -> None:
    schedule = build("interleaved", num_workers=1, num_micro_batches=2, stages_per_worker=2)
    validate(schedule)
    assert {operation.kind for operation in schedule.operations[0]} == {Kind.FORWARD, Kind.BACKWARD, Kind.SYNC}
    with pytest.raises(ScheduleError, match=r"the other end is the same worker"):
        validate(changed(schedule, 0, lambda order: order.append(Operation(Kind.SEND_ACTIVATION, 0, 0, (0,)))))
