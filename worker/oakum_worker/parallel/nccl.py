"""What is different where tensors are on GPUs, whose collectives go through NCCL.

NCCL queues a collective in a stream of the device. Waiting for one has the stream wait for it, and the host go on.
So nothing is raised where a collective fails: only an abort ends it, its tensors then hold anything, and whoever
reads them has to ask first whether there was one (`oakum_worker.parallel.waiting.refuse_void`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.distributed as dist

_GLOO = "gloo"


def backend() -> str:
    """torch's name of the backends: gloo for tensors on the CPU and, where the node has GPUs, NCCL for theirs."""
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    return "cpu:gloo,cuda:nccl" if has_nccl else _GLOO


def is_in_use() -> bool:
    """Whether groups that are formed from now on have NCCL beside gloo."""
    return backend() != _GLOO


def orders(device: torch.device) -> bool:
    """Whether collectives of tensors on `device` are ordered by a stream, so that the host does not wait for
    them."""
    return device.type != "cpu"


def synchronise(device: torch.device) -> None:
    """Have the host wait until the device has done all that was queued, collectives included. Does nothing for a
    CPU."""
    if orders(device):
        torch.get_device_module(device).synchronize(device)


class OwnStream:
    """Context in which this thread queues on a stream of its own, and not behind or before what the rank computes:
    a wait for a message would hold that up, too. Does nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._module: Any = torch.get_device_module(device) if orders(device) else None
        self._device = device
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self._module is not None:
            self._stream = self._module.Stream(self._device)
            self._stack.enter_context(self._module.stream(self._stream))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def hand_over(self, tensors: Sequence[torch.Tensor]) -> None:
        """Wait, on the host, until the tensors have arrived; they may then be used on the usual stream."""
        if self._module is not None:
            self._stream.synchronize()
            for tensor in tensors:
                tensor.record_stream(self._module.default_stream(self._device))


def abort(groups: Sequence[dist.ProcessGroup]) -> list[threading.Thread]:
    """Abort the groups' collectives, each in a thread of its own. Returns the threads without waiting for them.

    An abort waits for the device, on which a collective of another group may hang until that group is aborted,
    too (pytorch/pytorch#119797).
    """
    threads = [threading.Thread(target=group.abort, daemon=True, name="abort") for group in groups]
    for thread in threads:
        thread.start()
    return threads
