"""Ranks connect once all are there: gloo's waiting for one that has died in between cannot be broken off."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from oakum_worker.errors import GroupError
from oakum_worker.parallel import group as group_module
from oakum_worker.parallel import subgroups as subgroups_module
from oakum_worker.parallel.group import GenerationGroup
from oakum_worker.parallel.pipeline.links import PeerLinks
from oakum_worker.parallel.pipeline.messages import BoundaryTensors
from oakum_worker.parallel.subgroups import StoreSubgroups, wait_for_all_ranks
from oakum_worker.parallel.waiting import all_reduce
from oakum_worker.protocol import Generation, Member
from oakum_worker.rendezvous.store_client import MembersStore

_TIMEOUT = timedelta(seconds=60)


def test_a_rank_that_dies_between_coming_and_connecting_holds_a_subgroup_up_for_a_little_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subgroups_module, "MESH_TIMEOUT", timedelta(seconds=0.5))
    store = dist.HashStore()
    with ThreadPoolExecutor(1) as threads:
        dying = threads.submit(wait_for_all_ranks, dist.PrefixStore("subgroup-pair", store), 2, _TIMEOUT)
        began_s = time.monotonic()
        with pytest.raises(GroupError, match=r"pair of ranks \[0, 1\] could not be formed"):
            StoreSubgroups(store, 0, _TIMEOUT).form("pair", [0, 1])
        assert time.monotonic() - began_s < _TIMEOUT.total_seconds() / 2
        dying.result()


def test_a_rank_that_dies_between_coming_and_connecting_holds_a_generation_up_for_a_little_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_module, "MESH_TIMEOUT", timedelta(seconds=0.5))
    group = GenerationGroup("127.0.0.1")
    members = [Member(fragment=name, node=name, ranks=(group.endpoint,)) for name in ("f1", "f2")]
    generation = Generation(number=1, members=tuple(members))
    group.expect(generation)
    client = MembersStore(group.endpoint, 1, b"", _TIMEOUT)
    with ThreadPoolExecutor(1) as threads:
        dying = threads.submit(wait_for_all_ranks, dist.PrefixStore("generation-1", client), 2, _TIMEOUT)
        began_s = time.monotonic()
        with pytest.raises(GroupError, match="generation 1 could not be formed"):
            group.form(generation, 0)
        assert time.monotonic() - began_s < _TIMEOUT.total_seconds() / 2
        dying.result()


def test_a_subgroup_that_connects_after_its_generation_was_cut_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generation is over between this rank's word at the store and the other's connecting."""
    gloo = dist.ProcessGroupGloo
    comes, is_cut, is_connected = threading.Event(), threading.Event(), threading.Event()

    def connect(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
        if rank == 1:
            comes.set()
            assert is_cut.wait(_TIMEOUT.total_seconds())
        made = gloo(store, rank, size, timeout)
        if rank == 1:
            is_connected.set()
        # Rank 0 shuts its end down as soon as it has connected.
        assert is_connected.wait(_TIMEOUT.total_seconds())
        return made

    store, group = dist.HashStore(), GenerationGroup("127.0.0.1")
    # As after `form`; what connects to its store would be cut with it.
    group._number, group._sockets = 1, set()
    group._subgroups = StoreSubgroups(store, 0, _TIMEOUT)
    monkeypatch.setattr(dist, "ProcessGroupGloo", connect)
    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(StoreSubgroups(store, 1, _TIMEOUT).form, "pair", [0, 1])
        mine = threads.submit(group.form_subgroup, "pair", [0, 1])
        assert comes.wait(_TIMEOUT.total_seconds())
        assert group.cut(1) == 1
        is_cut.set()
        with pytest.raises(GroupError):
            mine.result()
        theirs = other.result()
        assert theirs is not None
        with pytest.raises(RuntimeError):
            theirs.recv([torch.empty(1)], 0, 0).wait(_TIMEOUT)


def test_coming_messages_and_sums_may_take_longer_than_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = timedelta(seconds=4)
    monkeypatch.setattr(subgroups_module, "MESH_TIMEOUT", mesh)
    store, waits = dist.HashStore(), threading.Semaphore(0)
    activations = BoundaryTensors(0, 0, 1, is_gradient=False)

    def wait_for_the_other() -> list[float]:
        subgroups = StoreSubgroups(store, 1, _TIMEOUT)
        waits.release()
        links = PeerLinks(subgroups, [0, 1], 1, [(0, 1)])
        group = subgroups.form("sum", [0, 1])
        assert group is not None
        links.expect(0, [activations])
        waits.release()
        received = links.receive(0)
        assert isinstance(received, torch.Tensor)
        waits.release()
        all_reduce(received, group)
        return received.tolist()

    def let_it_wait() -> None:
        assert waits.acquire(timeout=_TIMEOUT.total_seconds())
        threading.Event().wait(1.25 * mesh.total_seconds())

    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(wait_for_the_other)
        let_it_wait()
        subgroups = StoreSubgroups(store, 0, _TIMEOUT)
        links = PeerLinks(subgroups, [0, 1], 0, [(0, 1)])
        group = subgroups.form("sum", [0, 1])
        assert group is not None
        let_it_wait()
        links.send(1, activations, torch.ones(3))
        let_it_wait()
        all_reduce(torch.ones(3), group)
        assert result.result() == [2.0, 2.0, 2.0]
        links.settle()
