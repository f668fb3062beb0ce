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
_NOT_PUBLIC = [
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
        "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
        "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "::/128", "::1/128",
        "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001:db8::/32", "3fff::/20",
        "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
    )
]  # fmt: skip
"""What IANA's registries of special-purpose addresses (iana-ipv4-special-registry, iana-ipv6-special-registry) do
not call globally reachable, multicast, and what is reserved no more: relays of 6to4, site-local addresses."""
_THIS_MACHINE = ipaddress.IPv6Network("::/127")
_EMBEDDING = {
    ipaddress.IPv6Network("::/96"): 0,  # IPv4-compatible
    ipaddress.IPv6Network("::ffff:0:0/96"): 0,  # IPv4-mapped
    ipaddress.IPv6Network("::ffff:0:0:0/96"): 0,  # IPv4-translated (RFC 2765)
    ipaddress.IPv6Network("64:ff9b::/96"): 0,  # NAT64
    ipaddress.IPv6Network("2002::/16"): 80,  # 6to4
}
"""Networks whose addresses lead to an IPv4 address in them, and how many bits follow that."""


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
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(entry[4][0]) for entry in entries]
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
        leads_to = _led_to(ipaddress.ip_address(address.split("%")[0]))
        if all(any(ip in network for network in self._networks) for ip in leads_to):
            return
        if self._public and not any(ip in network for ip in leads_to for network in _NOT_PUBLIC):
            return
        what = "not a public address" if self._public else "not in a network that is allowed"
        raise NoticeRefused(
            f"{host} is {what}: an administrator can allow it with OAKUM_NOTICES_ALLOW, hosts and networks"
        )


def _led_to(ip: IpAddress) -> list[IpAddress]:
    """The IPv4 addresses that an IPv6 address leads to; otherwise the address itself."""
    if isinstance(ip, ipaddress.IPv4Address) or ip in _THIS_MACHINE:
        return [ip]
    if ip.teredo is not None:
        return [*ip.teredo]  # the server that is asked, and the client behind it
    for network, bits_behind in _EMBEDDING.items():
        if ip in network:
            return [ipaddress.IPv4Address(int(ip) >> bits_behind & 0xFFFFFFFF)]
    return [ip]
