"""One process of the service: opens its parts, runs them, and closes them in order."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
import uvloop
from fastapi import FastAPI
from sqlalchemy.orm import Session

from oakum_service.api.context import Context
from oakum_service.app import create_app
from oakum_service.change_signal import ChangeSignal
from oakum_service.config import Settings
from oakum_service.control.controller import Controller
from oakum_service.db.engine import (
    Sessions,
    check_schema,
    open_engine,
    open_readers,
    open_reporters,
    open_sessions,
    upgrade,
)
from oakum_service.db.installation import claim
from oakum_service.db.lease import LeaseHolder
from oakum_service.db.models.callers import ApiToken
from oakum_service.db.writability import Writability
from oakum_service.errors import ConfigurationError
from oakum_service.files.data_dir import DataDirLock, nothing_left_on_a_full_disk, write_private
from oakum_service.fragments.configs import FragmentConfigs
from oakum_service.identity.tokens import LOCAL_ADMIN, create, digest, is_valid
from oakum_service.identity.unix_socket import listen_on_socket
from oakum_service.network import tls
from oakum_service.network.connections import GuardedServer, allow_most_open_files, guarded_protocol
from oakum_service.peers.line import open_line
from oakum_service.peers.peers import DatabasePeers, NoPeers, Peers
from oakum_service.peers.shared_signal import SharedSignal
from oakum_service.schedulers.opening import entry_of, open_scheduler
from oakum_service.turn_clock import TurnClock

_log = logging.getLogger("oakum")
_RENEWAL_S = 30.0
_SWITCH_S = 0.0005
"""How long a thread that computes keeps the interpreter when another one wants it. The event loop asks for it
after each of its many short calls: by default it would wait 5 ms each time while the controller computes."""


class OakumServer:
    """All parts of the service in one process: HTTP server, controller, scheduler adapter."""

    def __init__(self, settings: Settings) -> None:
        """Raises `ConfigurationError` when the service cannot run here with these settings."""
        self.settings = settings
        allow_most_open_files()
        entry_of(settings.scheduler).check(settings)
        engine = open_engine(settings.database)
        on_sqlite = engine.dialect.name == "sqlite"
        # The embedded cluster lives in the process itself.
        self._alone = on_sqlite or settings.scheduler_kind.is_embedded
        with nothing_left_on_a_full_disk(settings.data_dir, engine.dispose):
            self._lock = DataDirLock(settings.data_dir, may_share=not self._alone)
            if on_sqlite:
                upgrade(engine)
            else:
                check_schema(engine)
            self.sessions, readers, reporters = open_sessions(engine), open_readers(engine), open_reporters(engine)
            secret = _secret(settings.data_dir / "secret")
            with self.sessions.begin() as session:
                database = claim(session, secret, settings.data_dir)
            self.writability = Writability(engine.url.render_as_string())
            self.writability.watch(engine, self.sessions, reporters)
            self.token = _admin_token(self.sessions.begin, settings.client_file)
            self._socket = _bind(settings.host, settings.port)
            scheme = "http" if settings.tls_certificate is None else "https"
            self.url = settings.public_url or _url(scheme, settings.host, self._socket.getsockname()[1])
            _check_tls(settings, self.url)
            self._unix_socket = None if settings.socket is None else listen_on_socket(settings.socket)
            if self._lock.is_first:
                self._announce()
            if not self._alone:
                self._lock.share(database)

        self.scheduler = open_scheduler(settings, secret)
        self._line = open_line(engine, alone=self._alone)
        self.news_for_controller: ChangeSignal = SharedSignal(self._line, "controller")
        self.news_for_readers: ChangeSignal = SharedSignal(self._line, "readers")
        configs = FragmentConfigs(settings, secret, self.url, self.scheduler.grace_s)
        turns = TurnClock()
        self._lease = LeaseHolder(self.sessions, alone=self._alone, on_taken=self._announce)
        self._controller = Controller(
            settings,
            self.sessions,
            readers,
            self.scheduler,
            configs,
            self._lease,
            self.news_for_controller,
            self.news_for_readers,
            self.writability,
            turns,
        )
        self.context = Context(
            settings,
            self.sessions,
            readers,
            reporters,
            configs,
            self.scheduler,
            self.news_for_controller,
            self.news_for_readers,
            self.writability,
            turns=turns,
            peers=self._peers(readers),
        )

    def _peers(self, readers: Sessions) -> Peers:
        if self._alone:
            return NoPeers()
        return DatabasePeers(self.sessions, readers, self._line, self._lease, self.scheduler)

    def _announce(self) -> None:
        """Make this process the one that agents turn to when theirs no longer answers, and that the CLI asks."""
        write_private(self.settings.service_file, json.dumps({"url": self.url}).encode())
        found = {"url": self.url, "token": self.token} | _authorities(self.settings)
        write_private(self.settings.client_file, json.dumps(found).encode())

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGINT or SIGTERM, then give every node back if the cluster ends with the service, and
        return."""
        sys.setswitchinterval(_SWITCH_S)
        uvloop.run(self._run(on_ready))

    async def _run(self, on_ready: Callable[[], None]) -> None:
        stop = asyncio.Event()
        config = http_config(create_app(self.context), self.settings)
        config.load()
        server = _Server(config, self._unix_socket, asyncio.get_running_loop(), stop)
        renewing = asyncio.create_task(_renew(config, self.settings))
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        controlling = asyncio.create_task(self._controller.run())
        stopping = asyncio.create_task(stop.wait())
        self._line.open()
        on_ready()
        await asyncio.wait({serving, controlling, stopping}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if not controlling.done() and self.scheduler.ends_with_service:
                _log.info("stopping: every trainer checkpoints and gives its nodes back")
                await self._controller.drain(self.settings.drain_s)
        finally:
            await self._controller.stop()
            self.news_for_readers.close()
            server.should_exit = True
            stopping.cancel()
            renewing.cancel()
            await asyncio.gather(serving, controlling, return_exceptions=True)
            failed = not controlling.cancelled() and controlling.exception() is not None
            # After a failure no fragment was told to checkpoint: leave them training, as a crash would.
            await asyncio.to_thread(self.scheduler.stop, leave_fragments=failed)
            self._lease.give_up()
            self._line.tell("controller")
            await asyncio.to_thread(self._line.close)
            if self.settings.socket is not None:
                self.settings.socket.unlink(missing_ok=True)
            self._lock.release()
        if (error := controlling.exception()) is not None:
            raise error


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


class _Server(GuardedServer):
    """A server that leaves SIGINT and SIGTERM to `OakumServer`: HTTP has to keep answering while the
    fragments leave."""

    def __init__(
        self,
        config: uvicorn.Config,
        unix: socket.socket | None,
        loop: asyncio.AbstractEventLoop,
        stop: asyncio.Event,
    ) -> None:
        super().__init__(config, unix)
        self._loop, self._stop = loop, stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._stop.is_set() and sig == signal.SIGINT:
            self.force_exit = True
        self._loop.call_soon_threadsafe(self._stop.set)


def _check_tls(settings: Settings, url: str) -> None:
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
            "nobody listens "
            "in on the network"
        )


def _authorities(settings: Settings) -> dict[str, str]:
    """What this machine's CLI has to know to trust the service, for the client file."""
    return {} if settings.ca_file is None else {"ca_file": str(settings.ca_file.resolve())}


async def _renew(config: uvicorn.Config, settings: Settings) -> None:
    """Show a renewed certificate to new connections, within a minute."""
    if config.ssl is None or settings.tls_certificate is None or settings.tls_key is None:
        return
    renewal = tls.Renewal(config.ssl, settings.tls_certificate, settings.tls_key)
    while True:
        await asyncio.sleep(_RENEWAL_S)
        await asyncio.to_thread(renewal.look)


def _bind(host: str, port: int) -> socket.socket:
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


def _url(scheme: str, host: str, port: int) -> str:
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _secret(file: Path) -> bytes:
    """The key from which fragments' tokens are derived; made at the service's first start."""
    if not file.exists():
        write_private(file, secrets.token_bytes(32))
    return file.read_bytes()


def _admin_token(begin: Any, client_file: Path) -> str:
    """The token of this machine's CLI: the one in the client file if it is still valid, else a new one."""
    session: Session
    try:
        token = str(json.loads(client_file.read_text(encoding="utf-8"))["token"])
    except (OSError, ValueError, KeyError, TypeError):
        token = ""
    with begin() as session:
        if token and is_valid(session.get(ApiToken, digest(token)), time.time()):
            return token
        return create(session, LOCAL_ADMIN, "admin")
