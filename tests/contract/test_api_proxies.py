"""Only a proxy that the settings name says for whom it asks, and whether over TLS."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from api_under_test import ApiUnderTest
from cells import each
from oakum_service.config import Settings
from oakum_service.errors import ConfigurationError
from oakum_service.http_server import http_config

FORWARDED = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https", "X-Oakum-Dashboard": "1"}


def signed_in_from(api: ApiUnderTest, peer: str, proxies: list[str]) -> tuple[str, bool]:
    """Sign in over a connection from `peer` with a proxy's headers. Returns the address in the audit log, and
    whether the cookie is for HTTPS only."""
    settings = api.settings.model_copy(update={"proxies": proxies})
    config = http_config(api.app, settings)
    config.load()
    token = api.admin.headers["Authorization"].removeprefix("Bearer ")

    async def sign_in() -> httpx.Response:
        transport = httpx.ASGITransport(config.loaded_app, client=(peer, 5000))
        async with httpx.AsyncClient(transport=transport, base_url="http://oakum") as client:
            return await client.post("/v1/session", json={"token": token}, headers=FORWARDED)

    answer = asyncio.run(sign_in())
    assert answer.status_code == 201, answer.text
    (entry, *_) = api.admin.get("/v1/audit", params={"action": "session.begun"}).json()["entries"]
    return entry["address"], "secure" in answer.headers["Set-Cookie"].lower()


@each(
    ("peer", "proxies", "address"),
    [
        ("127.0.0.1", [], "127.0.0.1"),
        ("::1", [], "::1"),
        ("10.0.0.6", ["10.0.0.5"], "10.0.0.6"),
        ("10.0.0.5", ["10.0.0.5"], "203.0.113.9"),
        ("10.0.1.7", ["10.0.0.0/16"], "203.0.113.9"),
        ("::ffff:10.0.0.5", ["10.0.0.5"], "203.0.113.9"),
        ("fd00::5", ["fd00::/8"], "203.0.113.9"),
        ("172.16.0.1", ["10.0.0.0/16", "fd00::/8"], "172.16.0.1"),
    ],
)
def test_what_is_forwarded_counts_from_named_proxies(
    api: ApiUnderTest, monkeypatch: pytest.MonkeyPatch, peer: str, proxies: list[str], address: str
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    assert signed_in_from(api, peer, proxies) == (address, address != peer)


@each("entry", ["*", "proxy", "10.0.0.0/99", "10.0.0.5/16", ""])
def test_a_proxy_is_an_address_or_a_network(entry: str) -> None:
    with pytest.raises(ConfigurationError, match="OAKUM_PROXIES"):
        Settings(proxies=[entry])
