"""AxoNN's engine: a stage takes whatever message arrives first, without a schedule.

Source: Singh and Bhatele, IPDPS 2022, arXiv:2110.13005. The first stage injects min(limit, N) of the N
micro-batches, and one more for each gradient that comes back to it. A middle stage waits for activations from the
stage before or gradients from the stage behind, computes the pass and sends the result on. The last stage computes
the loss and the backward pass at once. So at most `limit` micro-batches are in flight, and a stage that is late
delays only the stages that wait for it.

On each link messages arrive in the order of sending, but how forward and backward passes alternate depends on
timing. Therefore the number of the micro-batch is sent ahead of each message. One thread for each direction
receives, because gloo cannot tell whether a message has arrived without waiting for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from oakum_worker.chain import Chain, Values
from oakum_worker.errors import ScheduleError
from oakum_worker.parallel import nccl
from oakum_worker.parallel.pipeline.engine import MicroBatches
from oakum_worker.parallel.pipeline.links import PeerLinks
from oakum_worker.parallel.pipeline.messages import BoundaryTensors
from oakum_worker.parallel.pipeline.operations import Kind, Operation, Schedule
from oakum_worker.parallel.pipeline.scheduled import Observer
from oakum_worker.parallel.pipeline.stages import Stage, Tensors

_R = TypeVar("_R")


class _Arrival(NamedTuple):
    """A received message, or the error that occurred instead."""

    number: int = -1
    values: Values | None = None
    is_gradient: bool = False
    error: Exception | None = None


class MessageDrivenEngine:
    """A `WorkerEngine` whose workers hold one stage each and process messages in the order of arrival."""

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
        limit: int | None = None,
        observe: Observer | None = None,
    ) -> None:
        """`schedule` gives the number of micro-batches and the placement, which must be stage s on worker s.

        At most `limit` micro-batches are in flight at once; by default as many as there are stages. Raises
        `ScheduleError` for another placement.
        """
        if schedule.placement != (tuple(range(schedule.num_workers)),):
            raise ScheduleError(
                f"message-driven workers hold one stage each, in their order, not {schedule.placement}: give it "
                "a schedule with one stage on each worker"
            )
        if limit is not None and limit < 1:
            raise ScheduleError(f"at least 1 micro-batch must be in flight, not {limit}")
        self._worker = worker
        self._num_micro_batches = schedule.num_micro_batches
        self._limit = min(limit or schedule.num_stages, schedule.num_micro_batches)
        self._stage = Stage(chain, cuts[worker], recompute=recompute)
        self._links = links
        self._sync = sync
        self._observe = observe
        self.num_received = 0
        """Number of messages received in the last step."""
        self._num_answered = 0
        self.max_live = 0
        """Largest number of micro-batches whose activations this worker held at once."""

    def run(self, work: MicroBatches) -> None:
        """Compute the step's passes in the order in which messages arrive, then begin to sum this worker's
        gradients, and wait until all sent messages have arrived.

        Raises `GroupError` if a peer is gone, and whatever the task's code raises. A thread may then still wait
        for a peer; it ends when the group is cut.
        """
        self._stage.clear()
        self.num_received = self._num_answered = 0
        arrivals: SimpleQueue[_Arrival] = SimpleQueue()
        threads = self._listen(work, arrivals)
        if self._stage.is_first:
            self._inject(work, arrivals)
        else:
            self._serve(work, arrivals)
        for thread in threads:
            thread.join()
        self._timed(Kind.SYNC, (), lambda: self._sync(self._worker))
        self._links.settle()

    def _inject(self, work: MicroBatches, arrivals: SimpleQueue[_Arrival]) -> None:
        """Run the first stage: inject micro-batches and process the gradients that come back."""
        for number in range(self._limit):
            self._forward(work, number, None)
        for following in range(self._limit, self._limit + self._num_micro_batches):
            if not self._stage.is_last:
                arrival = self._next(arrivals)
                self._backward(work, arrival.number, arrival.values)
            if following < self._num_micro_batches:
                self._forward(work, following, None)

    def _serve(self, work: MicroBatches, arrivals: SimpleQueue[_Arrival]) -> None:
        """Run any other stage, until every micro-batch has passed forward and backward."""
        num_back = 0
        while num_back < self._num_micro_batches:
            arrival = self._next(arrivals)
            if arrival.is_gradient:
                self._backward(work, arrival.number, arrival.values)
            else:
                # As many micro-batches have come back to the first stage, so it has received as many gradients
                # before.
                self._links.release(self._worker - 1, 2 * max(0, arrival.number + 1 - self._limit))
                self._forward(work, arrival.number, arrival.values)
            num_back += arrival.is_gradient or self._stage.is_last

    def _forward(self, work: MicroBatches, number: int, inputs: Values | None) -> None:
        def compute() -> Values | None:
            return self._stage.forward(work, number, inputs)

        outputs = self._timed(Kind.FORWARD, (number,), compute)
        self.max_live = max(self.max_live, self._stage.num_live)
        if outputs is None:
            self._backward(work, number, ())
        else:
            self._send(self._worker + 1, work, number, outputs, is_gradient=False)

    def _backward(self, work: MicroBatches, number: int, gradients: Values | None) -> None:
        assert isinstance(gradients, tuple)

        def compute() -> Tensors:
            return self._stage.backward(work, number, gradients)

        of_inputs = self._timed(Kind.BACKWARD, (number,), compute)
        if not self._stage.is_first:
            self._send(self._worker - 1, work, number, of_inputs, is_gradient=True)

    def _send(self, peer: int, work: MicroBatches, number: int, values: Values, *, is_gradient: bool) -> None:
        self._links.send_number(peer, number)
        self._links.send(peer, self._part(work, number, peer, is_gradient=is_gradient), values)

    def _part(self, work: MicroBatches, number: int, peer: int, *, is_gradient: bool) -> BoundaryTensors:
        return BoundaryTensors(0, min(self._worker, peer), work.num_samples(number), is_gradient)

    def _next(self, arrivals: SimpleQueue[_Arrival]) -> _Arrival:
        arrival = arrivals.get()
        if arrival.error is not None:
            raise arrival.error
        self.num_received += 1
        if arrival.is_gradient:
            # The n-th gradient that comes back shows that n activations have arrived at the next stage.
            self._num_answered += 1
            self._links.release(self._worker + 1, 2 * self._num_answered)
        return arrival

    def _listen(self, work: MicroBatches, arrivals: SimpleQueue[_Arrival]) -> list[threading.Thread]:
        """Start the threads that receive the messages of both directions and put them into `arrivals`. Returns
        the threads."""
        before = [] if self._stage.is_first else [self._worker - 1]
        behind = [] if self._stage.is_last else [self._worker + 1]
        threads = [
            threading.Thread(target=self._hear, args=(peer, work, arrivals), daemon=True, name=f"from {peer}")
            for peer in before + behind
        ]
        for thread in threads:
            thread.start()
        return threads

    def _hear(self, peer: int, work: MicroBatches, arrivals: SimpleQueue[_Arrival]) -> None:
        is_gradient = peer > self._worker
        try:
            with nccl.OwnStream(self._links.device) as stream:
                for _ in range(self._num_micro_batches):
                    number = self._links.receive_number(peer)
                    self._links.expect(peer, [self._part(work, number, peer, is_gradient=is_gradient)])
                    values = self._links.receive(peer)
                    stream.hand_over(values if isinstance(values, tuple) else (values,))
                    arrivals.put(_Arrival(number, values, is_gradient))
        except Exception as error:  # for the training thread to raise
            arrivals.put(_Arrival(error=error))

    def _timed(self, kind: Kind, numbers: tuple[int, ...], compute: Callable[[], _R]) -> _R:
        begin_s = time.perf_counter()
        result = compute()
        if self._observe is not None:
            self._observe(Operation(kind, self._worker, 0, numbers), begin_s, time.perf_counter())
        return result
