"""Where the training thread waits for other ranks; `step_clock` recognises waits by this file's name.

All modules that communicate within steps wait here, so that a rank that waits for a hung rank does not count as
hung itself.

Collectives call methods of the group. torch's functions, such as `dist.all_reduce`, do not suit the groups of
`oakum_worker.parallel.subgroups`: to report an error, such as a lost rank, they look the group up among torch's
own groups, do not find it, and raise a `ValueError` instead.
"""

from __future__ import annotations

from datetime import timedelta
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from oakum_worker.torch_internals import begin_all_gather_flat, begin_reduce_scatter_flat

R = TypeVar("R")
# Long on purpose: the service or a broken connection tells of a lost peer, never this timeout, and a user's step
# may take minutes on one rank while the others wait in the collective.
COLLECTIVE_TIMEOUT = timedelta(hours=6)


def wait_for(work: Any) -> None:
    """Wait until a collective or a message, a `dist.Work` or a future of one, has ended. Raises `RuntimeError`
    when a rank is gone. With NCCL only the CUDA stream waits."""
    work.wait()


def wait_for_item(items: SimpleQueue[R]) -> R:
    """The next item of a queue into which another thread puts what other ranks send."""
    return items.get()


def wait_for_message(work: dist.Work, message: torch.Tensor, timeout: timedelta = COLLECTIVE_TIMEOUT) -> None:
    """Wait until a message has been sent or received. Raises `RuntimeError` when the peer is gone.

    gloo gets `timeout` explicitly; its default would be the short time for connecting. With NCCL only the CUDA
    stream waits.
    """
    work.wait() if message.is_cuda else work.wait(timeout)


def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Sum `tensor` over the group's ranks in place. Raises `RuntimeError` when a rank is gone."""
    wait_for(group.allreduce([tensor]))


def begin_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
    """Begin to sum `tensor` over the group's ranks in place. This, and waiting, raises `RuntimeError` when a rank
    is gone."""
    return group.allreduce([torch.view_as_real(tensor) if tensor.is_complex() else tensor])


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Every rank's tensor, by rank. Raises `RuntimeError` when a rank is gone."""
    gathered = [torch.empty_like(tensor) for _ in range(group.size())]
    wait_for(group.allgather([gathered], [tensor]))
    return gathered


def all_gather_flat(gathered: torch.Tensor, own: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Fill `gathered`, shape (ranks * n,), with all ranks' `own`, shape (n,), by rank. Raises `RuntimeError` when
    a rank is gone."""
    wait_for(begin_all_gather_flat(gathered, own, group))


def reduce_scatter_flat(own: torch.Tensor, summed: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Fill `own`, shape (n,), with this rank's part of the sum of all ranks' `summed`, shape (ranks * n,); NCCL
    only. Raises `RuntimeError` when a rank is gone."""
    wait_for(begin_reduce_scatter_flat(own, summed, group))
