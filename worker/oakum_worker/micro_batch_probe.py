"""Measures what a micro-batch of a task takes, in memory and time, on the device that the task is on.

On CUDA memory is the allocator's peak, and what is too much raises an error there. Elsewhere tensors are counted
as operations make them (`oakum_worker.live_memory`), and a probe ends at the first operation that passes the
limit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from oakum_worker.errors import TaskError
from oakum_worker.live_memory import LiveMemory, MemoryLimitError
from oakum_worker.parallel.normalisation import normalise
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task
from oakum_worker.task_checks import describe
from oakum_worker.updating import Updater

_TIMED_S = 0.5
"""After so long a size is not timed again, unless it was so less than three times."""
_MOST_TIMES = 15


class Footprint(NamedTuple):
    """What training takes of a device's memory."""

    static_bytes: int
    """Weights, buffers, gradients, optimizer state."""
    working_bytes: int
    """What one micro-batch adds at its peak."""

    def at_stage(self, stages: int, num_in_flight: int) -> int:
        """What one of so many equal stages takes, with so many micro-batches on their way through it."""
        return (self.static_bytes + self.working_bytes * num_in_flight) // stages


class Probe:
    """Runs micro-batches of a task. Its weights are of no use afterwards."""

    def __init__(self, task: Task, spec: TrainerSpec, limit_bytes: int) -> None:
        """Never takes more than about `limit_bytes` of the device's memory."""
        self._task = task
        self._limit_bytes = limit_bytes
        self._device = next(task.model.parameters()).device
        normalise(task.model, spec.parallel.batch_norm)
        self._precision = Updater(task, spec).forward
        self._footprints: dict[int, Footprint | None] = {}
        self.num_probes = 0
        """How often memory was measured."""
        task.model.train()
        if self._device.type == "cuda":
            total = torch.cuda.get_device_properties(self._device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(limit_bytes / total, 1.0), self._device)

    @property
    def smallest(self) -> int:
        """Samples that a micro-batch has at least: BatchNorm takes no single one."""
        alone = any(isinstance(layer, _BatchNorm) for layer in self._task.model.modules())
        return 2 if alone else 1

    def footprint(self, size: int) -> Footprint | None:
        """Of micro-batches of so many samples; None where they take more than the limit.

        Raises `TaskError` where the task's code fails.
        """
        if size not in self._footprints:
            self.num_probes += 1
            try:
                self._footprints[size] = self._measure(size)
            except (MemoryLimitError, torch.OutOfMemoryError):
                self._footprints[size] = None
            finally:
                self._clear()
        return self._footprints[size]

    def seconds(self, size: int) -> float:
        """The median time of forward and backward pass of a micro-batch, after one to warm up."""
        batch = self._read(size)
        taken: list[float] = []
        for number in range(_MOST_TIMES + 1):
            self._synchronise()
            begin_s = time.perf_counter()
            self._compute(batch, size)
            self._synchronise()
            if number:
                taken.append(time.perf_counter() - begin_s)
            if len(taken) >= 3 and sum(taken) > _TIMED_S:
                break
        self._clear()
        return statistics.median(taken)

    def overhead_s(self) -> float:
        """What the optimizer takes for a step."""
        taken = []
        for _ in range(4):
            self._give_gradients()
            self._synchronise()
            begin_s = time.perf_counter()
            self._task.optimizer.step()
            self._synchronise()
            taken.append(time.perf_counter() - begin_s)
        self._clear()
        return statistics.median(taken[1:])

    def _measure(self, size: int) -> Footprint:
        """Two micro-batches, whose gradients are added up, and the optimizer's step."""
        self._give_gradients()
        self._task.optimizer.step()  # brings its state into being
        self._clear()
        static = sum(tensor.untyped_storage().nbytes() for tensor in self._static()) + self._gradient_bytes()
        if self._device.type == "cuda":
            return self._measure_on_cuda(size, static)
        batch = self._read(size)  # outside: samples may be views of the whole data set
        with LiveMemory(self._limit_bytes) as memory:
            memory.count(self._static())
            memory.count(leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))
            self._train(batch, size)
        return Footprint(static, max(memory.peak_bytes - static, 0))

    def _measure_on_cuda(self, size: int, static: int) -> Footprint:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        self._train(self._read(size), size)
        return Footprint(static, max(torch.cuda.max_memory_allocated(self._device) - static, 0))

    def _train(self, batch: Any, size: int) -> None:
        for _ in range(2):
            self._compute(batch, size)
        self._task.optimizer.step()

    def _read(self, size: int) -> Any:
        return self._task.read([index % len(self._task.dataset) for index in range(size)])

    def _compute(self, batch: Any, size: int) -> None:
        try:
            with self._precision():
                loss = self._task.loss(self._task.model, batch)
            loss.backward()
        except (MemoryLimitError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise TaskError(f"a micro-batch of {size} raised {describe(error)}: correct the task") from error

    def _static(self) -> Iterator[torch.Tensor]:
        """Weights, buffers and the optimizer's state, each memory once, as far as it is on the device."""
        model = self._task.model
        tensors = [*model.parameters(), *model.buffers(), *tree_leaves(dict(self._task.optimizer.state))]
        seen = set()
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor) or tensor.device.type != self._device.type:
                continue
            if (memory := tensor.untyped_storage().data_ptr()) not in seen:
                seen.add(memory)
                yield tensor

    def _gradient_bytes(self) -> int:
        trained = (parameter for parameter in self._task.model.parameters() if parameter.requires_grad)
        return sum(parameter.numel() * parameter.element_size() for parameter in trained)

    def _give_gradients(self) -> None:
        for parameter in self._task.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)

    def _clear(self) -> None:
        for parameter in self._task.model.parameters():
            parameter.grad = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
