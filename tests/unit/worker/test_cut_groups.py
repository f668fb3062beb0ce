"""What ends with a generation that is over: its connections, and on GPUs its collectives."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oakum_worker.parallel import group as group_module
from oakum_worker.parallel import nccl
from oakum_worker.parallel.group import GenerationGroup


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """One end of a TCP connection whose other end stays open."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as ours,
        listening.accept()[0],
    ):
        yield ours


@pytest.fixture
def group(connection: socket.socket) -> GenerationGroup:
    """The group of generation 1, of which this is the only connection."""
    formed = GenerationGroup("127.0.0.1")
    formed._number = 1
    formed._sockets = {str(Path(f"/proc/self/fd/{connection.fileno()}").readlink())}
    return formed


def test_it_has_none_once_they_are_closed(group: GenerationGroup, connection: socket.socket) -> None:
    assert not group._is_disconnected(1)
    group.cut(1)
    assert not group._is_disconnected(1)
    connection.close()
    assert group._is_disconnected(1)


def test_one_that_gloo_never_closes_does_not_count(
    group: GenerationGroup, connection: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.cut(1)
    group.cut(1)  # a later directive does not begin the time anew
    monkeypatch.setattr(group_module, "_CLOSING_S", 0.0)
    assert connection.fileno() >= 0
    assert group._is_disconnected(1)


def test_connections_that_are_closed_do_not_end_a_generation_that_is_not_cut(
    group: GenerationGroup, connection: socket.socket
) -> None:
    connection.close()
    assert not group._is_disconnected(1)
    group.cut(0)
    assert not group._is_disconnected(1)


class Aborted:
    """A process group that counts how often it was aborted."""

    def __init__(self) -> None:
        self.times = 0

    def abort(self) -> None:
        self.times += 1


@pytest.fixture
def formed(group: GenerationGroup, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The generation's groups on GPUs."""
    groups: list[Any] = [Aborted()]
    monkeypatch.setattr(nccl, "is_in_use", lambda: True)
    monkeypatch.setattr(group, "_subgroups", SimpleNamespace(formed=groups))
    return groups


def test_a_group_that_forms_while_its_generation_is_cut_is_aborted_too(
    group: GenerationGroup, formed: list[Any]
) -> None:
    group.cut(1)
    formed.append(Aborted())
    group.cut(1)
    group.leave()
    assert [one.times for one in formed] == [1, 1]


def test_broken_groups_that_are_left_before_they_are_cut_are_aborted(
    group: GenerationGroup, formed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "_broken_groups", lambda: list(formed))
    group.leave()
    assert [one.times for one in formed] == [1]
