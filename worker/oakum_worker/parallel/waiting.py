"""Where the training thread waits for other ranks in the middle of a step; `step_clock` knows it by this file.

torch's functions for collectives, such as `dist.all_reduce`, are not for groups that are formed by themselves
(`oakum_worker.parallel.subgroups`): to report an error of such a group, a lost rank for one, they look it up among
those they know and raise a `ValueError` instead. A group's own methods take any group.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


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
