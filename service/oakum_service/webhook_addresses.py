"""Decides which addresses webhooks may reach. Users choose the addresses, and the service runs inside the
site's network, so it must not be made to call arbitrary hosts there."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import SplitResult, urlsplit

from oakum_service.errors import NoticeRefused

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class VettedAddress:
    """A webhook's address whose host was looked up and found to be allowed, with the IP address to connect to."""

    tls: bool
    host: str
    port: int
    address: str
    """IP address of the host, to connect to. A second look-up could return another one."""
    resource: str
    """Path and query of the URL."""


class AllowedAddresses:
    """The hosts and networks that an administrator allows webhooks to reach."""

    def __init__(self, entries: Sequence[str], *, public: bool) -> None:
        """`entries`: host names (`hooks.example.org`, `*.example.org`) and networks (`10.1.0.0/16`); `public`:
        whether every public Internet address is allowed as well. Raises `ValueError` for an entry that is
        neither a name nor a network."""
        self._public = public
        self._names: list[str] = []
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in entries:
            try:
                self._networks.append(ipaddress.ip_network(entry))
            except ValueError as error:
                if "/" in entry or not entry.strip("*.") or ":" in entry:
                    raise ValueError(f"{entry!r} is no host, *.domain or network: {error}") from error
                self._names.append(entry.lower())

    def target(self, url: str) -> VettedAddress:
        """Look the URL's host up and check all its IP addresses. Returns where to connect. Raises `NoticeRefused`
        if one may not be called, `OSError` if no such host is found."""
        parts = urlsplit(url)
        self.check(parts)
        host, tls = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]) for entry in found]
        for address in addresses:
            self._check_address(host, address)
        resource = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return VettedAddress(tls, host, port, addresses[0], resource)

    def check(self, parts: SplitResult) -> None:
        """Raise `NoticeRefused` if the URL has a forbidden IP address as its host. Host names are not looked up,
        so they pass."""
        host = parts.hostname or ""
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return
        self._check_address(host, host)

    def _check_address(self, host: str, address: str) -> None:
        if any(fnmatchcase(host.lower().rstrip("."), name) for name in self._names):
            return
        ip = _innermost(ipaddress.ip_address(address.split("%")[0]))
        if any(ip in network for network in self._networks):
            return
        if self._public and ip.is_global and not ip.is_multicast:
            return
        what = "not a public address" if self._public else "not in a network that is allowed"
        raise NoticeRefused(
            f"{host} is {what}: an administrator can allow it with OAKUM_NOTICES_ALLOW, hosts and networks"
        )


def _innermost(ip: IpAddress) -> IpAddress:
    """The IPv4 address that an IPv6 address leads to (NAT64, mapped, 6to4, Teredo); otherwise the address
    itself."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else ip)
