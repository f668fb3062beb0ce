"""Measures the memory and time that a micro-batch takes, on the device that holds the task's model.

On CUDA the memory is the allocator's peak, and the allocator raises an error beyond the limit. Elsewhere tensors
are counted as operations make them (`live_memory`), and a measurement ends at the first operation that passes the
limit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from oakum_worker.errors import TaskError
from oakum_worker.losses import loss_of
from oakum_worker.parallel.normalisation import normalise
from oakum_worker.profiling.live_memory import LiveMemory, MemoryLimitError
from oakum_worker.profiling.sample_errors import collate, read, some_indices
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.optimizer_step import OptimizerStep
from oakum_worker.task import Task
from oakum_worker.task_checks import describe, lacks_memory
from oakum_worker.torch_internals import BatchNorm, tree_leaves

_TIMED_S = 0.5
"""Seconds of timing after which a size is not timed again, once it was timed three times."""
_MOST_TIMES = 15


class Footprint(NamedTuple):
    """Bytes of a device's memory that training takes."""

    static_bytes: int
    """Weights, buffers, gradients, optimizer state."""
    working_bytes: int
    """What one micro-batch adds at its peak."""

    def at_stage(self, stages: int, num_in_flight: int) -> int:
        """Bytes that one of `stages` equal stages takes while it holds `num_in_flight` micro-batches."""
        return (self.static_bytes + self.working_bytes * num_in_flight) // stages


class Probe:
    """Measures the memory and time of micro-batches by training on them. This changes the task's weights, which
    are of no use afterwards."""

    def __init__(self, task: Task, spec: TrainerSpec, limit_bytes: int) -> None:
        """Prepare `task` for measurements that take no more than about `limit_bytes` of its device's memory. On
        CUDA this limits the whole process."""
        self._task = task
        self._limit_bytes = limit_bytes
        self._device = next(task.model.parameters()).device
        normalise(task.model, spec.parallel.batch_norm)
        updater = OptimizerStep(task, spec)
        self._precision, self._average = updater.forward, updater.average
        self._footprints: dict[int, Footprint | None] = {}
        self.num_probes = 0
        """Number of memory measurements so far."""
        task.model.train()
        if self._device.type == "cuda":
            total = torch.cuda.get_device_properties(self._device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(limit_bytes / total, 1.0), self._device)

    @property
    def smallest(self) -> int:
        """The fewest samples that a micro-batch may have: 2 with a BatchNorm layer, which cannot normalise a
        single sample, else 1."""
        alone = any(isinstance(layer, BatchNorm) for layer in self._task.model.modules())
        return 2 if alone else 1

    def footprint(self, size: int) -> Footprint | None:
        """The memory that training takes with micro-batches of `size` samples; None where that is more than the
        limit.

        Each size is measured once and then remembered. Raises `TaskError` where the task's code fails.
        """
        if size not in self._footprints:
            self._footprints[size] = self._tried(size, step=True)
        return self._footprints[size]

    def passes_bytes(self, size: int) -> int | None:
        """Bytes that forward and backward pass of a micro-batch of `size` samples add at their peak, without the
        optimizer's step; None where that takes more than the limit.

        The peak grows linearly with `size`. Raises `TaskError` where the task's code fails.
        """
        footprint = self._tried(size, step=False)
        return None if footprint is None else footprint.working_bytes

    def seconds(self, size: int) -> float:
        """The median time of forward and backward pass of a micro-batch, after one to warm up."""
        return statistics.median(self.pass_times(size))

    def pass_times(
        self,
        size: int,
        enough_s: float = _TIMED_S,
        *,
        fewest: int = 3,
        clock: Callable[[], float] | None = None,
    ) -> list[float]:
        """Seconds of at least `fewest` forward and backward passes of a micro-batch, after one to warm up.

        Ends after `enough_s` seconds of passes, or 15 passes. `clock` is by default the wall clock, in seconds.
        """
        batch = self._read(size)
        taken: list[float] = []
        for number in range(_MOST_TIMES + 1):
            seconds = self._timed(lambda: self._compute(batch, size), clock)
            taken += [seconds] if number else []
            if len(taken) >= fewest and sum(taken) > enough_s:
                break
        self._clear()
        return taken

    def overhead_s(self, *, clock: Callable[[], float] | None = None, times: int = 3) -> float:
        """The median seconds of so many optimizer's steps, after one to warm up, by `clock` or the wall clock."""
        taken = []
        for _ in range(times + 1):
            self._give_gradients()
            taken.append(self._timed(self._task.optimizer.step, clock))
        self._clear()
        return statistics.median(taken[1:])

    def _timed(self, run: Callable[[], object], clock: Callable[[], float] | None) -> float:
        clock = clock or time.perf_counter
        self._synchronise()
        begin_s = clock()
        run()
        self._synchronise()
        return clock() - begin_s

    def _tried(self, size: int, *, step: bool) -> Footprint | None:
        self.num_probes += 1
        try:
            return self._measure(size, step=step)
        except MemoryLimitError:
            return None
        except Exception as error:
            if lacks_memory(error):
                return None
            raise
        finally:
            self._clear()

    def _measure(self, size: int, *, step: bool) -> Footprint:
        """Compute two micro-batches, whose gradients are added up, then the optimizer's step if `step`, and return
        the memory that they took."""
        self._give_gradients()
        self._task.optimizer.step()  # brings its state into being
        if self._average is not None:
            self._average.update()
        self._clear()
        static = sum(tensor.untyped_storage().nbytes() for tensor in self._static()) + self._gradient_bytes()
        if self._device.type == "cuda":
            return self._measure_on_cuda(size, static, step=step)
        batch = self._read(size)  # outside: samples may be views of the whole data set
        with LiveMemory(self._limit_bytes) as memory:
            memory.count(self._static())
            memory.count(leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))
            self._train(batch, size, step=step)
        return Footprint(static, max(memory.peak_bytes - static, 0))

    def _measure_on_cuda(self, size: int, static: int, *, step: bool) -> Footprint:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        self._train(self._read(size), size, step=step)
        return Footprint(static, max(torch.cuda.max_memory_allocated(self._device) - static, 0))

    def _train(self, batch: Any, size: int, *, step: bool) -> None:
        for _ in range(2):
            self._compute(batch, size)
        if step:
            self._task.optimizer.step()

    def _read(self, size: int) -> Any:
        indices = [index % len(self._task.dataset) for index in range(size)]
        return collate(self._task, read(self._task, indices), f"the samples {some_indices(indices)}")

    def _compute(self, batch: Any, size: int) -> None:
        try:
            with self._precision():
                loss = loss_of(self._task.loss(self._task.model, batch)).value
            loss.backward()
        except (MemoryLimitError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise TaskError(f"a micro-batch of {size} raised {describe(error)}: correct the task") from error

    def _static(self) -> Iterator[torch.Tensor]:
        """The weights, buffers and optimizer state that are on the device; of tensors that share memory only the
        first."""
        model = self._task.model
        tensors = [*model.parameters(), *model.buffers(), *tree_leaves(dict(self._task.optimizer.state))]
        storages = set()
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor) or tensor.device.type != self._device.type:
                continue
            if (memory := tensor.untyped_storage().data_ptr()) not in storages:
                storages.add(memory)
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
