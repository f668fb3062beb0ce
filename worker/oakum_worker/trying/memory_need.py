"""Estimates the memory that a rank will need on its device, by measuring small micro-batches of the real model.

    need(m) = weights + gradients + optimizer state + peak(m),

with m the most samples that a rank computes at once. The peak is measured at doubling sizes as far as that is
quick; beyond, it is extrapolated along a straight line.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from oakum_worker.errors import TaskError
from oakum_worker.profiling.micro_batch_probe import Probe
from oakum_worker.spec import TrainerSpec
from oakum_worker.strategy_table import strategy_of
from oakum_worker.task import Task

_GIB = 2**30
_PROBING_S = 2.0
_LARGEST_SHARE = 0.1
"""Of the memory of this machine, the largest part that probing may take."""


@dataclass(frozen=True)
class MemoryNeed:
    """Memory in bytes that one rank needs for its largest share of the batch, and what this machine has."""

    weight_bytes: int
    """Weights and buffers."""
    gradient_bytes: int
    optimizer_bytes: int
    working_bytes: int
    """Activations and what else a micro-batch takes at its peak."""
    micro_batch: int
    """Samples that are computed at once."""
    ranks: int
    """Number of ranks on one node."""
    here_bytes: int
    """What this machine has for all ranks of a node."""
    most_at_once: int
    """Samples that would fit here; 0 where not even one does."""

    @property
    def node_bytes(self) -> int:
        """Bytes that all ranks of a node need together."""
        rank = self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.working_bytes
        return self.ranks * rank

    @property
    def fits_here(self) -> bool:
        """Whether this machine has the memory that all ranks of a node need together."""
        return self.node_bytes <= self.here_bytes

    @property
    def summary(self) -> str:
        """One line of text: what a node needs, and what this machine has."""
        return f"about {_size(self.node_bytes)} on a node, of {_size(self.here_bytes)} here"

    @property
    def complaint(self) -> str:
        """Text for a need that does not fit: what a node needs, by its parts, what this machine has, and what to
        change."""
        times = "" if self.ranks == 1 else f" in each of {self.ranks} ranks"
        text = (
            f"a node needs about {_size(self.node_bytes)} and this machine has {_size(self.here_bytes)}: weights "
            f"{_size(self.weight_bytes)}, gradients {_size(self.gradient_bytes)}, optimizer "
            f"{_size(self.optimizer_bytes)}, {self.micro_batch} samples at once {_size(self.working_bytes)}"
            f"{times}; "
        )
        if self.most_at_once:
            return text + f"set micro_batch to {self.most_at_once} or less"
        return text + (
            "this is too much even without a sample: spread the state over nodes (parallel: {data: sharded} or "
            "{pipeline: {}}), or keep the optimizer's in the host's memory (oakum_worker.parallel.offload)"
        )


def memory_need(task: Task, spec: TrainerSpec) -> MemoryNeed:
    """Measure how much memory training the task takes. This changes its weights, which are of no use
    afterwards. Returns the need, in its parts, beside what this machine has.

    Raises `TaskError` where the task's code fails, or where not even its smallest micro-batch fits on this
    machine.
    """
    device = next(task.model.parameters()).device
    ranks = spec.ranks_per_node
    here = memory_here(device) * (ranks if device.type == "cuda" else 1)
    share = -(-spec.global_batch // (spec.min_nodes * ranks))
    size = min(spec.micro_batch or share, share)
    split = spec.min_nodes * ranks if strategy_of(spec).splits_state else 1
    weights = sum(tensor.nbytes for tensor in (*task.model.parameters(), *task.model.buffers()))
    gradients = sum(parameter.nbytes for parameter in task.model.parameters() if parameter.requires_grad)
    probe = Probe(task, spec, here // ranks)
    smallest = min(probe.smallest, size)
    step = probe.footprint(smallest)
    peaks = _probed(probe, smallest, size, here // ranks)
    if step is None or not peaks:
        raise TaskError(
            f"training on {smallest} samples at once takes more than the {_size(here // ranks)} that a rank has "
            f"here, with weights of {_size(weights)}: spread the model over nodes (parallel: {{data: sharded}} or "
            "{pipeline: {}}), compute activations again (torch.utils.checkpoint), or make the model smaller"
        )
    each, measured = _slope(peaks), max(peaks)
    passes = peaks[measured] + each * (size - measured)
    spare_bytes = here / ranks - step.static_bytes / split - peaks[measured]
    return MemoryNeed(
        weight_bytes=weights // split,
        gradient_bytes=gradients // split,
        optimizer_bytes=max(step.static_bytes - weights - gradients, 0) // split,
        working_bytes=max(int(passes), step.working_bytes // split),
        micro_batch=size,
        ranks=ranks,
        here_bytes=here,
        most_at_once=max(0, min(size, int(measured + spare_bytes / each))) if each else size * (spare_bytes >= 0),
    )


def _probed(probe: Probe, smallest: int, size: int, limit_bytes: int) -> dict[int, int]:
    """Micro-batch size -> bytes that its forward and backward pass add at their peak, measured at sizes that
    double from `smallest` up to `size`.

    Two sizes are measured as far as they fit in `limit_bytes`, more only while that is quick and takes little of
    the machine's memory. Empty where not even `smallest` fits.
    """
    peaks: dict[int, int] = {}
    began_s = time.perf_counter()
    number = smallest
    while (peak_bytes := probe.passes_bytes(number)) is not None:
        peaks[number] = peak_bytes
        is_large = 2 * peak_bytes > limit_bytes * _LARGEST_SHARE or time.perf_counter() - began_s > _PROBING_S
        if number >= size or (len(peaks) > 1 and is_large):
            break
        number = min(2 * number, size)
    return peaks


def _slope(peaks: Mapping[int, int]) -> float:
    """Bytes that one more sample takes, from the two largest sizes of `peaks` (size -> peak bytes); never
    negative."""
    *_, (low, before), (high, after) = [(0, 0), *sorted(peaks.items())]
    return max((after - before) / (high - low), 0.0)


def memory_here(device: torch.device) -> int:
    """Bytes of memory that the device has. For a CPU: the machine's memory, or less where this process's control
    group limits it."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_group_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def _group_limits(membership: Path, root: Path) -> list[int]:
    """The memory limits in bytes of this process's control group (version 2) and of the groups above it; empty
    where there are none or they cannot be read."""
    try:
        own = next(line[3:] for line in membership.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    group = root / own.strip("/")
    limits = []
    for folder in [group, *group.parents]:
        if not folder.is_relative_to(root):
            break
        try:
            limits.append(int((folder / "memory.max").read_text()))
        except (OSError, ValueError):
            continue  # no limit, or none that can be read
    return limits


def _size(number: float) -> str:
    return f"{number / _GIB:.3g} GiB" if number >= _GIB / 10 else f"{number / 2**20:.3g} MiB"
