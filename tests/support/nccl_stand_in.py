"""A process group that behaves as NCCL's does, for tensors of `gpu_stand_in`; gloo carries what they hold.

Its rules, and where they come from. P is ProcessGroupNCCL.cpp of torch.

- *Stream order.* A wait has the stream wait and the host go on, and raises nothing; the host waits where it needs
  a result (torch's docs, "Synchronous and asynchronous collective operations").
- *Late errors.* What failed hangs until it is aborted, and leaves anything in its tensors, here NaN. torch goes on
  to warn that it is unsafe to compute with them (`_set_pg_timeout`).
- *No tags.* Messages between a pair match in order of issue (pytorch/pytorch#125079), over a communicator that the
  pair has for itself. A send may wait for its receive (NVIDIA/nccl#784, #783), and what follows on the same
  communicator waits behind it (#584, #479).
- *A communicator is formed at its first use* by all of its ranks, and the host waits for that (P,
  `initNCCLComm`); point-to-point ones are, too (NVIDIA/nccl#783).
- *A lost peer* is told to nobody: who waits for it hangs until an abort (NVIDIA/nccl#1013,
  pytorch/pytorch#113281).
- *An abort* ends all that a group has under way and raises nothing there. It waits for the device, so it hangs
  behind a collective of another group until that is aborted, too (NVIDIA/nccl#564, pytorch/pytorch#119797). Later
  calls raise `DistBackendError` ("NCCL communicator was aborted", P, `getNcclComm`).
- *One device, one rank*: a communicator with two ranks on a device is refused (NVIDIA/nccl#103).
- *The watchdog* ends the process where a collective outlives its group's timeout (torch's docs,
  TORCH_NCCL_ASYNC_ERROR_HANDLING). Here that is noted in `ENDED`.
"""

# mypy: disable-error-code="override,assignment"

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from gpu_stand_in import NAME, QUEUED, Future, Queued, StandInTensor, place, stream
from oakum_worker.parallel import nccl, subgroups
from oakum_worker.parallel.waiting import COLLECTIVE_TIMEOUT

ENDED: list[str] = []
"""Why the watchdog would have ended this process."""
_FOR_EVER = timedelta(hours=1)


class StandInWork:
    """A collective or message: begun, done, or given up."""

    def __init__(self, where: int, outputs: list[torch.Tensor], timeout: timedelta, handled: bool) -> None:
        self._where, self._outputs = where, outputs
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._timer = threading.Timer(timeout.total_seconds(), self._outlives) if handled else None
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        QUEUED[where].add(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Have the stream wait."""
        if not self._ended.is_set():
            stream().awaited.add(self)
        return True

    def end(self) -> None:
        """Have the host wait."""
        self._ended.wait()

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def done(self, results: list[torch.Tensor] | None) -> None:
        """End it, unless that has happened: with its results, or as given up, with rubbish in their place."""
        with self._lock:
            if self._ended.is_set():
                return
            for number, output in enumerate(self._outputs):
                if results is not None:
                    output.copy_(results[number])
                else:
                    output.fill_(float("nan") if output.is_floating_point() or output.is_complex() else 113)
            self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
        QUEUED[self._where].discard(self)

    def _outlives(self) -> None:
        ENDED.append("a collective has outlived its group's timeout")


class _Communicator:
    """Does one thing after the other in the order in which they were issued, in a thread of its own."""

    def __init__(self) -> None:
        self.orders: queue.SimpleQueue[tuple[StandInWork, list[Queued], Callable[[], list[torch.Tensor]]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=_carry_out, args=(self.orders,), daemon=True, name="communicator").start()


def _carry_out(orders: Any) -> None:
    while (order := orders.get()) is not None:
        work, before, carry = order
        for queued in before:
            queued.end()
        if work.is_completed():
            continue
        try:
            results = carry()
        except RuntimeError:
            work.end()  # a lost peer: until an abort
            continue
        work.done(results)


class StandInGroup(dist.ProcessGroup):
    """torch's group of gloo for tensors on the CPU and NCCL for those on GPUs."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, connect_timeout: timedelta, timeout: timedelta | None = None
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._gloo: Any = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, connect_timeout)
        self._device: Any = dist.ProcessGroupGloo(dist.PrefixStore("nccl", store), rank, size, connect_timeout)
        self._timeout = timeout or connect_timeout
        self._gloo._set_default_timeout(self._timeout)
        self._device._set_default_timeout(_FOR_EVER)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._gloo)
        self._communicators: dict[str, _Communicator] = {}
        self._works: list[StandInWork] = []
        self._lock = threading.Lock()
        self._aborted = threading.Event()

    # Collectives, by the names that torch and the worker call.

    def allreduce(self, tensors: Any, options: Any = None) -> Any:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
        given = options or dist.AllreduceOptions()
        if not _is_here(tensors):
            return self._gloo.allreduce(tensors, given)
        mean, plain = given.reduceOp == dist.ReduceOp.AVG, dist.AllreduceOptions()
        plain.reduceOp = dist.ReduceOp.SUM if mean else given.reduceOp

        def carry(copies: list[torch.Tensor]) -> list[torch.Tensor]:
            self._device.allreduce(copies, plain).wait()
            return [copy.div_(self.size()) for copy in copies] if mean else copies

        return self._issue(tensors, tensors, carry)

    def broadcast(self, tensors: Any, options: Any = None) -> Any:
        if not _is_here(tensors):
            return self._gloo.broadcast(tensors, options)

        def carry(copies: list[torch.Tensor]) -> list[torch.Tensor]:
            self._device.broadcast(copies, options).wait()
            return copies

        return self._issue(tensors, tensors, carry)

    def allgather(self, outputs: Any, inputs: Any, options: Any = None) -> Any:
        if not _is_here(inputs):
            return self._gloo.allgather(outputs, inputs)

        def carry(copies: list[torch.Tensor]) -> list[torch.Tensor]:
            gathered = [torch.empty_like(copies[0]) for _ in range(self.size())]
            self._device.allgather([gathered], copies).wait()
            return gathered

        return self._issue(outputs[0], inputs, carry)

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor, options: Any = None) -> Any:
        if not _is_here([own]):
            return self._gloo._allgather_base(output, own)

        def carry(copies: list[torch.Tensor]) -> list[torch.Tensor]:
            gathered = [torch.empty_like(copies[0]) for _ in range(self.size())]
            self._device.allgather([gathered], copies).wait()
            return [torch.cat([one.reshape(-1) for one in gathered]).view(output.shape)]

        return self._issue([output], [own], carry)

    def _reduce_scatter_base(self, own: torch.Tensor, given: torch.Tensor, options: Any = None) -> Any:
        mean = options is not None and options.reduceOp == dist.ReduceOp.AVG

        def carry(copies: list[torch.Tensor]) -> list[torch.Tensor]:
            self._device.allreduce(copies).wait()
            part = copies[0].reshape(self.size(), -1)[self.rank()].view(own.shape)
            return [part / self.size() if mean else part]

        return self._issue([own], [given], carry)

    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base

    def alltoall_base(self, output: Any, given: Any, takes: Any, gives: Any, options: Any = None) -> Any:
        if not _is_here([given]):
            return self._gloo.alltoall_base(output, given, takes, gives)

        def carry(copies: list[torch.Tensor]) -> list[torch.Tensor]:
            arrived = torch.empty_like(_held(output))
            self._device.alltoall_base(arrived, copies[0], takes, gives).wait()
            return [arrived]

        return self._issue([output], [given], carry)

    def barrier(self, options: Any = None) -> Any:
        return self._gloo.barrier()

    # Messages: NCCL has no tags.

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        if not _is_here(tensors):
            return self._gloo.send(tensors, peer, tag)

        def carry(copies: list[torch.Tensor]) -> list[torch.Tensor]:
            self._device.send(copies, peer, 0).wait(_FOR_EVER)
            return []

        return self._issue([], tensors, carry, peer)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        if not _is_here(tensors):
            return self._gloo.recv(tensors, peer, tag)

        def carry(copies: list[torch.Tensor]) -> list[torch.Tensor]:
            self._device.recv(copies, peer, 0).wait(_FOR_EVER)
            return copies

        return self._issue(tensors, tensors, carry, peer)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self._gloo.recv_anysource(tensors, tag)

    # The group's life.

    def abort(self) -> None:
        """End all that is under way. Waits for the device, and so for what other groups have there."""
        with self._lock:
            self._aborted.set()
            works, self._works = self._works, []
        for work in works:
            work.done(None)
        for where in {work._where for work in works}:
            for queued in list(QUEUED[where]):
                queued.end()

    def shutdown(self) -> None:
        """Wait for all that is under way, as `ncclCommFinalize` does, and end."""
        for work in list(self._works):
            work.end()
        self._close()

    def _close(self) -> None:
        for communicator in self._communicators.values():
            communicator.orders.put(None)  # type: ignore[arg-type]
        self._communicators.clear()

    def __del__(self) -> None:
        self._close()

    def _issue(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        carry: Callable[[list[torch.Tensor]], list[torch.Tensor]],
        peer: int | None = None,
    ) -> StandInWork:
        where = place()
        assert all(isinstance(one, StandInTensor) and one.place == where for one in [*outputs, *inputs])
        communicator = self._communicator(peer)
        before = list(stream().awaited)
        handled = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3") != "0"
        work = StandInWork(where, [_held(one) for one in outputs], self._timeout, handled)
        with self._lock:
            self._works = [one for one in self._works if not one.is_completed()] + [work]
            if self._aborted.is_set():
                work.done(None)

        def on_copies() -> list[torch.Tensor]:
            return carry([_held(one).detach().clone().contiguous() for one in inputs])

        communicator.orders.put((work, before, on_copies))
        return work

    def _communicator(self, peer: int | None) -> _Communicator:
        """The communicator of all ranks, or of this one and a peer. Waits for its other ranks at its first use."""
        if self._aborted.is_set():
            raise dist.DistBackendError(f"NCCL communicator was aborted on rank {self.rank()}")
        name = "all" if peer is None else "-".join(map(str, sorted((self.rank(), peer))))
        if name not in self._communicators:
            self._meet(peer)
            self._communicators[name] = _Communicator()
        return self._communicators[name]

    def _meet(self, peer: int | None) -> None:
        """Wait until all members of a communicator have come to form it, and refuse two on one device."""
        own = torch.tensor([os.getpid(), place()])
        found: list[torch.Tensor] = []
        has_met = threading.Event()

        def meet() -> None:
            with contextlib.suppress(RuntimeError):  # a lost peer: until an abort
                if peer is None:
                    all_of_them = [torch.empty_like(own) for _ in range(self.size())]
                    self._device.allgather([all_of_them], [own]).wait()
                else:
                    all_of_them = [own, torch.empty_like(own)]
                    works = [self._device.recv([all_of_them[1]], peer, 1), self._device.send([own], peer, 1)]
                    for work in works:
                        work.wait(_FOR_EVER)
                found.extend(all_of_them)
                has_met.set()

        threading.Thread(target=meet, daemon=True, name="communicator").start()
        while not has_met.wait(0.02):
            if self._aborted.is_set():
                raise dist.DistBackendError(f"NCCL communicator was aborted on rank {self.rank()}")
        if len({tuple(one.tolist()) for one in found}) < len(found):
            raise dist.DistBackendError("Duplicate GPU detected: two ranks of a communicator on one device")


def _is_here(tensors: Any) -> bool:
    return isinstance(tensors[0], StandInTensor)


def _held(tensor: torch.Tensor) -> torch.Tensor:
    assert isinstance(tensor, StandInTensor)
    return tensor.held


def new_group(
    store: dist.Store,
    rank: int,
    size: int,
    *,
    connect_timeout: timedelta,
    timeout: timedelta,
    on_gpus: bool,
) -> dist.ProcessGroup:
    """As that of `torch_internals`, on the stand-in."""
    return StandInGroup(store, rank, size, connect_timeout, timeout)


@contextlib.contextmanager
def in_place_of_nccl() -> Iterator[None]:
    """Context in which this process forms groups of the stand-in for NCCL, as on a node with GPUs."""
    with (
        patch.object(nccl, "backend", lambda: NAME),
        patch.object(subgroups, "new_group", new_group),
        patch.object(torch.futures, "Future", Future),
    ):
        yield


def _default_group(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    return StandInGroup(store, rank, size, timeout, COLLECTIVE_TIMEOUT)


dist.Backend.register_backend(NAME, _default_group, devices=["cpu", NAME])
