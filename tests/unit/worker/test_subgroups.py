"""Ranks connect once all are there: gloo's waiting for one that has died in between cannot be broken off."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from oakum_worker import group as group_module
from oakum_worker.errors import GroupError
from oakum_worker.group import GenerationGroup
from oakum_worker.parallel import subgroups as subgroups_module
from oakum_worker.parallel.pipeline.links import Links
from oakum_worker.parallel.pipeline.messages import Part
from oakum_worker.parallel.subgroups import StoreSubgroups, meet
from oakum_worker.protocol import Generation, Member

_TIMEOUT = timedelta(seconds=60)


def test_a_rank_that_dies_between_coming_and_connecting_holds_a_subgroup_up_for_a_little_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subgroups_module, "MESH_TIMEOUT", timedelta(seconds=0.5))
    store = dist.HashStore()
    with ThreadPoolExecutor(1) as threads:
        dying = threads.submit(meet, dist.PrefixStore("subgroup-pair", store), 2, _TIMEOUT)
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
    client = dist.TCPStore("127.0.0.1", group.endpoint.port, is_master=False, wait_for_workers=False)
    with ThreadPoolExecutor(1) as threads:
        dying = threads.submit(meet, dist.PrefixStore("generation-1", client), 2, _TIMEOUT)
        began_s = time.monotonic()
        with pytest.raises(GroupError, match="generation 1 could not be formed"):
            group.form(Generation(number=1, members=tuple(members)), 0)
        assert time.monotonic() - began_s < _TIMEOUT.total_seconds() / 2
        dying.result()


def test_a_message_may_take_longer_than_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = timedelta(seconds=1)
    monkeypatch.setattr(subgroups_module, "MESH_TIMEOUT", mesh)
    store, asked = dist.HashStore(), threading.Event()
    activations = Part(0, 0, 1, is_gradient=False)

    def receive() -> torch.Tensor:
        links = Links(StoreSubgroups(store, 1, _TIMEOUT), [0, 1], 1, [(0, 1)])
        links.expect(0, [activations])
        asked.set()
        return links.receive(0)

    with ThreadPoolExecutor(1) as threads:
        received = threads.submit(receive)
        links = Links(StoreSubgroups(store, 0, _TIMEOUT), [0, 1], 0, [(0, 1)])
        assert asked.wait(_TIMEOUT.total_seconds())
        threading.Event().wait(2 * mesh.total_seconds())
        links.send(1, activations, torch.ones(3))
        assert received.result().tolist() == [1.0, 1.0, 1.0]
        links.settle()
