"""Where the training thread waits for other ranks in the middle of a step; `step_clock` knows it by this file.

torch's functions for collectives, such as `dist.all_reduce`, are not for groups that are formed by themselves
(`oakum_worker.parallel.subgroups`): to report an error of such a group, a lost rank for one, they look it up among
those they know and raise a `ValueError` instead. A group's own methods take any group.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

# Long on purpose: a lost peer is found by the service's word or by a broken connection, never by this timeout,
# and a user's step may take minutes on one rank while the others wait in the collective.
COLLECTIVE_TIMEOUT = timedelta(hours=6)


def wait_for_message(work: dist.Work, message: torch.Tensor, timeout: timedelta = COLLECTIVE_TIMEOUT) -> None:
    """Until a message has been sent or received. Raises `RuntimeError` when the peer is gone.

    A wait for gloo's messages that names no time would end after the time that connecting was given. With NCCL it
    is the stream that waits.
    """
    work.wait() if message.is_cuda else work.wait(timeout)


def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Sum over the group's ranks, in place. Raises `RuntimeError` when one is gone."""
    group.allreduce([tensor]).wait()


def begin_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
    """The same without waiting for it. Raises `RuntimeError`, as waiting does, when a rank is gone."""
    return group.allreduce([torch.view_as_real(tensor) if tensor.is_complex() else tensor])


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Every rank's tensor, in their order. Raises `RuntimeError` when one is gone."""
    gathered = [torch.empty_like(tensor) for _ in range(group.size())]
    group.allgather([gathered], [tensor]).wait()
    return gathered
