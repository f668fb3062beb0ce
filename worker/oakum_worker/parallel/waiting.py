"""Where the training thread waits for other ranks; `step_clock` recognises waits by this file's name.

All modules that communicate within steps wait here, so that a rank that waits for a hung rank does not count as
hung itself.

gloo may lose the error of a broken connection: it does not fail the operation whose message is then being sent, or
has arrived in part, and the wait for it would last until the timeout. So no wait here outlasts the connections
(`give_up_where`). gloo can be asked in turns whether a collective has ended. A message cannot be waited for in
turns, because a wait for one that times out closes all connections of its group; another thread waits for it.

Collectives call methods of the group. torch's functions, such as `dist.all_reduce`, do not suit the groups of
`oakum_worker.parallel.subgroups`: to report an error, such as a lost rank, they look the group up among torch's
own groups, do not find it, and raise a `ValueError` instead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from oakum_worker.errors import GroupError
from oakum_worker.parallel import nccl
from oakum_worker.torch_internals import begin_all_gather_flat, begin_reduce_scatter_flat

R = TypeVar("R")
# Long on purpose: the service or a broken connection tells of a lost peer, never this timeout, and a user's step
# may take minutes on one rank while the others wait in the collective.
COLLECTIVE_TIMEOUT = timedelta(hours=6)
_TURN = timedelta(seconds=1)
"""Time between two looks at whether the connections of a wait are closed."""


class _Connections:
    """What is known of the connections over which this process waits for others."""

    def __init__(self) -> None:
        self.are_closed: Callable[[], bool] = lambda: False
        self.are_cut: Callable[[], bool] = lambda: False


_CONNECTIONS = _Connections()


def give_up_where(are_closed: Callable[[], bool], are_cut: Callable[[], bool] = lambda: False) -> None:
    """Tell how waits that begin from now on find out that they are in vain: by `are_closed()`, whether all
    connections to other ranks are closed. Such a wait raises `dist.DistNetworkError` within a second if gloo does
    not end it. `are_cut()` is whether they have been cut, for `refuse_void`. To be called for each generation."""
    _CONNECTIONS.are_closed, _CONNECTIONS.are_cut = are_closed, are_cut


def refuse_void(device: torch.device) -> None:
    """Wait until all collectives of tensors on `device` have ended, and raise `GroupError` if the generation is
    over by then: on GPUs collectives that were aborted raise nothing, and leave anything in their tensors. To be
    called before what other ranks have sent is read or relied on. Does nothing for a CPU, whose waits raise errors
    themselves."""
    nccl.synchronise(device)
    refuse_cut(device)


def refuse_cut(device: torch.device) -> None:
    """As `refuse_void`, without waiting for the device: after an error that what was void may have caused."""
    if nccl.orders(device) and _CONNECTIONS.are_cut():
        raise GroupError("the service ended the generation during a step: the results of its collectives are void")


def connect(group: dist.ProcessGroup, device: torch.device) -> None:
    """Connect the group's ranks for collectives of tensors on `device`. Collective, and nothing on a CPU.

    NCCL connects all ranks of a group at their first collective, and the host waits for the others there. So ranks
    whose first collectives are of different groups would wait for each other for ever. Raises `RuntimeError` when
    a rank is gone.
    """
    if nccl.orders(device):
        group.allreduce([torch.zeros(1, device=device)]).wait()


def connect_pair(group: dist.ProcessGroup, device: torch.device) -> None:
    """As `connect`, of a group of two ranks, for messages: NCCL connects a pair for these at their first one."""
    if nccl.orders(device):
        message, peer = torch.zeros(1, device=device), 1 - group.rank()
        (group.send if group.rank() == 0 else group.recv)([message], peer, 0).wait()


def wait_for(work: Any, tensor: torch.Tensor) -> None:
    """Wait until a collective on `tensor`, a `dist.Work` or a future of one, has ended. Raises `RuntimeError` when
    a rank is gone. With NCCL only the CUDA stream waits."""
    if nccl.orders(tensor.device) or isinstance(work, torch.futures.Future):
        work.wait()
        return
    are_closed = _CONNECTIONS.are_closed
    while not _has_ended(work):
        if are_closed():
            raise _lost()


def _has_ended(work: dist.Work) -> bool:
    """Wait for a collective for a turn. Returns whether it has ended. Raises `RuntimeError` if it has failed."""
    began_s = time.monotonic()
    try:
        work.wait(_TURN)
    except RuntimeError:
        if time.monotonic() < began_s + _TURN.total_seconds():
            raise
        if not work.is_completed():
            return False
        work.wait()  # raises if it has failed between the turn's end and the question
    return True


def wait_for_item(items: SimpleQueue[R]) -> R:
    """The next item of a queue into which another thread puts what other ranks send."""
    return items.get()


def wait_for_message(work: dist.Work, message: torch.Tensor, timeout: timedelta = COLLECTIVE_TIMEOUT) -> None:
    """Wait until a message has been sent or received; see `wait_for_messages`."""
    wait_for_messages([(work, message)], timeout)


def wait_for_messages(
    messages: Sequence[tuple[dist.Work, torch.Tensor]], timeout: timedelta = COLLECTIVE_TIMEOUT
) -> None:
    """Wait until all of the messages have been sent or received. Each is a pair: the operation, and the tensor
    that it sends or fills. Raises `RuntimeError` when a peer is gone.

    Each message between CPUs may take `timeout`; gloo's default would be the short time for connecting. For
    messages between GPUs only the CUDA stream waits.
    """
    on_wire = []
    for work, message in messages:
        if nccl.orders(message.device):
            work.wait()
        else:
            on_wire.append(work)
    if on_wire:
        _WAITERS.wait(on_wire, timeout)


class _Waiters:
    """A pool of threads that wait for messages on behalf of others. A thread that needs a message can so give it
    up, although nothing interrupts gloo's wait: a thread of the pool then stays in it until the process ends."""

    def __init__(self) -> None:
        self._idle: SimpleQueue[_Waiter] = SimpleQueue()

    def wait(self, works: Sequence[dist.Work], timeout: timedelta) -> None:
        """Wait until all messages have been sent or received. Raises `RuntimeError` when a peer is gone."""
        try:
            waiter = self._idle.get_nowait()
        except Empty:
            waiter = _Waiter()
        are_closed = _CONNECTIONS.are_closed
        waiter.orders.put((works, timeout))
        while True:
            try:
                error = waiter.answers.get(timeout=_TURN.total_seconds())
                break
            except Empty:
                if are_closed():
                    raise _lost() from None
        self._idle.put(waiter)
        if error is not None:
            raise error


class _Waiter:
    """A thread that waits for the messages of one order after another."""

    def __init__(self) -> None:
        self.orders: SimpleQueue[tuple[Sequence[dist.Work], timedelta]] = SimpleQueue()
        self.answers: SimpleQueue[RuntimeError | None] = SimpleQueue()
        """For each order: the error of the first message that failed; None when all have ended."""
        threading.Thread(target=self._serve, daemon=True, name="messages").start()

    def _serve(self) -> None:
        while True:
            self.answers.put(_first_error(*self.orders.get()))


def _first_error(works: Sequence[dist.Work], timeout: timedelta) -> RuntimeError | None:
    """Wait for messages. Returns the error of the first one that fails, without waiting for the others; None when
    all have ended. A function of its own, so that nothing refers to their memory any more when it returns."""
    try:
        for work in works:
            work.wait(timeout)
    except RuntimeError as error:
        return error
    return None


_WAITERS = _Waiters()


def _lost() -> dist.DistNetworkError:
    return dist.DistNetworkError("the connection to another rank was closed before its message had come")


def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Sum `tensor` over the group's ranks in place. Raises `RuntimeError` when a rank is gone."""
    wait_for(group.allreduce([tensor]), tensor)


def broadcast(tensor: torch.Tensor, group: dist.ProcessGroup, source: int) -> None:
    """Fill `tensor` on all ranks of the group with that of rank `source`. Raises `RuntimeError` when a rank is
    gone."""
    options = dist.BroadcastOptions()
    options.rootRank = source
    wait_for(group.broadcast([tensor], options), tensor)


def begin_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
    """Begin to sum `tensor` over the group's ranks in place. This, and waiting, raises `RuntimeError` when a rank
    is gone."""
    return group.allreduce([torch.view_as_real(tensor) if tensor.is_complex() else tensor])


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Every rank's tensor, by rank. Raises `RuntimeError` when a rank is gone."""
    gathered = [torch.empty_like(tensor) for _ in range(group.size())]
    wait_for(group.allgather([gathered], [tensor]), tensor)
    return gathered


def all_gather_flat(gathered: torch.Tensor, own: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Fill `gathered`, shape (ranks * n,), with all ranks' `own`, shape (n,), by rank. Raises `RuntimeError` when
    a rank is gone."""
    wait_for(begin_all_gather_flat(gathered, own, group), own)


def reduce_scatter_flat(own: torch.Tensor, summed: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Fill `own`, shape (n,), with this rank's part of the sum of all ranks' `summed`, shape (ranks * n,); NCCL
    only. Raises `RuntimeError` when a rank is gone."""
    wait_for(begin_reduce_scatter_flat(own, summed, group), own)
