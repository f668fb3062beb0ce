"""Whom a notice may go to: addresses that are called, and recipients that a spec may name."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import ValidationError

from cells import each
from oakum_service.config import NoticeSettings
from oakum_service.errors import ConfigurationError, NoticeRefused
from oakum_service.network.webhook_addresses import AllowedAddresses, VettedAddress
from oakum_worker.spec_options import NotifySpec

NOT_PUBLIC = [
    "127.0.0.1", "::1", "::", "169.254.169.254", "10.1.2.3", "172.31.0.1", "192.168.0.1", "0.0.0.0",
    "100.64.0.1", "192.0.0.1", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
    "224.0.0.1", "240.0.0.1", "255.255.255.255", "fe80::1", "fec0::1", "fd00::1", "ff0e::1", "100::1",
    "100:0:0:1::1", "2001:2::1", "2001:db8::1", "3fff::1", "3fff:fff::1", "5f00::1", "64:ff9b:1::1",
    "64:ff9b:1:fffe::808:808", "::127.0.0.1", "::10.0.0.1", "::ffff:127.0.0.1", "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::f7f7:f7f7", "2001:0:808:808::80ff:fffe",
]  # fmt: skip
PUBLIC = [
    "93.184.216.34", "2606:2800:220:1::1", "2a00:1450:4001::1", "::ffff:93.184.216.34",
    "::ffff:0:93.184.216.34", "::93.184.216.34", "64:ff9b::5db8:d822", "2002:5db8:d822::",
    "2001:0:808:808::a247:27dd", "192.31.196.1", "2620:4f:8000::1", "3ffe::1", "5eff::1",
]  # fmt: skip


@each("host", [*(f"[{address}]" if ":" in address else address for address in NOT_PUBLIC), "localhost"])
def test_by_default_only_public_addresses_are_called(host: str) -> None:
    with pytest.raises(NoticeRefused, match="OAKUM_NOTICES_ALLOW"):
        AllowedAddresses([], public=True).target(f"http://{host}:8080/x")


@each("address", PUBLIC)
def test_public_addresses_are_called_however_they_are_written(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    AllowedAddresses([], public=True).check(urlsplit(f"http://{host}/x"))


@each(("address", "network"), [("::1", "::1"), ("::ffff:10.1.2.3", "10.1.0.0/16"), ("fec0::7", "fec0::/10")])
def test_an_administrator_allows_what_is_not_public(address: str, network: str) -> None:
    AllowedAddresses([network], public=True).check(urlsplit(f"http://[{address}]/x"))


@each("network", ["::/0", "2002::/16"])
def test_what_is_embedded_is_not_allowed_with_what_embeds_it(network: str) -> None:
    with pytest.raises(NoticeRefused):
        AllowedAddresses([network], public=True).check(urlsplit("http://[2002:7f00:1::]/x"))


def test_a_name_that_leads_inside_is_refused_and_the_vetted_address_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [["93.184.216.34", "10.0.0.5"], ["93.184.216.34"], ["10.0.0.5"]]

    def look_up(host: str, port: int, **_: object) -> list[Any]:
        return [(0, 0, 0, "", (address, port)) for address in answers.pop(0)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    allowed = AllowedAddresses([], public=True)
    with pytest.raises(NoticeRefused):
        allowed.target("https://inside.example.org/x")
    assert allowed.target("https://hooks.example.org/x?y=1") == VettedAddress(
        True, "hooks.example.org", 443, "93.184.216.34", "/x?y=1"
    )
    assert AllowedAddresses(["*.example.org"], public=False).target("http://in.example.org").address == "10.0.0.5"


def test_without_public_addresses_only_those_allowed_are_called() -> None:
    allowed = AllowedAddresses(["10.1.0.0/16"], public=False)
    assert allowed.target("http://10.1.2.3/x").address == "10.1.2.3"
    for url in ("http://10.2.0.1/x", "http://93.184.216.34/x"):
        with pytest.raises(NoticeRefused):
            allowed.target(url)


def test_an_entry_that_is_no_host_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="OAKUM_NOTICES_ALLOW"):
        NoticeSettings(allow=["10.1.0.0/99"])


@each(
    "given",
    [
        {"webhook": "ftp://example.org/x"},
        {"webhook": "https://"},
        {"webhook": "https://user:password@example.org/"},
        {"webhook": "https://example.org/\r\nHost: evil"},
        {"webhook": "https://example.org:99999/"},
        {"email": "ada@example.org\r\nBcc: all@example.org"},
        {"email": "ada"},
        {"email": "-oQ/tmp@example.org"},
        {"email": "ada@example.org, eve@example.org"},
        {"webhook": "https://example.org", "email": "ada@example.org"},
        {"on": ["failed"]},
        {"webhook": "https://example.org", "on": []},
        {"webhook": "https://example.org", "on": ["sometimes"]},
    ],
)
def test_what_is_no_address_is_refused_with_the_spec(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NotifySpec.model_validate(given)


def test_yaml_reads_an_unquoted_on_as_true_and_that_is_taken_as_meant() -> None:
    assert NotifySpec.model_validate({"email": "ada@example.org", True: ["failed"]}).on == ("failed",)
