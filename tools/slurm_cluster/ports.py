"""Finds free TCP ports."""

from __future__ import annotations

import contextlib
import random
import socket

from slurm_cluster.errors import ClusterError

_RANGE = range(10_000, 32_000)
"""Ports below those that Linux uses for outgoing connections, so that a port stays free until its daemon binds."""


def free_ports(number: int) -> list[int]:
    """`number` different ports on which nothing listens."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.sample(_RANGE, len(_RANGE)):
            candidate = held.enter_context(socket.socket())
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("0.0.0.0", port))
            except OSError:
                continue
            found.append(port)
            if len(found) == number:
                return found
    raise ClusterError(f"fewer than {number} TCP ports are free between {_RANGE.start} and {_RANGE.stop}")
