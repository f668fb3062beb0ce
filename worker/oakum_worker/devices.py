"""Tells which model a torch device is, how much memory it has, and by which clock to time its work."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable

import torch

from oakum_worker.errors import TaskError


def use_device(device: torch.device, num_ranks: int) -> None:
    """Make `device`, which has a rank's model, the one that `cuda` means in this thread. Does nothing on the CPU.

    Raises `TaskError` where the `num_ranks` ranks of this rank's fragment see fewer GPUs than they are: two ranks
    on one GPU cannot talk to each other.
    """
    if device.type != "cuda":
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name for name in visible.split(",") if name]
    # Of several slices of GPUs CUDA shows a process the first one.
    count = len(names) if names and names[0].startswith("MIG-") else torch.cuda.device_count()
    if count < num_ranks:
        raise TaskError(
            f"the {num_ranks} ranks of this fragment train on a GPU each and see {count} of them "
            f"(CUDA_VISIBLE_DEVICES={visible}): have the scheduler give a job {num_ranks} GPUs, or lower "
            "ranks_per_node"
        )
    torch.cuda.set_device(device)


def device_memory_bytes(device: torch.device) -> int:
    """Total memory of the device in bytes; for a CPU, half of the machine's memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def accelerator() -> str | None:
    """The kind of this process's accelerator, such as "cuda"; None if it has none."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else device.type


def device_name(device: torch.device) -> str:
    """The device's model as text. Two devices with equal names are taken to be equally fast."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} {platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def undisturbed_clock(device: torch.device) -> Callable[[], float]:
    """The clock, in seconds, that other work on the machine disturbs least, for measuring what this thread has
    `device` compute.

    For one computing thread on the CPU that is the thread's CPU time, which stands still while others have the
    core. With several threads, which wait for each other, and on other devices it is `waiting_clock`.
    """
    if device.type == "cpu" and torch.get_num_threads() == 1:
        return time.thread_time
    return waiting_clock(device)


def waiting_clock(device: torch.device) -> Callable[[], float]:
    """The clock, in seconds, for measuring work that includes waiting for other ranks or processes, such as
    sending a message.

    On the CPU it is the wall clock. On a GPU reading it first waits until the GPU has finished the work it was
    given.
    """
    return _synchronised_s if device.type == "cuda" else time.perf_counter


def _synchronised_s() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()
