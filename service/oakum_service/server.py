"""One process of the service: opens its parts, runs them, and closes them in order."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from oakum_service.api.context import Context
from oakum_service.app import create_app
from oakum_service.change_signal import ChangeSignal
from oakum_service.config import Settings
from oakum_service.control.controller import Controller
from oakum_service.db.engine import (
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
from oakum_service.files.data_dir import DataDirLock, nothing_left_on_a_full_disk, write_private
from oakum_service.fragments.configs import FragmentConfigs
from oakum_service.http_server import HttpServer, bind, check_tls, http_config, renew_certificate, url_of
from oakum_service.identity import audit
from oakum_service.identity.tokens import LOCAL_ADMIN, create, digest, is_valid
from oakum_service.identity.unix_socket import listen_on_socket
from oakum_service.network.connections import allow_most_open_files
from oakum_service.peers.line import open_line
from oakum_service.peers.peers import DatabasePeers, NoPeers, Peers
from oakum_service.peers.shared_signal import SharedSignal
from oakum_service.schedulers.opening import entry_of, open_scheduler
from oakum_service.turn_clock import TurnClock

_log = logging.getLogger("oakum")
_SWITCH_S = 0.0005
"""How long a thread that computes keeps the interpreter when another one wants it. The event loop asks for it
after each of its many short calls: by default it would wait 5 ms each time while the controller computes."""


class OakumServer:
    """All parts of the service in one process: HTTP server, controller, scheduler adapter."""

    def __init__(self, settings: Settings) -> None:
        """Raises `ConfigurationError` when the service cannot run here with these settings."""
        self.settings = settings
        settings.check_data_dir()
        allow_most_open_files()
        entry_of(settings.scheduler).check(settings)
        engine = open_engine(settings.database)
        # The embedded cluster lives in the process itself.
        self._alone = engine.dialect.name == "sqlite" or settings.scheduler_kind.is_embedded
        with nothing_left_on_a_full_disk(settings.data_dir, engine.dispose):
            self._lock = DataDirLock(settings.data_dir, may_share=not self._alone)
            database = self._open_database(engine)
            self.token = _admin_token(self.sessions.begin, settings.client_file)
            self._listen()
            if self._lock.is_first:
                self._announce()
            if not self._alone:
                self._lock.share(database)
        self._open_parts(engine)

    def _open_database(self, engine: Engine) -> str:
        """Open the database and claim it for this data directory. Returns a text that no other database has.
        Raises `ConfigurationError` if it cannot be used."""
        if engine.dialect.name == "sqlite":
            upgrade(engine)
        else:
            check_schema(engine)
        self.sessions = open_sessions(engine)
        self._readers, self._reporters = open_readers(engine), open_reporters(engine)
        self._secret = _secret(self.settings.data_dir / "secret")
        with self.sessions.begin() as session:
            database = claim(session, self._secret, self.settings.data_dir)
        self.writability = Writability(engine.url.render_as_string())
        self.writability.watch(engine, self.sessions, self._reporters)
        return database

    def _listen(self) -> None:
        """Take the port and the Unix socket that the settings name."""
        settings = self.settings
        self._socket = bind(settings.host, settings.port)
        scheme = "http" if settings.tls_certificate is None else "https"
        self.url = settings.public_url or url_of(scheme, settings.host, self._socket.getsockname()[1])
        check_tls(settings, self.url)
        self._unix_socket = None if settings.socket is None else listen_on_socket(settings.socket)

    def _open_parts(self, engine: Engine) -> None:
        """Open the scheduler's adapter, the controller, and what the API's routes use."""
        self.scheduler = open_scheduler(self.settings, self._secret)
        self._line = open_line(engine, alone=self._alone)
        self.news_for_controller: ChangeSignal = SharedSignal(self._line, "controller")
        self.news_for_readers: ChangeSignal = SharedSignal(self._line, "readers")
        self._lease = LeaseHolder(self.sessions, alone=self._alone, on_taken=self._announce)
        configs = FragmentConfigs(self.settings, self._secret, self.url, self.scheduler.grace_s)
        turns = TurnClock()
        self._controller = self._new_controller(configs, turns)
        self.context = self._new_context(configs, turns)

    def _new_controller(self, configs: FragmentConfigs, turns: TurnClock) -> Controller:
        return Controller(
            self.settings,
            self.sessions,
            self._readers,
            self.scheduler,
            configs,
            self._lease,
            self.news_for_controller,
            self.news_for_readers,
            self.writability,
            turns,
        )

    def _new_context(self, configs: FragmentConfigs, turns: TurnClock) -> Context:
        return Context(
            self.settings,
            self.sessions,
            self._readers,
            self._reporters,
            configs,
            self.scheduler,
            self.news_for_controller,
            self.news_for_readers,
            self.writability,
            turns=turns,
            peers=self._new_peers(),
        )

    def _new_peers(self) -> Peers:
        if self._alone:
            return NoPeers()
        return DatabasePeers(self.sessions, self._readers, self._line, self._lease, self.scheduler)

    def _announce(self) -> None:
        """Make this process the one that agents turn to when theirs no longer answers, and that the CLI asks."""
        write_private(self.settings.service_file, json.dumps({"url": self.url}).encode())
        address = {"url": self.url, "token": self.token} | _authorities(self.settings)
        write_private(self.settings.client_file, json.dumps(address).encode())

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGINT or SIGTERM, then give every node back if the cluster ends with the service, and
        return."""
        sys.setswitchinterval(_SWITCH_S)
        uvloop.run(self._run(on_ready))

    async def _run(self, on_ready: Callable[[], None]) -> None:
        stop = asyncio.Event()
        config = http_config(create_app(self.context), self.settings)
        config.load()
        server = HttpServer(config, self._unix_socket, asyncio.get_running_loop(), stop)
        renewing = asyncio.create_task(renew_certificate(config, self.settings))
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


def _authorities(settings: Settings) -> dict[str, str]:
    """What this machine's CLI has to know to trust the service, for the client file."""
    return {} if settings.ca_file is None else {"ca_file": str(settings.ca_file.resolve())}


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
        return create(session, audit.local_actor(), LOCAL_ADMIN, "admin")
