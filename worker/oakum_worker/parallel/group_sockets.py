"""This process's sockets, by the names that the kernel gives them, and what ends the connections among them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of asm-generic/socket.h."""
_DROP_ALL = struct.pack("HBBI", 6, 0, 0, 0)
"""A filter of linux/filter.h that returns 0: of each packet keep nothing."""


def own_sockets() -> dict[str, int]:
    """This process's open sockets: name -> descriptor. The kernel gives each socket a name of its own, such as
    `socket:[4711]`.

    Sockets are told apart by name and not by descriptor: a broken group closes its sockets slowly, and the next
    group's sockets get the descriptors that become free meanwhile.
    """
    descriptors = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            name = str(entry.readlink())
            if name.startswith("socket:"):
                descriptors[name] = int(entry.name)
    return descriptors


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket object for a duplicate of the descriptor; closing it leaves the original open."""
    handle = socket.socket(fileno=os.dup(descriptor))
    try:
        yield handle
    finally:
        handle.close()


def shut_down(descriptor: int, own_port: int) -> None:
    """Shut down the socket if it is connected, but not to this process's own store at `own_port`.

    A listening socket is left alone: gloo terminates the process if one of its own is shut down. Peers may already
    meet at the store for the next generation.
    """
    if is_connection(descriptor, own_port):
        with contextlib.suppress(OSError), _borrowed(descriptor) as handle:
            handle.getpeername()
            handle.shutdown(socket.SHUT_RDWR)


def deafen(names: set[str]) -> None:
    """Let the kernel drop whatever comes for those of the sockets `names` that listen.

    gloo keeps its own open for as long as the group lives, keeps every connection of a stranger, and ends the
    process when it has no descriptor left for another. It does so, too, where one of them is shut down or closed.
    """
    program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    attached = struct.pack("HP", 1, ctypes.addressof(program))
    for name, descriptor in own_sockets().items():
        if name in names:
            with contextlib.suppress(OSError), _borrowed(descriptor) as handle:
                if handle.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    handle.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, attached)


def is_connection(descriptor: int, own_port: int) -> bool:
    """Whether the socket is a TCP connection, broken or not, other than to this process's own store at
    `own_port`."""
    with contextlib.suppress(OSError), _borrowed(descriptor) as handle:
        return (
            handle.family in (socket.AF_INET, socket.AF_INET6)
            and not handle.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            and handle.getsockname()[1] != own_port
        )
    return False
