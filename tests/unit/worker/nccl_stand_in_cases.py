"""The rules of the group that stands in for NCCL's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist

import nccl_stand_in
from gpu_stand_in import DEVICE, at
from nccl_stand_in import StandInGroup
from oakum_worker.parallel import nccl
from rank_threads import RankThreads
from waiting import DEADLINE_S, wait_until

R = TypeVar("R")
_CONNECT = timedelta(seconds=20)


@pytest.fixture(autouse=True)
def nothing_ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(nccl_stand_in, "ENDED", ended := [])
    yield
    assert not ended


def on_devices(
    num_ranks: int,
    function: Callable[[StandInGroup, int], R],
    places: tuple[int, ...] = (0, 1, 2),
    timeout: timedelta = _CONNECT,
) -> list[R]:
    """Run `function(group, rank)` in a thread for each rank, with a device of its own."""
    store = dist.HashStore()

    def as_rank(rank: int) -> R:
        with at(places[rank]):
            return function(StandInGroup(store, rank, num_ranks, _CONNECT, timeout), rank)

    return RankThreads(as_rank, range(num_ranks)).results()


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, device=DEVICE)


def test_a_wait_orders_and_a_read_waits() -> None:
    late = threading.Event()

    def run(group: StandInGroup, rank: int) -> tuple[bool, list[float]]:
        group.allreduce([numbers(0.0)]).wait()  # forms the communicator
        nccl.synchronise(DEVICE)
        if rank == 1:
            assert late.wait(DEADLINE_S)
        tensor = numbers(1.0, rank)
        work = group.allreduce([tensor])
        work.wait()
        went_on = not work.is_completed()
        late.set()
        return went_on, (2 * tensor).tolist()

    (went_on, first), (_, second) = on_devices(2, run)
    assert went_on
    assert first == second == [4.0, 2.0]


def test_tensors_of_the_cpu_go_through_gloo() -> None:
    def run(group: StandInGroup, rank: int) -> float:
        tensor = torch.tensor([float(rank)])
        group.allreduce([tensor]).wait()
        return tensor.item()

    assert on_devices(3, run) == [3.0] * 3


def test_messages_of_a_pair_match_in_their_order_whatever_their_tags() -> None:
    def run(group: StandInGroup, rank: int) -> list[float]:
        if rank == 0:
            for tag in (1, 2):
                group.send([numbers(float(tag))], 1, tag).wait()
            nccl.synchronise(DEVICE)
            return []
        arrived = [numbers(0.0), numbers(0.0)]
        for tag in (2, 1):
            group.recv([arrived[tag - 1]], 0, tag).wait()
        return [one.item() for one in arrived]

    assert on_devices(2, run)[1] == [2.0, 1.0]


def test_what_is_never_received_blocks_what_follows_and_an_abort_frees_it() -> None:
    asked = threading.Barrier(2)

    def run(group: StandInGroup, rank: int) -> list[bool]:
        first = group.send([numbers(1.0)], 1) if rank == 0 else group.recv([numbers(0.0)], 0)
        first.end()
        if rank == 1:
            asked.wait(DEADLINE_S)
            return []
        sent, following = group.send([numbers(1.0)], 1), group.recv([tensor := numbers(0.0)], 1)
        for work in (sent, following):
            work.wait()
        is_blocked = not sent.is_completed() and not following.is_completed()
        asked.wait(DEADLINE_S)
        group.abort()
        return [is_blocked, bool(tensor.isnan().item())]

    assert on_devices(2, run)[0] == [True, True]


def test_a_lost_peer_hangs_who_waits_for_it_until_an_abort_which_leaves_rubbish() -> None:
    gone = threading.Event()

    def run(group: StandInGroup, rank: int) -> list[Any]:
        group.allreduce([numbers(0.0)]).end()
        if rank == 1:
            group._device = None  # closes the connections, as the end of a process does
            gone.set()
            return []
        assert gone.wait(DEADLINE_S)
        tensor = numbers(1.0)
        work = group.allreduce([tensor])
        work.wait()
        hangs = not work._ended.wait(0.2)
        group.abort()
        with pytest.raises(dist.DistBackendError, match="was aborted on rank 0"):
            group.allreduce([tensor])
        return [hangs, bool(tensor.isnan().item())]

    assert on_devices(2, run)[0] == [True, True]


def test_two_ranks_on_one_device_are_refused() -> None:
    def run(group: StandInGroup, rank: int) -> None:
        with pytest.raises(dist.DistBackendError, match="Duplicate GPU"):
            group.allreduce([numbers(0.0)])

    on_devices(2, run, places=(0, 0))


def test_an_abort_waits_behind_another_groups_collective_unless_that_is_aborted_meanwhile() -> None:
    """In turn the first abort would never end."""
    store, met = dist.HashStore(), threading.Barrier(2)

    def run(one: StandInGroup, rank: int) -> None:
        other = StandInGroup(dist.PrefixStore("other", store), rank, 2, _CONNECT)
        for group in (one, other):
            group.allreduce([numbers(0.0)]).end()
        if rank == 0:
            works = [group.allreduce([numbers(0.0)]) for group in (one, other)]
            first = nccl.abort([one])[0]
            first.join(0.2)
            assert first.is_alive()
            for thread in nccl.abort([other]):
                thread.join(DEADLINE_S)
            first.join(DEADLINE_S)
            assert not first.is_alive()
            assert all(work.is_completed() for work in works)
        met.wait(DEADLINE_S)

    on_devices(2, run)


@pytest.mark.parametrize("handling", [None, "0"])
def test_a_collective_that_outlives_its_time_ends_the_process_unless_told_not_to(
    monkeypatch: pytest.MonkeyPatch, handling: str | None
) -> None:
    monkeypatch.setattr(nccl_stand_in, "ENDED", ended := [])
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    if handling is not None:
        monkeypatch.setitem(os.environ, "TORCH_NCCL_ASYNC_ERROR_HANDLING", handling)
    over = threading.Barrier(2)

    def run(group: StandInGroup, rank: int) -> None:
        group.allreduce([numbers(0.0)]).end()
        if rank == 0:
            work = group.allreduce([numbers(0.0)])
            if handling is None:
                wait_until("the watchdog has seen it", lambda: bool(ended))
            else:
                assert work._timer is None
            group.abort()
        over.wait(DEADLINE_S)

    on_devices(2, run, timeout=timedelta(seconds=0.2))
    assert bool(ended) is (handling is None)
