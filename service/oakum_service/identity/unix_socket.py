"""The service's Unix socket, on which the kernel says which account a caller has."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

from oakum_service.errors import ConfigurationError

_LONGEST_PATH = 107
"""Bytes of a socket's path, without the zero at its end (`sockaddr_un`, unix(7))."""


def listen_on_socket(path: Path) -> socket.socket:
    """Bind the service's socket, to which every account may connect that reaches its folder. Raises
    `ConfigurationError` where there cannot be one."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise ConfigurationError("OAKUM_SOCKET needs Linux, whose kernel tells who calls")
    if len(str(path).encode()) > _LONGEST_PATH:
        raise ConfigurationError(
            f"OAKUM_SOCKET: {path} is longer than the {_LONGEST_PATH} bytes that a socket's path may have"
        )
    _make_way(path)
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(str(path))
        path.chmod(0o666)
    except OSError as error:
        listening.close()
        raise ConfigurationError(f"OAKUM_SOCKET: no socket can be made at {path}: {error.strerror}") from error
    listening.set_inheritable(False)
    return listening


def _make_way(path: Path) -> None:
    """Remove the socket that an ended service has left. Raises `ConfigurationError` where something else is, or
    somebody still answers."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # nothing is there, or it cannot be seen: bind will say
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(
            f"OAKUM_SOCKET: {path} exists and is no socket: remove it, or choose another path"
        )
    with socket.socket(socket.AF_UNIX) as caller:
        try:
            caller.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise ConfigurationError(f"OAKUM_SOCKET: another service already listens on {path}: choose another path")
