"""When a generation that was cut has no connections any more."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from oakum_worker.parallel import group as group_module
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
