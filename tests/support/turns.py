"""Ranks as threads of the test's process that take turns, and process groups in their common memory.

Each rank has torch's default generator in a state of its own, as a process has: by that state a step tells
whether it draws random numbers.

One thread runs until it has to wait for another, which then runs. So threads neither wait for Python's lock nor
wake each other in vain: sixteen ranks over gloo take five times as much CPU time for what they compute here. Ranks
that all wait for each other are told at once. Threads that a rank starts, such as those of neighbours' copies, run
beside that and may wait for one another, but no rank can wait for them.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

import torch
import torch.distributed as dist

from oakum_worker.parallel import waiting as rank_waits
from rank_threads import RankThreads
from waiting import DEADLINE_S

R = TypeVar("R")


class LostTurnError(RuntimeError):
    """Another rank has failed, or all ranks wait for each other."""


class _OwnThreads:
    """Waits for messages in the threads that need them: a rank hands its turn on where it waits."""

    def wait(self, works: Sequence[Any], timeout: timedelta) -> None:
        for work in works:
            work.wait(timeout)


class Turns:
    """Lets one of several threads run at a time."""

    def __init__(self, num_ranks: int) -> None:
        self._gates = [threading.Lock() for _ in range(num_ranks)]
        """Each is locked but for the moment in which its rank is let through."""
        for gate in self._gates:
            gate.acquire()
        self._reasons: list[Callable[[], bool] | None] = [lambda: True for _ in range(num_ranks)]
        """For each rank that waits, whether it has what it waits for; None for the one that runs and for those
        that have ended."""
        self._threads: dict[int, int] = {}
        """Rank -> its thread."""
        self._other_threads = threading.Condition()
        """Told of all that may be waited for; the threads that ranks have started wait with it."""
        self._lost = ""

    def run(self, function: Callable[[int], R]) -> list[R]:
        """Run `function(rank)` in a thread for each rank; returns the results. Raises the first rank's error."""
        size = len(self._gates)
        with patch.object(rank_waits, "_WAITERS", _OwnThreads()):
            threads = RankThreads(partial(self._as_rank, function), range(size))
            try:
                self._hand_on(size - 1)
                runs = threads.outcomes()
            except BaseException:  # the test's time is over: the ranks that wait must not go on amid another test
                self._lose("no longer waited for")
                raise
        errors = [error for run in runs if (error := run.exception())]
        for error in sorted(errors, key=lambda error: isinstance(error, LostTurnError)):
            raise error
        return [run.result() for run in runs]

    def wait_until(self, rank: int, there: Callable[[], bool]) -> None:
        """Let others run until `there` is true. Raises `LostTurnError` where it never will be."""
        if there():
            return
        if threading.get_ident() != self._threads[rank]:
            with self._other_threads:
                self._other_threads.wait_for(lambda: self._lost or there(), DEADLINE_S)
            if not there():
                raise LostTurnError(self._lost or f"not there within {DEADLINE_S:g} s")
            return
        self._reasons[rank] = there
        drawn = torch.get_rng_state()
        self._hand_on(rank)
        self._begin(rank)
        torch.set_rng_state(drawn)

    def tell(self) -> None:
        """Say that something has come that may be waited for."""
        with self._other_threads:
            self._other_threads.notify_all()

    def _as_rank(self, function: Callable[[int], R], rank: int) -> R:
        self._threads[rank] = threading.get_ident()
        drawn = torch.get_rng_state()
        self._begin(rank)
        torch.set_rng_state(drawn)
        try:
            result = function(rank)
        except BaseException as error:
            self._lose(f"rank {rank} has failed: {error!r}")
            raise
        self._hand_on(rank)
        return result

    def _begin(self, rank: int) -> None:
        self._gates[rank].acquire()
        if self._lost:
            raise LostTurnError(self._lost)

    def _hand_on(self, rank: int) -> None:
        size = len(self._gates)
        for other in ((rank + step) % size for step in range(1, size + 1)):
            reason = self._reasons[other]
            if reason is not None and reason():
                self._reasons[other] = None
                self._gates[other].release()
                return
        if waiting := [other for other, reason in enumerate(self._reasons) if reason is not None]:
            self._lose(f"ranks {waiting} wait for each other, or for ranks that have ended")

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        for gate in self._gates:
            if gate.locked():
                gate.release()
        self.tell()


@dataclass
class _Round:
    """One collective of a group."""

    given: list[Any]
    num_given: int = 0


@dataclass
class _Meeting:
    """What the members of a group have in common."""

    size: int
    rounds: dict[int, _Round] = field(default_factory=dict)
    """The collectives that some members have begun and others have not."""
    num_begun: list[int] = field(init=False)
    """Each member's collectives."""
    messages: dict[tuple[int, int, int], deque[torch.Tensor]] = field(default_factory=lambda: defaultdict(deque))
    """By sender, receiver and tag, as they were when they were sent."""

    def __post_init__(self) -> None:
        self.num_begun = [0] * self.size

    def give(self, place: int, value: Any) -> _Round:
        number = self.num_begun[place]
        self.num_begun[place] += 1
        found = self.rounds.setdefault(number, _Round([None] * self.size))
        found.given[place] = value
        found.num_given += 1
        if found.num_given == self.size:
            del self.rounds[number]
        return found


class Work:
    """A collective or message that has begun."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait: Callable[[], None] | None = wait

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the others and write what came of it. Raises `LostTurnError`."""
        if self._wait is not None:
            self._wait()
            self._wait = None
        return True


class MemoryGroup:
    """One member's end of a process group: the methods of `dist.ProcessGroup` that the worker calls.

    Sums are added up in the order of the members, so that all of them have the same bits.
    """

    def __init__(self, turns: Turns, meeting: _Meeting, rank: int, place: int) -> None:
        """`rank` is the thread, `place` its number in the group."""
        self._turns, self._meeting, self._rank, self._place = turns, meeting, rank, place

    def rank(self) -> int:
        """This member's number in the group."""
        return self._place

    def size(self) -> int:
        """How many members there are."""
        return self._meeting.size

    def allreduce(self, tensors: list[torch.Tensor], options: Any = None) -> Work:
        """Sum, or take the maximum, in place."""
        is_max = options is not None and options.reduceOp == dist.ReduceOp.MAX
        assert options is None or is_max or options.reduceOp == dist.ReduceOp.SUM
        (tensor,) = tensors

        def put(given: list[torch.Tensor]) -> None:
            stacked = torch.stack(given)
            tensor.copy_(stacked.amax(0) if is_max else stacked.sum(0))

        return self._collective(tensor.clone(), put)

    def allgather(self, gathered: list[list[torch.Tensor]], tensors: list[torch.Tensor], _: Any = None) -> Work:
        """Every member's tensor."""

        def put(given: list[torch.Tensor]) -> None:
            for place, value in zip(gathered[0], given, strict=True):
                place.copy_(value)

        return self._collective(tensors[0].clone(), put)

    def _allgather_base(self, made: torch.Tensor, own: torch.Tensor, _: Any = None) -> Work:
        return self._collective(own.clone(), lambda given: torch.cat(given, out=made))

    def alltoall_base(
        self, made: torch.Tensor, own: torch.Tensor, takes: list[int], gives: list[int], _: Any = None
    ) -> Work:
        """Give each member a piece of `own`, and get one from each."""
        parts = own.clone().split(gives or [len(own) // self.size()] * self.size())

        def put(given: list[tuple[torch.Tensor, ...]]) -> None:
            pieces = [theirs[self._place] for theirs in given]
            assert not takes or takes == [len(piece) for piece in pieces]
            made.copy_(torch.cat(pieces))

        return self._collective(parts, put)

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Work:
        """One member's tensor for all."""
        source = options.rootRank
        return self._collective(tensors[0].clone(), lambda given: tensors[0].copy_(given[source]))

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Work:
        """Send without waiting."""
        self._meeting.messages[self._place, to, tag].append(tensors[0].clone())
        self._turns.tell()
        return Work(lambda: None)

    def recv(self, tensors: list[torch.Tensor], of: int, tag: int) -> Work:
        """Receive the next message; messages go to the receivers in their order."""
        arrived = self._meeting.messages[of, self._place, tag]

        def take() -> None:
            self._turns.wait_until(self._rank, lambda: bool(arrived))
            tensors[0].copy_(arrived.popleft())

        return Work(take)

    def _collective(self, value: Any, put: Callable[[list[Any]], Any]) -> Work:
        found = self._meeting.give(self._place, value)
        self._turns.tell()

        def finish() -> None:
            self._turns.wait_until(self._rank, lambda: found.num_given == self.size())
            with torch.no_grad():
                put(found.given)

        return Work(finish)


class MemorySubgroups:
    """`Subgroups` of one of the ranks that take turns."""

    timeout = timedelta(seconds=1)
    node_sizes = ()

    def __init__(self, turns: Turns, meetings: dict[Any, _Meeting], rank: int) -> None:
        self._turns, self._meetings, self._rank = turns, meetings, rank

    def form(self, name: str, ranks: Sequence[int]) -> Any:
        """A group of these ranks, in this order; None for one alone."""
        if len(ranks) == 1:
            return None
        meeting = self._meetings.setdefault((name, tuple(ranks)), _Meeting(len(ranks)))
        return MemoryGroup(self._turns, meeting, self._rank, ranks.index(self._rank))


def in_turns(num_ranks: int, function: Callable[[int, MemorySubgroups], R]) -> list[R]:
    """Run `function(rank, subgroups)` in one thread for each rank, one at a time; returns each rank's result."""
    turns, meetings = Turns(num_ranks), dict[Any, _Meeting]()
    return turns.run(lambda rank: function(rank, MemorySubgroups(turns, meetings, rank)))
