"""The service over HTTP: its address, its certificate, and how uvicorn serves the application."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from oakum_service.config import Settings
from oakum_service.errors import ConfigurationError
from oakum_service.network import tls
from oakum_service.network.connections import GuardedServer, guarded_protocol

_RENEWAL_S = 30.0


def bind(host: str, port: int) -> socket.socket:
    """A TCP socket at this address, which does not listen yet. Raises `ConfigurationError` if it cannot be had."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror}; set OAKUM_PORT to a free port, or to 0 for any"
        ) from error
    # Child processes must not keep the port open after this process has ended.
    listening.set_inheritable(False)
    return listening


def url_of(scheme: str, host: str, port: int) -> str:
    """The address at which a service that is bound so is reached."""
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def check_tls(settings: Settings, url: str) -> None:
    """Raise `ConfigurationError` where tokens would cross a network in clear, or clients would refuse the
    service's certificate."""
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise ConfigurationError("OAKUM_TLS_CERTIFICATE and OAKUM_TLS_KEY go together: set both, or neither")
    if settings.tls_certificate is not None and settings.tls_key is not None:
        context = tls.server_context(settings.tls_certificate, settings.tls_key)
        tls.check_acceptance(context, url, settings.ca_file)
    elif not tls.is_loopback(settings.host) and not settings.plain_http:
        raise ConfigurationError(
            f"OAKUM_HOST is {settings.host}, and tokens would cross the network in clear: set "
            "OAKUM_TLS_CERTIFICATE and OAKUM_TLS_KEY, or OAKUM_PLAIN_HTTP=1 where a proxy ends TLS or "
            "nobody listens in on the network"
        )


def http_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """How the application is served over HTTP: what proxies say of their clients counts for those that the
    settings name, whatever the environment says to uvicorn."""
    return uvicorn.Config(
        app,
        log_level="warning",
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=30,
        http=guarded_protocol(),
        ws="none",
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        forwarded_allow_ips=[form for proxy in settings.proxies for form in _as_seen(proxy)],
    )


def _as_seen(proxy: str) -> tuple[str, ...]:
    """The proxy's network as uvicorn takes it; that of IPv4 also as a socket of IPv6 shows it."""
    network = ipaddress.ip_network(proxy)
    if network.version == 6:
        return (str(network),)
    return str(network), f"::ffff:{network.network_address}/{96 + network.prefixlen}"


class HttpServer(GuardedServer):
    """A server that leaves SIGINT and SIGTERM to `OakumServer`: HTTP has to keep answering while the
    fragments leave."""

    def __init__(
        self,
        config: uvicorn.Config,
        unix: socket.socket | None,
        loop: asyncio.AbstractEventLoop,
        stop: asyncio.Event,
    ) -> None:
        """`stop` is set on `loop` by a signal; `unix` is a socket to serve beside the TCP socket."""
        super().__init__(config, unix)
        self._loop, self._stop = loop, stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Set `stop`; a SIGINT after that keeps HTTP from waiting for its last answers."""
        if self._stop.is_set() and sig == signal.SIGINT:
            self.force_exit = True
        self._loop.call_soon_threadsafe(self._stop.set)


async def renew_certificate(config: uvicorn.Config, settings: Settings) -> None:
    """Show a renewed certificate to new connections within a minute, until cancelled. Without TLS it returns at
    once."""
    if config.ssl is None or settings.tls_certificate is None or settings.tls_key is None:
        return
    renewal = tls.Renewal(config.ssl, settings.tls_certificate, settings.tls_key)
    while True:
        await asyncio.sleep(_RENEWAL_S)
        await asyncio.to_thread(renewal.look)
