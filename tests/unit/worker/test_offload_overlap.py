"""What an offloaded optimizer does at the same time: copies both ways, updates, sums over the ranks."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from oakum_worker.parallel import offload
from oakum_worker.parallel.offload import OffloadedAdam, OffloadedAdamW
from oakum_worker.parallel.offload_streams import WorkStream, WorkStreams

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs cuda")


@dataclass
class Recording:
    """Takes the part of a process group of one rank, and notes what is asked of it."""

    events: list[Any] = field(default_factory=list)

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        (tensor,) = tensors
        self.events.append(("sum", tensor.numel()))
        return Sum(self.events, tensor.numel())


@dataclass
class Sum:
    events: list[Any]
    length: int

    def wait(self, *_: Any) -> None:
        self.events.append(("wait", self.length))


def test_all_sums_are_under_way_before_the_first_update_and_each_is_waited_for_just_before_its_own() -> None:
    group = Recording()

    class Noting(OffloadedAdam):
        def _update(self, *arguments: Any) -> None:
            group.events.append("update")
            super()._update(*arguments)

    parameter = nn.Parameter(torch.ones(38))
    optimizer = Noting([parameter], bucket_elements=4)
    optimizer.join(group)  # type: ignore[arg-type]
    optimizer.zero_grad()
    optimizer.step()
    check = [("sum", 1), ("wait", 1)]
    sums = [("sum", 16), ("sum", 16), ("sum", 6)]
    first, second, last = ([("wait", length), *["update"] * (length // 2)] for length in (16, 16, 6))
    assert group.events == [*check, *sums, *first, *second, *last]


class Mark:
    """A moment in a stream's work."""

    is_past = False


class Device:
    """Stands in for a GPU: runs the work of its streams in any order that the streams' waits allow."""

    def __init__(self, pick: Callable[[Sequence[int]], int]) -> None:
        """`pick` says which of the streams that can go on does."""
        self._pick = pick
        self._queues: list[deque[Any]] = [deque(), deque(), deque()]
        self.done: list[str] = []
        """The streams of all work, in the order in which it was done."""

    def streams(self, _: torch.device) -> WorkStreams:
        return WorkStreams(*(SlowStream(self, queue) for queue in self._queues))

    def run(self, stream: deque[Any]) -> None:
        """Run work of all streams until `stream` is empty."""
        while stream:
            ready = [number for number, queue in enumerate(self._queues) if queue and _can_go_on(queue[0])]
            assert ready, "every stream waits for another one"
            number = self._pick(ready)
            work = self._queues[number].popleft()
            if callable(work):
                self.done.append(WorkStreams._fields[number])
                work()
            elif work[0] == "mark":
                work[1].is_past = True


def _can_go_on(work: Any) -> bool:
    return callable(work) or work[0] == "mark" or work[1].is_past


class SlowStream(WorkStream):
    """Does nothing before somebody waits for the device."""

    def __init__(self, device: Device, queue: deque[Any]) -> None:
        super().__init__()
        self._device, self._queue = device, queue

    def do(self, work: Callable[[], object]) -> None:
        self._queue.append(work)

    def mark(self) -> Any:
        mark = Mark()
        self._queue.append(("mark", mark))
        return mark

    def wait(self, mark: Any) -> None:
        if mark is not None:
            self._queue.append(("wait", mark))

    def finish(self) -> None:
        self._device.run(self._queue)


def train_on(device: Device | None, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> list[torch.Tensor]:
    """Weights and state after two steps of 7 runs each, in a bucket of 10."""
    if device is not None:
        monkeypatch.setattr(offload, "work_streams_of", device.streams)
    generator = torch.Generator().manual_seed(0)
    tensors = [nn.Parameter(torch.randn(size, generator=generator).to(dtype)) for size in (3, 20, 9)]
    optimizer = OffloadedAdamW(tensors, lr=0.1, bucket_elements=10)
    for _ in range(2):
        for tensor in tensors:
            tensor.grad = torch.randn(tensor.shape, generator=generator).to(dtype)
        optimizer.step()
    state = [value for tensor in tensors for value in optimizer.state[tensor].values()]
    return [*(tensor.detach() for tensor in tensors), *state]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_in_whatever_order_copies_and_updates_are_done_the_result_is_the_same(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    expected = train_on(None, monkeypatch, dtype)
    for pick in (min, max, *(random.Random(seed).choice for seed in range(20))):
        assert all(map(torch.equal, train_on(Device(pick), monkeypatch, dtype), expected))


def test_one_half_of_a_bucket_comes_in_before_the_other_one_has_gone_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device(min)  # what comes in has precedence
    train_on(device, monkeypatch, torch.float32)
    steady = ["outward", "inward", "compute"] * 5
    step = ["inward", "inward", "compute", "compute", *steady, "outward", "outward"]
    assert device.done == step * 2


NUM_PARAMETERS, BUCKET = 3_000_000, 100_000
SLACK_BYTES = 64 * 1024


def large_parameters(device: str) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    sizes = [NUM_PARAMETERS // 2 + 1, NUM_PARAMETERS // 2 - 1]
    return [nn.Parameter(torch.randn(size, generator=generator).half().to(device)) for size in sizes]


def fill_gradients(tensors: list[nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for tensor in tensors:
        tensor.grad = torch.randn(tensor.shape, generator=generator).half().to(tensor.device)


@needs_cuda
def test_on_a_gpu_a_step_needs_one_bucket_beside_parameters_and_gradients() -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    tensors = large_parameters("cuda")
    optimizer = OffloadedAdamW(tensors, bucket_elements=BUCKET)
    for step in range(2):
        fill_gradients(tensors, step)
        optimizer.step()
        assert optimizer.state[tensors[0]]["exp_avg"].is_pinned()
        optimizer.zero_grad()
    peak = torch.cuda.max_memory_allocated() - before
    assert peak <= 4 * NUM_PARAMETERS + 16 * BUCKET + SLACK_BYTES


@needs_cuda
def test_on_a_gpu_overlapping_copies_change_no_result() -> None:
    """And the host's memory can be read, and written, as soon as a step has returned."""
    tensors = large_parameters("cuda")
    masters = [nn.Parameter(tensor.detach().float()) for tensor in tensors]
    optimizer, reference = OffloadedAdamW(tensors, bucket_elements=BUCKET), AdamW(masters)
    for step in range(3):
        fill_gradients(tensors, step)
        for master, tensor in zip(masters, tensors, strict=True):
            assert tensor.grad is not None
            master.grad = tensor.grad.float()
        optimizer.step()
        reference.step()
        for master, tensor in zip(masters, tensors, strict=True):
            torch.testing.assert_close(optimizer.state[tensor]["master"], master.detach().cpu())
            torch.testing.assert_close(
                optimizer.state[tensor]["exp_avg"], reference.state[master]["exp_avg"].cpu()
            )
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
