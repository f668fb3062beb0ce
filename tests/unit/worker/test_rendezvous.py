"""A rank believes members of its generation alone, whoever reaches its ports."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from cells import each
from oakum_worker.errors import GroupError
from oakum_worker.parallel.group import GenerationGroup
from oakum_worker.parallel.subgroups import StoreSubgroups
from oakum_worker.protocol import Endpoint
from oakum_worker.rendezvous.addresses import interface_of, listen_on
from oakum_worker.rendezvous.store_client import MembersStore, NotServedError
from oakum_worker.rendezvous.store_server import HELLO, StoreServer

SECRET, OTHER = os.urandom(32), os.urandom(32)
PATIENCE = timedelta(seconds=20)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    """A store that serves generation 3 to those that know `SECRET`."""
    made = StoreServer(listen_on("127.0.0.1"))
    made.open(3, SECRET)
    yield made
    made.close()


def at(port: int) -> Endpoint:
    return Endpoint(host="127.0.0.1", port=port)


def member(server: StoreServer, generation: int = 3, secret: bytes = SECRET) -> MembersStore:
    return MembersStore(at(server.port), generation, secret, PATIENCE)


def by_another_secret(port: int) -> None:
    MembersStore(at(port), 3, OTHER, PATIENCE)


def by_another_generation(port: int) -> None:
    MembersStore(at(port), 2, SECRET, PATIENCE)


def by_torchs_protocol(port: int) -> None:
    dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=0.3))


def by_any_words(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(PATIENCE.total_seconds())
        connection.sendall(b"\0" * HELLO.size + b'["set", "there", "2"]')
        while connection.recv(4096):
            pass
        raise ConnectionResetError("sent away")


@each("attempt", [by_another_secret, by_another_generation, by_torchs_protocol, by_any_words])
def test_a_stranger_reads_and_changes_nothing(server: StoreServer, attempt: Callable[[int], None]) -> None:
    store = member(server)
    store.set("there", "1")
    with pytest.raises((OSError, dist.DistError)):
        attempt(server.port)
    assert (store.get("there"), store.num_keys()) == (b"1", 1)


def test_who_stands_in_for_the_store_is_not_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def pretend() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(os.urandom(32))
                connection.recv(HELLO.size)
                connection.sendall(os.urandom(32))

        threading.Thread(target=pretend).start()
        with pytest.raises(NotServedError, match="does not know the secret"):
            MembersStore(at(listening.getsockname()[1]), 3, SECRET, PATIENCE)


def test_strangers_that_say_nothing_keep_no_member_out(server: StoreServer) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(600)]
    try:
        assert member(server).num_keys() == 0
    finally:
        for one in silent:
            one.close()


def test_a_generation_after_the_next_ends_the_store_of_this_one(server: StoreServer) -> None:
    first = member(server)
    server.open(4, OTHER)
    first.set("still", "served")
    server.open(5, OTHER)
    with pytest.raises(OSError):
        first.get("still")
    assert member(server, 5, OTHER).num_keys() == 0


def test_it_does_what_torch_asks_of_a_store(server: StoreServer) -> None:
    whole = member(server)  # torch's reference does not keep it alive
    store = dist.PrefixStore("group", whole)
    store.set("bytes", bytes(range(256)))
    whole.append("group/bytes", b"\xff")
    assert store.get("bytes") == bytes(range(256)) + b"\xff"
    assert [store.add("number", 2), store.add("number", -1)] == [2, 1]
    assert store.compare_set("mine", "", "first") == b"first"
    assert store.compare_set("mine", "second", "third") == b"first"
    assert [store.check(["bytes", "mine"]), store.check(["mine", "none"])] == [True, False]
    whole.multi_set(["a", "b"], ["1", "2"])
    assert whole.multi_get(["a", "b"]) == [b"1", b"2"]
    assert [whole.delete_key("a"), whole.delete_key("a")] == [True, False]
    assert whole.clone().get("b") == b"2"
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(member(server).wait, ["group/late"])
        store.set("late", "")
        waiting.result(PATIENCE.total_seconds())
    with pytest.raises(OSError):
        member(server).wait(["never"], timedelta(seconds=0.05))


@pytest.mark.parametrize("secrets", [(SECRET, SECRET), (SECRET, OTHER)], ids=["members", "a stranger"])
def test_who_came_to_a_group_first_has_to_know_the_secret(secrets: tuple[bytes, bytes]) -> None:
    """gloo takes whoever connects first for the rank that was to come."""
    store = dist.HashStore()

    def come(rank: int) -> Any:
        return StoreSubgroups(store, rank, PATIENCE, secret=secrets[rank]).form("pair", [0, 1])

    with ThreadPoolExecutor(2) as threads:
        coming = [threads.submit(come, rank) for rank in (0, 1)]
        if secrets[0] == secrets[1]:
            assert all(one.result() is not None for one in coming)
            return
        for rank, one in enumerate(coming):
            with pytest.raises(GroupError, match=f"rank {1 - rank} of the group pair does not know the secret"):
                one.result()


def test_a_rank_listens_on_its_nodes_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "another")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert GenerationGroup("localhost").endpoint.host == "127.0.0.1"
    assert os.environ["GLOO_SOCKET_IFNAME"] == interface_of("127.0.0.1")
    # As Debian has it: the node's own name is a loopback address, and the service is reached over another.
    names = {"node": "127.0.1.1", "service": "127.0.0.1"}
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **named: real(names[host], *more, **named))
    with listen_on("node", towards="service") as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
    with pytest.raises(OSError, match="the name of this node"):
        listen_on("node")


def test_who_hands_a_handshake_on_is_not_believed(server: StoreServer) -> None:
    """An account that listens on another address of rank 0's node, at the same port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hand_on() -> None:
            theirs, _ = listening.accept()
            with theirs, socket.create_connection(("127.0.0.1", server.port)) as ours:
                theirs.sendall(ours.recv(32))
                ours.sendall(theirs.recv(HELLO.size))
                theirs.sendall(ours.recv(32))

        threading.Thread(target=hand_on).start()
        with pytest.raises(NotServedError):
            MembersStore(at(listening.getsockname()[1]), 3, SECRET, PATIENCE)


def test_a_message_that_was_changed_on_its_way_is_not_believed(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, theirs = member(server), member(server)
    theirs.set("address", "mine")
    monkeypatch.setattr(store._ours, "of", lambda message: bytes(32))
    with pytest.raises(OSError):
        store.set("address", "a stranger's")
    assert theirs.get("address") == b"mine"
    monkeypatch.setattr(theirs._theirs, "of", lambda message: bytes(32))
    with pytest.raises(OSError, match="somebody else has answered"):
        theirs.check(["address"])
