"""The address on which a rank listens: the one by which the other ranks come, and no other."""

from __future__ import annotations

import ipaddress
import socket

import psutil


def listen_on(host: str, towards: str | None = None) -> socket.socket:
    """A listening TCP socket with a free port, on the first address that `host`, the name or address of this node,
    leads to and that can be listened on.

    Where the name leads to a loopback address, as with Debian's `/etc/hosts`, or to one that no interface has, the
    socket listens on the address from which packets to the host `towards` are sent. Raises `OSError` where neither
    can be listened on.
    """
    refused: OSError | None = None
    for address in _addresses_of(host):
        if not _is_loopback(address) or _is_meant(host):
            try:
                return _listening(address)
            except OSError as error:
                refused = error
    source = _source_towards(towards) if towards is not None else None
    if source is None:
        raise refused or OSError(f"{host}, the name of this node, leads to none of its addresses")
    return _listening(source)


def interface_of(address: str) -> str | None:
    """The name of the interface that has an IPv4 address; None where none has it."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.family == socket.AF_INET and one.address == address for one in addresses):
            return name
    return None


def _listening(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.bind((address, 0))
        listening.listen(socket.SOMAXCONN)
    except OSError:
        listening.close()
        raise
    return listening


def _addresses_of(host: str) -> list[str]:
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(address[0]) for *_, address in addresses))


def _source_towards(host: str) -> str | None:
    """The address of this node from which packets to a host go."""
    for address in _addresses_of(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((address, 9))  # sends nothing
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return None


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _is_meant(host: str) -> bool:
    """Whether the host is given as a loopback address or as `localhost`, and does not only lead to one by this
    node's own tables. All ranks are then on this node."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
