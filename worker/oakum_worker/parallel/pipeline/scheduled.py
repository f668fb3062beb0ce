"""Runs one worker's operations of a schedule, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from oakum_worker.chain import Chain, Values
from oakum_worker.parallel.pipeline.engine import MicroBatches
from oakum_worker.parallel.pipeline.links import PeerLinks
from oakum_worker.parallel.pipeline.messages import BoundaryTensors
from oakum_worker.parallel.pipeline.operations import RECEIVES, SENDS, Kind, Operation, Schedule
from oakum_worker.parallel.pipeline.stages import Stage, Tensors

Observer = Callable[[Operation, float, float], None]
"""Called after each operation with its begin and end in seconds of `time.perf_counter`."""


class ScheduledEngine:
    """A `WorkerEngine` that performs its worker's operations of a schedule in their order. The schedule has to be
    valid."""

    def __init__(
        self,
        schedule: Schedule,
        worker: int,
        chain: Chain,
        cuts: Sequence[range],
        links: PeerLinks,
        sync: Callable[[int], None],
        *,
        recompute: bool = False,
        observe: Observer | None = None,
    ) -> None:
        """`cuts[stage]` are the layers of a stage; `sync(stage)` begins to sum the stage's gradients."""
        self._operations = schedule.operations[worker]
        self._links = links
        self._sync = sync
        self._observe = observe
        held = sorted({stage for _, stage in schedule.stages_of(worker)})
        self._stages = {stage: Stage(chain, cuts[stage], recompute=recompute) for stage in held}
        self._peers = [
            schedule.peer_of(operation) if operation.kind in SENDS | RECEIVES else -1
            for operation in self._operations
        ]
        self._arrived = list(_arrived(schedule, worker))
        self._last_syncs = {o.stage: at for at, o in enumerate(self._operations) if o.kind == Kind.SYNC}
        # What a stage is to compute with next, by stage and micro-batch: whether it came from a neighbour on this
        # worker or in a message makes no difference, nor does whether it is used here or sent.
        self._activations: dict[tuple[int, int], Values] = {}
        self._gradients: dict[tuple[int, int], Tensors] = {}
        self.max_live = 0
        """Largest number of micro-batches, over all its stages, whose activations this worker held at once."""

    def run(self, work: MicroBatches) -> None:
        """Perform the worker's operations of one step in order, which adds to `p.grad` and begins to sum
        gradients, and wait until all sent messages have arrived. Raises `GroupError` if a peer is gone, and
        whatever the task's code raises."""
        self._clear()
        self._expect(work)
        for at, operation in enumerate(self._operations):
            begin_s = time.perf_counter()
            self._take(at, operation, work)
            if self._observe is not None:
                self._observe(operation, begin_s, time.perf_counter())
        self._links.settle()

    def _clear(self) -> None:
        self._activations.clear()
        self._gradients.clear()
        for stage in self._stages.values():
            stage.clear()

    def _expect(self, work: MicroBatches) -> None:
        """Announce all messages of the step to the links, so that receives are posted early."""
        expected: dict[int, list[BoundaryTensors]] = {}
        for operation, peer in zip(self._operations, self._peers, strict=True):
            if operation.kind in RECEIVES:
                expected.setdefault(peer, []).extend(_parts(operation, work))
        for peer, parts in expected.items():
            self._links.expect(peer, parts)

    def _take(self, at: int, operation: Operation, work: MicroBatches) -> None:
        match operation.kind:
            case Kind.FORWARD:
                self._forward(operation, work)
            case Kind.BACKWARD | Kind.BACKWARD_INPUT | Kind.BACKWARD_WEIGHT:
                self._backward(operation, work)
            case Kind.SEND_ACTIVATION | Kind.SEND_GRADIENT:
                self._send(operation, self._peers[at], work)
            case Kind.RECEIVE_ACTIVATION | Kind.RECEIVE_GRADIENT:
                self._receive(operation, self._peers[at], self._arrived[at])
            case Kind.SYNC:
                if self._last_syncs[operation.stage] == at:
                    self._sync(operation.stage)

    def _forward(self, operation: Operation, work: MicroBatches) -> None:
        stage = self._stages[operation.stage]
        for number in operation.micro_batches:
            inputs = None if stage.is_first else self._activations.pop((operation.stage, number))
            outputs = stage.forward(work, number, inputs)
            if outputs is not None:
                self._activations[operation.stage + 1, number] = outputs
        self.max_live = max(self.max_live, sum(stage.num_live for stage in self._stages.values()))

    def _backward(self, operation: Operation, work: MicroBatches) -> None:
        stage = self._stages[operation.stage]
        for number in operation.micro_batches:
            if operation.kind == Kind.BACKWARD_WEIGHT:
                stage.backward_weight(work, number)
                continue
            backward = stage.backward if operation.kind == Kind.BACKWARD else stage.backward_input
            gradients = () if stage.is_last else self._gradients.pop((operation.stage, number))
            of_inputs = backward(work, number, gradients)
            if not stage.is_first:
                self._gradients[operation.stage - 1, number] = of_inputs

    def _send(self, operation: Operation, peer: int, work: MicroBatches) -> None:
        for number, part in zip(operation.micro_batches, _parts(operation, work), strict=True):
            if part.is_gradient:
                self._links.send(peer, part, self._gradients.pop((operation.stage - 1, number)))
            else:
                self._links.send(peer, part, self._activations.pop((operation.stage + 1, number)))

    def _receive(self, operation: Operation, peer: int, num_arrived: int) -> None:
        for number in operation.micro_batches:
            values = self._links.receive(peer)
            if operation.kind == Kind.RECEIVE_ACTIVATION:
                self._activations[operation.stage, number] = values
            else:
                assert isinstance(values, tuple)
                self._gradients[operation.stage, number] = values
        self._links.release(peer, num_arrived)


def _parts(operation: Operation, work: MicroBatches) -> list[BoundaryTensors]:
    """The tensors that a send or a receive carries."""
    is_gradient = operation.kind in (Kind.SEND_GRADIENT, Kind.RECEIVE_GRADIENT)
    # The boundary's number is that of the stage before it.
    after_stage = operation.kind in (Kind.SEND_ACTIVATION, Kind.RECEIVE_GRADIENT)
    boundary = operation.stage if after_stage else operation.stage - 1
    return [
        BoundaryTensors(operation.pipe, boundary, work.num_samples(number), is_gradient)
        for number in operation.micro_batches
    ]


def _arrived(schedule: Schedule, worker: int) -> Iterator[int]:
    """For each operation of `worker`, how many of this worker's messages are known to have arrived once the
    operation is done: for a receive, as many as the sender had received before it sent. 0 for operations other
    than receives."""
    answers = {peer: list(_answers(schedule, peer, worker)) for peer in range(schedule.num_workers)}
    for operation in schedule.operations[worker]:
        is_receive = operation.kind in RECEIVES
        yield answers[schedule.peer_of(operation)].pop(0) if is_receive else 0


def _answers(schedule: Schedule, sender: int, receiver: int) -> Iterator[int]:
    """For each message from `sender` to `receiver`: how many messages of `receiver` the sender had received
    before."""
    num_received = 0
    for operation in schedule.operations[sender]:
        if operation.kind in RECEIVES and schedule.peer_of(operation) == receiver:
            num_received += len(operation.micro_batches)
        elif operation.kind in SENDS and schedule.peer_of(operation) == receiver:
            yield num_received
