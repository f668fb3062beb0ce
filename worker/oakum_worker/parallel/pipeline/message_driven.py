"""AxoNN's engine: no schedule, a stage takes what arrives first (Singh and Bhatele, IPDPS 2022, arXiv:2110.13005).

The first stage injects min(limit, N) micro-batches, and one more for each backward pass that comes back to it. A
stage in the middle waits for a forward pass from before or a backward pass from behind, takes it and sends on. The
last computes loss and backward pass at once. So at most `limit` micro-batches are on their way, and a stage that
is late for once holds up only those that wait for it.

Over one link forward passes come in their order, as do backward passes, but how the two mix depends on the times.
The number of the micro-batch therefore travels ahead of each message. A thread for each direction receives: gloo
does not tell whether a message has come without waiting for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from oakum_worker.chain import Chain, Values
from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.pipeline.engine import MicroBatches
from oakum_worker.parallel.pipeline.links import Links
from oakum_worker.parallel.pipeline.messages import Part
from oakum_worker.parallel.pipeline.operations import Kind, Operation, Schedule
from oakum_worker.parallel.pipeline.scheduled import Observer
from oakum_worker.parallel.pipeline.stages import Stage, Tensors

_R = TypeVar("_R")


class _Arrival(NamedTuple):
    """A message, or what kept it from coming."""

    number: int = -1
    values: Values | None = None
    is_gradient: bool = False
    error: Exception | None = None


class MessageDrivenEngine:
    """An `Engine` whose workers hold one stage each and take what comes first."""

    def __init__(
        self,
        schedule: Schedule,
        worker: int,
        chain: Chain,
        cuts: Sequence[range],
        links: Links,
        sync: Callable[[int], None],
        *,
        recompute: bool = False,
        limit: int | None = None,
        observe: Observer | None = None,
    ) -> None:
        """`schedule` tells the number of micro-batches and where the stages are: stage s on worker s.

        At most `limit` micro-batches are on their way at once, by default as many as there are stages. Raises
        `ScheduleError` where stages are placed otherwise.
        """
        if schedule.placement != (tuple(range(schedule.num_workers)),):
            raise ScheduleError(
                f"message-driven workers hold one stage each, in their order, not {schedule.placement}: give it "
                "a schedule of gpipe or 1f1b"
            )
        if limit is not None and limit < 1:
            raise ScheduleError(f"at least 1 micro-batch must be on its way, not {limit}")
        self._worker = worker
        self._num_micro_batches = schedule.num_micro_batches
        self._limit = min(limit or schedule.num_stages, schedule.num_micro_batches)
        self._stage = Stage(chain, cuts[worker], recompute=recompute)
        self._links = links
        self._sync = sync
        self._observe = observe
        self.num_received = 0
        """Messages of the last step."""
        self._num_answered = 0
        self.max_live = 0
        """The most micro-batches of which this worker kept something at once."""

    def run(self, work: MicroBatches) -> None:
        """See `Engine`. A thread that still waits for a peer when this raises ends as the group is cut."""
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
        """The first stage's part."""
        for number in range(self._limit):
            self._forward(work, number, None)
        for following in range(self._limit, self._limit + self._num_micro_batches):
            if not self._stage.is_last:
                arrival = self._next(arrivals)
                self._backward(work, arrival.number, arrival.values)
            if following < self._num_micro_batches:
                self._forward(work, following, None)

    def _serve(self, work: MicroBatches, arrivals: SimpleQueue[_Arrival]) -> None:
        """That of all others, until every micro-batch has come back."""
        num_back = 0
        while num_back < self._num_micro_batches:
            arrival = self._next(arrivals)
            if arrival.is_gradient:
                self._backward(work, arrival.number, arrival.values)
            else:
                # As many have come back to the first stage, so as many gradients have been received before this.
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

    def _part(self, work: MicroBatches, number: int, peer: int, *, is_gradient: bool) -> Part:
        return Part(0, min(self._worker, peer), work.num_samples(number), is_gradient)

    def _next(self, arrivals: SimpleQueue[_Arrival]) -> _Arrival:
        arrival = arrivals.get()
        if arrival.error is not None:
            raise arrival.error
        self.num_received += 1
        if arrival.is_gradient:
            # The n-th gradient to come back says that n activations have come on.
            self._num_answered += 1
            self._links.release(self._worker + 1, 2 * self._num_answered)
        return arrival

    def _listen(self, work: MicroBatches, arrivals: SimpleQueue[_Arrival]) -> list[threading.Thread]:
        """Take messages of both directions as they come."""
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
            for _ in range(self._num_micro_batches):
                number = self._links.receive_number(peer)
                self._links.expect(peer, [self._part(work, number, peer, is_gradient=is_gradient)])
                arrivals.put(_Arrival(number, self._links.receive(peer), is_gradient))
        except Exception as error:  # for the training thread to raise
            arrivals.put(_Arrival(error=error))

    def _timed(self, kind: Kind, numbers: tuple[int, ...], compute: Callable[[], _R]) -> _R:
        begin_s = time.perf_counter()
        result = compute()
        if self._observe is not None:
            self._observe(Operation(kind, self._worker, 0, numbers), begin_s, time.perf_counter())
        return result
