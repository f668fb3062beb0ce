"""Reserves TCP ports for daemons that are about to start."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

from slurm_cluster.errors import ClusterError

_RANGE = range(10_000, 32_000)
"""Ports below those that Linux uses for outgoing connections."""


@contextlib.contextmanager
def reserved_ports(number: int) -> Iterator[list[int]]:
    """Keep `number` TCP ports that nothing uses from every other caller until the context ends; yields them.

    Within the context, daemons that set `SO_REUSEADDR`, as Slurm's do, can already listen on them. Raises
    `ClusterError` where fewer ports are free.
    """
    reserved: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.sample(_RANGE, len(_RANGE)):
            if len(reserved) == number:
                break
            reservation = held.enter_context(socket.socket())
            # Without SO_REUSEADDR, this fails beside every other socket that is bound to the port. Once it is set,
            # Linux lets daemons listen that set it, too, because the reservation itself never listens.
            try:
                reservation.bind(("0.0.0.0", port))
            except OSError:
                continue
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.append(port)
        if len(reserved) < number:
            raise ClusterError(f"fewer than {number} TCP ports are free between {_RANGE.start} and {_RANGE.stop}")
        yield reserved
