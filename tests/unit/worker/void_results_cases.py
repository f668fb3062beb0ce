"""What collectives leave that were aborted on GPUs is used nowhere: their waits raise nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from cells import each
from gpu_stand_in import DEVICE, at
from nccl_stand_in import StandInGroup
from oakum_worker.errors import GroupError
from oakum_worker.parallel import nccl, waiting
from oakum_worker.parallel.state_broadcast import broadcast_state
from oakum_worker.step.ranks import Ranks
from rank_threads import RankThreads
from waiting import DEADLINE_S, wait_until

_CONNECT = timedelta(seconds=20)
_VOID = "the results of its collectives are void"


@pytest.fixture(autouse=True)
def cut(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Whether the generation has been cut."""
    is_cut = threading.Event()
    monkeypatch.setattr(waiting._CONNECTIONS, "are_cut", is_cut.is_set)
    return is_cut


def sums(group: StandInGroup) -> Any:
    ranks = Ranks(DEVICE, passes_communicate=False)
    ranks.join(group, 0, 2)
    return ranks.sums(1.0, 2.0)


def has_any(group: StandInGroup) -> Any:
    ranks = Ranks(DEVICE, passes_communicate=False)
    ranks.join(group, 0, 2)
    return ranks.has_any(True)


def receive(group: StandInGroup) -> Any:
    return broadcast_state(None, group, rank=0, source=1, device=DEVICE)


def check(group: StandInGroup) -> Any:
    """A step whose gradients are still being summed when the others' votes have come: only a look at the device
    tells that they will never be."""
    ranks = Ranks(DEVICE, passes_communicate=True)
    ranks.join(group, 0, 2)
    work = waiting.begin_all_reduce(torch.ones(3, device=DEVICE), group)
    waiting.wait_for(work, torch.ones((), device="meta"))
    ranks.refuse_what_is_void()
    return None


@each("use", [sums, has_any, receive, check])
def test_the_peer_is_lost_and_the_generation_cut(use: Callable[[StandInGroup], Any], cut: threading.Event) -> None:
    cut.clear()
    store, is_over = dist.HashStore(), threading.Event()

    def as_rank(rank: int) -> None:
        with at(rank):
            group = StandInGroup(store, rank, 2, _CONNECT)
            waiting.all_reduce(torch.ones(1, device=DEVICE), group)
            nccl.synchronise(DEVICE)
            if rank == 1:
                assert is_over.wait(DEADLINE_S)
                return
            cutter = threading.Thread(target=cut_when_it_waits, args=(group,), daemon=True)
            cutter.start()
            with pytest.raises(GroupError, match=_VOID):
                use(group)
            is_over.set()

    def cut_when_it_waits(group: StandInGroup) -> None:
        wait_until("a collective is under way", lambda: any(not work.is_completed() for work in group._works))
        cut.set()
        group.abort()

    RankThreads(as_rank, range(2)).results()
