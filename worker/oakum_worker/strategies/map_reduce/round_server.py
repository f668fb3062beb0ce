"""Serves the rounds of a generation from rank 0, beside what rank 0 itself maps.

A mapper sends a `Request` and gets an `Answer`. Two threads serve: one receives, the other decides by the round's
`Dealer` and sends. They run from when rank 0 begins a round until all ranks have their answer that this round is
over; so a slow mapper, rank 0 included, holds up neither the round nor the next ones: it gets the sums of the
rounds that it has missed when it asks. At most `MOST_BEHIND` rounds' sums are kept for it; then the others wait.
A third thread waits for a connection to break, as long as the generation lasts.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from oakum_worker.errors import GroupError
from oakum_worker.map_reduce.dealer import Dealer, Deliver, Map, Order
from oakum_worker.map_reduce.dealing import Share, even_shares
from oakum_worker.map_reduce.sums import Arrays, BlockSums
from oakum_worker.map_reduce.wire import from_bytes, to_bytes
from oakum_worker.parallel.step_engine import StepVotes
from oakum_worker.parallel.waiting import wait_for_item, wait_for_message, wait_for_messages

MOST_BEHIND = 4
"""Rounds that a slow rank may be behind the others."""
_MAP, _DELIVER, _OVER = range(3)
_HEAD = 7
_NEVER_SENT = 2
"""Tag of a message that no rank sends."""
_NOTHING = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True)
class Request:
    """What a mapper tells when it asks what to do."""

    rank: int
    round: int
    num_blocks: int
    votes: StepVotes
    mapped: int = 0
    """How many blocks of its last order it has mapped, from the first on."""
    delivered: np.ndarray | None = None
    """Nodes, as `wire.to_bytes` makes them."""

    def ask(self, group: dist.ProcessGroup) -> Answer:
        """Send it to rank 0, and return rank 0's answer. Raises `RuntimeError` when rank 0 is gone."""
        signal, flag = self.votes.numbers
        header = [self.rank, self.round, self.num_blocks, signal, flag, self.mapped]
        head = torch.zeros(_HEAD, dtype=torch.int64)
        # A send on a connection that breaks just then may never end, while a receive that has begun is told of it.
        answer = group.recv([head], 0, 0)
        sent = _begin_send(group, 0, header, _NOTHING if self.delivered is None else self.delivered)
        wait_for_messages([(answer, head), *sent])
        return _answer_of(head, group)

    @staticmethod
    def receive(group: dist.ProcessGroup) -> Request:
        """The next request of any rank. Raises `RuntimeError` when a rank is gone."""
        head = torch.zeros(_HEAD, dtype=torch.int64)
        wait_for_message(group.recv_anysource([head], 0), head)
        rank, number, num_blocks, signal, flag, mapped, length = head.tolist()
        delivered = _receive_bytes(group, rank, length) if length else None
        return Request(rank, number, num_blocks, StepVotes.of(signal, flag), mapped, delivered)


@dataclass(frozen=True)
class Over:
    """The server's answer to a rank's request when the round has ended: no block is left to compute."""

    round: int
    """Number of the round that has ended."""
    votes: StepVotes
    """Sums over the ranks that had begun the round when it ended."""
    counts: bool
    """Whether the votes of the rank that sent the request are part of `votes`."""
    total: np.ndarray
    """The statistics of all blocks, as `wire.to_bytes` makes them."""

    @property
    def statistics(self) -> Arrays:
        """The statistics of all blocks."""
        return next(iter(from_bytes(self.total).values()))


Answer = Map | Deliver | Over


@contextmanager
def no_lost_rank() -> Iterator[None]:
    """Context for sending and receiving, which raises its `RuntimeError` as `GroupError`; gloo's messages about a
    closed connection are too many to tell by their words."""
    try:
        yield
    except RuntimeError as error:
        raise GroupError(f"a rank was lost within a round of MapReduce: {error}") from error


def send_answer(answer: Answer, group: dist.ProcessGroup, rank: int) -> None:
    """Send an answer to a rank. Raises `RuntimeError` when it is gone."""
    if isinstance(answer, Over):
        head = [_OVER, answer.round, *answer.votes.numbers, int(answer.counts)]
        _send(group, rank, head, answer.total)
    elif isinstance(answer, Map):
        _send(group, rank, [_MAP], np.array(answer.blocks, dtype=np.int64).view(np.uint8))
    else:
        _send(group, rank, [_DELIVER], _NOTHING)


def _answer_of(head: torch.Tensor, group: dist.ProcessGroup) -> Answer:
    """The answer of this head, whose content is still to be received."""
    kind, number, signal, flag, counts, _, length = head.tolist()
    content = _receive_bytes(group, 0, length)
    if kind == _OVER:
        return Over(number, StepVotes.of(signal, flag), bool(counts), content)
    return Map(tuple(content.view(np.int64).tolist())) if kind == _MAP else Deliver()


def _send(group: dist.ProcessGroup, rank: int, head: list[int], content: np.ndarray) -> None:
    wait_for_messages(_begin_send(group, rank, head, content))


def _begin_send(
    group: dist.ProcessGroup, rank: int, head: list[int], content: np.ndarray
) -> list[tuple[dist.Work, torch.Tensor]]:
    """Begin to send a head and, if there is one, its content; returns what to wait for."""
    padded = [*head, *[0] * (_HEAD - 1 - len(head)), len(content)]
    messages = (torch.tensor(padded, dtype=torch.int64), torch.from_numpy(content))
    return [(group.send([message], rank, tag), message) for tag, message in enumerate(messages) if message.numel()]


def _receive_bytes(group: dist.ProcessGroup, rank: int, length: int) -> np.ndarray:
    content = torch.empty(length, dtype=torch.uint8)
    if length:
        wait_for_message(group.recv([content], rank, 1), content)
    return np.asarray(content.numpy())


class RoundServer:
    """The server of one generation. Rank 0's main thread calls its methods; the threads run while needed."""

    def __init__(
        self, group: dist.ProcessGroup, combine: Callable[[Arrays, Arrays], Arrays], patience_s: float
    ) -> None:
        """No mapper counts as slow before `patience_s`."""
        self._group, self._combine, self._patience_s = group, combine, patience_s
        self._pace_s: deque[float] = deque(maxlen=32)
        self._events: queue.SimpleQueue[Request | BaseException | None] = queue.SimpleQueue()
        self._own: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()
        self._permits: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """True to the receiving thread: receive one request; False: end."""
        self._changed = threading.Condition()
        """Guards all that follows, which both the main thread and the serving thread use."""
        self._serves = self._receives = self._is_closed = False
        self._failure: BaseException | None = None
        self._votes: dict[int, StepVotes] = {}
        self._over: dict[int, tuple[StepVotes, frozenset[int], np.ndarray]] = {}
        """Votes, who voted, and sums of the rounds of which a rank does not know yet that they are over."""
        self._sent: dict[int, tuple[int, ...]] = {}
        self._too_early: list[Request] = []

    def begin(self, number: int, num_blocks: int, shares: list[Share]) -> None:
        """Begin to serve, with round `number` of `num_blocks` blocks; `shares` says which rank maps which blocks.
        A later round begins when the first rank asks for it."""
        self._answered = [number - 1] * len(shares)
        """Each rank's newest round of which it knows that it is over."""
        self._open(number, num_blocks, shares)
        threading.Thread(target=self._watch, daemon=True, name="round watch").start()

    def answer(self, request: Request) -> Answer:
        """The answer to rank 0's own request. Raises what a thread has met: `GroupError` where a rank is gone, or
        what the job's `combine` has raised."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._events.put(request)
            if not self._serves:
                self._serves, self._permits = True, queue.SimpleQueue()
                for target, name in ((self._serve, "round server"), (self._receive, "round receiver")):
                    threading.Thread(target=target, args=(self._permits,), daemon=True, name=name).start()
        answer = wait_for_item(self._own)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def wait_until_all_know(self, number: int) -> None:
        """Wait until all ranks know that this round is over. Raises what a thread has met."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or min(self._answered) >= number)
            if self._failure is not None and min(self._answered) < number:
                raise self._failure

    def close(self) -> tuple[int, BlockSums] | None:
        """End serving. Returns the number and the sums of the round that is not over, if there is one."""
        with self._changed:
            self._is_closed = True
            self._events.put(None)
            return None if self._dealer.is_complete else (self._round, self._dealer.sums)

    def _open(self, number: int, num_blocks: int, shares: list[Share]) -> None:
        now_s = time.monotonic()
        self._round, self._votes = number, {}
        self._dealer = Dealer(num_blocks, shares, self._combine, self._pace_s, self._patience_s, now_s)

    def _receive(self, permits: queue.SimpleQueue[bool]) -> None:
        try:
            with no_lost_rank():
                while permits.get():
                    self._events.put(Request.receive(self._group))
        except GroupError as error:
            self._events.put(error)

    def _watch(self) -> None:
        """Wait until a connection breaks, and have the serving thread know. gloo does not tell a receive from any
        rank, but one from a given rank; when a rank is lost, all connections of the generation are broken."""
        never = torch.zeros(1)
        try:
            with no_lost_rank():
                wait_for_message(self._group.recv([never], 1, _NEVER_SENT), never)
        except GroupError as error:
            self._events.put(error)

    def _serve(self, permits: queue.SimpleQueue[bool]) -> None:
        try:
            while self._serve_once():
                pass
        except BaseException as error:  # of the job's `combine`, or of a lost rank: rank 0's main thread raises it
            with self._changed:
                self._failure = error
                self._own.put(error)
                self._changed.notify_all()
        permits.put(False)

    def _serve_once(self) -> bool:
        """Serve one request, or look for slow mappers. Returns whether to go on."""
        with self._changed:
            if not self._is_needed():
                self._serves = False
                return False
            self._let_receive()
            look_s = self._dealer.next_look_s
        try:
            event = self._events.get(timeout=None if look_s is None else max(look_s - time.monotonic(), 0))
        except queue.Empty:
            event = None
        if isinstance(event, BaseException):
            raise event
        with self._changed:
            if self._is_closed:
                return False
            if event is not None and event.rank:
                self._receives = False
            answers = self._answers_to(event) if event is not None else self._answers_to_idle()
        # Rank 0 last: its process may end after its last round.
        for rank, answer in sorted(answers, key=lambda one: one[0] == 0):
            if rank:
                with no_lost_rank():
                    send_answer(answer, self._group, rank)
            else:
                self._own.put(answer)
        with self._changed:
            for rank, answer in answers:
                if isinstance(answer, Over):
                    self._answered[rank] = answer.round
            self._changed.notify_all()
        return True

    def _is_needed(self) -> bool:
        """Whether a rank may yet ask, whom rank 0's main thread would not serve by its own next request."""
        if self._is_closed:
            return False
        return (
            min(self._answered) < self._round
            or self._receives
            or bool(self._too_early)
            or not self._events.empty()
        )

    def _let_receive(self) -> None:
        """Let the receiving thread receive one request, unless it already may or no rank can send one now."""
        parked = {0, *self._dealer.idle, *(request.rank for request in self._too_early)}
        if not self._receives and len(parked) < len(self._answered):
            self._receives = True
            self._permits.put(True)

    def _answers_to(self, request: Request) -> list[tuple[int, Answer]]:
        if request.round in self._over:
            return self._late_answers(request)
        if request.round > self._round:
            if request.round - 1 - min(self._answered) >= MOST_BEHIND:
                self._too_early.append(request)
                return []
            self._open(request.round, request.num_blocks, even_shares(request.num_blocks, len(self._answered)))
        self._votes.setdefault(request.rank, request.votes)
        if request.delivered is not None:
            order = self._dealer.take(request.rank, from_bytes(request.delivered), time.monotonic())
        else:
            mapped = self._sent.get(request.rank, ())[: request.mapped]
            order = self._dealer.ask(request.rank, mapped, time.monotonic())
        if self._dealer.is_complete:
            return self._end_round(request.rank)
        return [*self._orders({request.rank: order}), *self._answers_to_idle()]

    def _answers_to_idle(self) -> list[tuple[int, Answer]]:
        return self._orders(self._dealer.orders_at(time.monotonic()))

    def _orders(self, orders: dict[int, Order]) -> list[tuple[int, Answer]]:
        for rank, order in orders.items():
            self._sent[rank] = order.blocks if isinstance(order, Map) else ()
        return [(rank, order) for rank, order in orders.items() if order is not None]

    def _end_round(self, rank: int) -> list[tuple[int, Answer]]:
        votes = StepVotes(*(sum(numbers) for numbers in zip(*self._votes.values(), strict=True)))
        known = min(self._answered)
        self._over = {number: sums for number, sums in self._over.items() if number > known}
        self._over[self._round] = votes, frozenset(self._votes), to_bytes({(0, 0): self._dealer.sums.total})
        ranks, self._dealer.idle = [rank, *self._dealer.idle], []
        return [(waiting, self._over_for(waiting, self._round)) for waiting in ranks]

    def _over_for(self, rank: int, number: int) -> Over:
        votes, voters, total = self._over[number]
        self._sent[rank] = ()
        return Over(number, votes, rank in voters, total)

    def _late_answers(self, request: Request) -> list[tuple[int, Answer]]:
        """To a mapper of a round that is over, and to those whose next round may begin once it knows."""
        answers: list[tuple[int, Answer]] = [(request.rank, self._over_for(request.rank, request.round))]
        self._answered[request.rank] = request.round
        early = self._too_early.copy()
        self._too_early.clear()
        for other in early:
            answers += self._answers_to(other)
        return answers
