"""Messages between two workers: threads of this process over gloo."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist

from oakum_worker.errors import GroupError, TaskError
from oakum_worker.parallel.pipeline.links import PeerLinks, pairs_of
from oakum_worker.parallel.pipeline.messages import BoundaryTensors
from oakum_worker.parallel.pipeline.schedules import build
from oakum_worker.parallel.subgroups import StoreSubgroups, Subgroups
from pipeline_ranks import die_once, in_threads

BOTH = {(0, 1), (1, 0)}


def activations(num_samples: int = 2) -> BoundaryTensors:
    return BoundaryTensors(pipe=0, boundary=0, num_samples=num_samples, is_gradient=False)


def gradients(num_samples: int = 2) -> BoundaryTensors:
    return BoundaryTensors(pipe=0, boundary=0, num_samples=num_samples, is_gradient=True)


def link(rank: int, subgroups: Subgroups) -> PeerLinks:
    return PeerLinks(subgroups, [0, 1], rank, BOTH)


def exchange(values: Any, *, times: int = 1) -> list[Any]:
    """Send `values` from rank 0 to rank 1 `times` times; returns what rank 1 has received."""

    def run(rank: int, subgroups: Subgroups) -> list[Any]:
        links = link(rank, subgroups)
        if rank == 0:
            for _ in range(times):
                links.send(1, activations(), values)
            links.settle()
            return []
        links.expect(0, [activations()] * times)
        return [links.receive(0) for _ in range(times)]

    return in_threads(2, run)[1]


ALL_KINDS = (
    torch.tensor([[1.5, -2.0], [0.1, 3.0]], dtype=torch.bfloat16, requires_grad=True),
    torch.tensor([[1.5, -2.0], [0.1, 3.0]], dtype=torch.float64),
    torch.tensor([[True], [False]]),
    torch.tensor([[1, -(2**40)]]),
    torch.tensor([1 + 2j, 3 - 1j], requires_grad=True),
    torch.tensor(7.0, requires_grad=True),
    torch.empty(2, 0),
    torch.arange(6.0).reshape(2, 3).T,
)


def test_tensors_of_every_kind_arrive_bit_by_bit_and_as_leaves() -> None:
    first, again = exchange(ALL_KINDS, times=2)
    for arrived in (first, again):
        assert isinstance(arrived, tuple)
        assert [t.dtype for t in arrived] == [t.dtype for t in ALL_KINDS]
        assert all(torch.equal(there, here) for there, here in zip(arrived, ALL_KINDS, strict=True))
        assert [t.requires_grad for t in arrived] == [t.requires_grad for t in ALL_KINDS]
        assert all(t.is_leaf for t in arrived)


def test_a_tensor_stays_one_and_a_tuple_of_one_stays_a_tuple() -> None:
    alone, inside = torch.ones(2), (torch.ones(2),)
    assert isinstance(exchange(alone)[0], torch.Tensor)
    assert isinstance(exchange(inside)[0], tuple)


def test_a_header_goes_ahead_of_the_first_activations_of_a_place_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    isend = dist.isend

    def counted(tensor: torch.Tensor, **options: Any) -> Any:
        sent.append(tensor.numel())
        return isend(tensor, **options)

    monkeypatch.setattr(dist, "isend", counted)

    def run(rank: int, subgroups: Subgroups) -> None:
        links = link(rank, subgroups)
        if rank == 0:
            for num_samples in (2, 2, 1, 2):
                links.send(1, activations(num_samples), torch.ones(num_samples, 3, requires_grad=True))
            links.expect(1, [gradients()] * 2)
            assert [links.receive(1)[0].tolist() for _ in range(2)] == [[[5.0] * 3] * 2] * 2
        else:
            links.expect(0, [activations(number) for number in (2, 2, 1, 2)])
            assert [tuple(links.receive(0).shape) for _ in range(4)] == [(2, 3), (2, 3), (1, 3), (2, 3)]
            for _ in range(2):
                links.send(0, gradients(), (torch.full((2, 3), 5.0),))
        links.settle()

    in_threads(2, run)
    headers = [size for size in sent if size == 8]
    assert len(headers) == 2  # for 2 samples and for 1
    assert sorted(size for size in sent if size in (12, 24)) == [12, 24, 24, 24, 24, 24]


def test_gradients_that_nothing_requires_are_an_empty_message() -> None:
    def run(rank: int, subgroups: Subgroups) -> Any:
        links = link(rank, subgroups)
        if rank == 0:
            links.send(1, activations(), (torch.tensor([1]), torch.tensor([2.0])))
            links.expect(1, [gradients()])
            received = links.receive(1)
            links.settle()  # Nothing else waits for rank 1 here.
            return received
        links.expect(0, [activations()])
        links.receive(0)
        links.send(0, gradients(), ())
        return links.settle()

    assert in_threads(2, run)[0] == ()


def test_other_shapes_of_as_many_samples_are_refused_with_both_shapes() -> None:
    def run(rank: int, subgroups: Subgroups) -> None:
        links = link(rank, subgroups)
        if rank == 0:
            links.send(1, activations(), torch.ones(2, 3))
            with pytest.raises(TaskError, match=r"\[2, 3\] at first and are torch.float32 \[2, 4\] now"):
                links.send(1, activations(), torch.ones(2, 4))
            links.settle()
        else:
            links.expect(0, [activations()])
            links.receive(0)

    in_threads(2, run)


def test_receives_are_posted_before_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[int] = []
    irecv = dist.irecv

    def counted(tensor: torch.Tensor, **options: Any) -> Any:
        if tensor.numel() == 24:
            posted.append(tensor.numel())
        return irecv(tensor, **options)

    monkeypatch.setattr(dist, "irecv", counted)

    def run(rank: int, subgroups: Subgroups) -> list[int]:
        links = link(rank, subgroups)
        if rank == 0:
            for _ in range(6):
                links.send(1, activations(), torch.ones(2, 3))
            links.settle()
            return []
        counts = []
        for _ in range(2):
            links.expect(0, [activations()] * 3)
            counts.append(len(posted))
            for _ in range(3):
                links.receive(0)
                counts.append(len(posted))
        return counts

    # At first the header has to come; then two messages are asked for ahead.
    assert in_threads(2, run)[1] == [0, 3, 3, 3, 5, 6, 6, 6]


class Memory(bytearray):
    """Memory of a tensor; a weak reference to it tells when it is freed."""


def test_memory_is_kept_until_a_message_has_arrived_and_no_longer() -> None:
    answer = BoundaryTensors(pipe=0, boundary=1, num_samples=2, is_gradient=False)

    def run(rank: int, subgroups: Subgroups) -> list[list[bool]]:
        links = link(rank, subgroups)
        if rank == 1:
            links.expect(0, [activations()] * 3)
            for _ in range(3):
                links.receive(0)
            links.send(0, answer, torch.ones(1))
            links.settle()
            return []
        memories, seen = [], []
        for _ in range(3):
            memory = Memory(24)
            memories.append(weakref.ref(memory))
            links.send(1, activations(), torch.frombuffer(memory, dtype=torch.float32))
            del memory
        seen.append([memory() is not None for memory in memories])
        links.expect(1, [answer])
        links.receive(1)
        links.release(1, 2)
        seen.append([memory() is not None for memory in memories])
        links.settle()
        seen.append([memory() is not None for memory in memories])
        return seen

    seen = in_threads(2, run)[0]
    assert seen == [[True, True, True], [False, False, True], [False, False, False]]


def test_two_workers_may_send_much_to_each_other_at_once() -> None:
    def run(rank: int, subgroups: Subgroups) -> float:
        links = link(rank, subgroups)
        part = BoundaryTensors(0, rank, 1, False)
        for _ in range(3):
            links.send(1 - rank, part, torch.full((1 << 20,), float(rank)))
        links.expect(1 - rank, [BoundaryTensors(0, 1 - rank, 1, False)] * 3)
        total = sum(float(links.receive(1 - rank)[0]) for _ in range(3))
        links.settle()
        return total

    assert in_threads(2, run) == [3.0, 0.0]


def test_a_lost_peer_is_a_group_error() -> None:
    linked = threading.Event()

    def run(rank: int, subgroups: StoreSubgroups) -> None:
        links = link(rank, subgroups)
        if rank == 1:
            die_once(linked, subgroups)
        else:
            linked.set()
            links.expect(1, [activations()])
            with pytest.raises(GroupError, match="a rank was lost before its message had come"):
                links.receive(1)

    in_threads(2, run)


def test_workers_are_linked_where_the_schedule_sends() -> None:
    assert pairs_of(build("1f1b", num_workers=3, num_micro_batches=3)) == {(0, 1), (1, 0), (1, 2), (2, 1)}
    ring = pairs_of(build("interleaved", num_workers=3, num_micro_batches=3))
    assert ring == {(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)}
