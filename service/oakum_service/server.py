"""One process of the service, from its settings to its last log line."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from sqlalchemy.orm import Session

from oakum_service.api.auth import Role, create_token, digest
from oakum_service.api.context import Context
from oakum_service.app import create_app
from oakum_service.config import Settings
from oakum_service.control.controller import Controller
from oakum_service.control.hub import Hub
from oakum_service.control.lease import LeaseHolder
from oakum_service.db.engine import (
    check_schema,
    open_engine,
    open_readers,
    open_reporters,
    open_sessions,
    upgrade,
)
from oakum_service.db.models import ApiToken
from oakum_service.errors import ConfigurationError
from oakum_service.fragment_configs import FragmentConfigs
from oakum_service.schedulers.opening import open_scheduler
from oakum_service.schedulers.workload import foreground_jobs
from oakum_solver.errors import LogError

_log = logging.getLogger("oakum")
LOCAL_ADMIN = "local-admin"
"""Name of the token that this machine's own CLI has."""


class OakumServer:
    """Everything that runs in one process: HTTP, controller, scheduler adapter."""

    def __init__(self, settings: Settings) -> None:
        """Raises `ConfigurationError` when the service cannot run here as configured."""
        self.settings = settings
        _check_foreground_log(settings)
        self._lock = _lock_data_dir(settings.data_dir)
        engine = open_engine(settings.database)
        self._alone = engine.dialect.name == "sqlite"
        if self._alone:
            upgrade(engine)
        else:
            check_schema(engine)
        self.sessions, readers, reporters = open_sessions(engine), open_readers(engine), open_reporters(engine)
        self.token = _admin_token(self.sessions.begin, settings.client_file)
        self._socket = _bind(settings.host, settings.port)
        self.url = settings.public_url or _url(settings.host, self._socket.getsockname()[1])
        _write_private(settings.service_file, json.dumps({"url": self.url}).encode())
        _write_private(settings.client_file, json.dumps({"url": self.url, "token": self.token}).encode())

        secret = _secret(settings.data_dir / "secret")
        self.scheduler = open_scheduler(settings, secret)
        self.inbox, self.outbox = Hub(), Hub()
        configs = FragmentConfigs(settings, secret, self.url, self.scheduler.grace_s)
        self._lease = LeaseHolder(self.sessions, alone=self._alone)
        self._controller = Controller(
            settings, self.sessions, readers, self.scheduler, configs, self._lease, self.inbox, self.outbox
        )
        self.context = Context(
            settings, self.sessions, readers, reporters, configs, self.scheduler, self.inbox, self.outbox
        )

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGINT or SIGTERM; then give every node back and return."""
        asyncio.run(self._run(on_ready))

    async def _run(self, on_ready: Callable[[], None]) -> None:
        stop = asyncio.Event()
        config = uvicorn.Config(
            create_app(self.context),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=30,
        )
        server = _Server(config, asyncio.get_running_loop(), stop)
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        controlling = asyncio.create_task(self._controller.run())
        stopping = asyncio.create_task(stop.wait())
        on_ready()
        await asyncio.wait({serving, controlling, stopping}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if not controlling.done() and self.scheduler.ends_with_service:
                _log.info("stopping: every trainer checkpoints and gives its nodes back")
                await self._controller.drain(self.settings.drain_s)
        finally:
            await self._controller.stop()
            self.outbox.close()
            server.should_exit = True
            stopping.cancel()
            await asyncio.gather(serving, controlling, return_exceptions=True)
            failed = not controlling.cancelled() and controlling.exception() is not None
            # Nobody has told the fragments to checkpoint: as after a crash, the next start finds them training.
            await asyncio.to_thread(self.scheduler.stop, leave_fragments=failed)
            self._lease.give_up()
            self._lock.close()
        if (error := controlling.exception()) is not None:
            raise error


class _Server(uvicorn.Server):
    """Hands the signals to us: HTTP has to go on while the fragments leave."""

    def __init__(self, config: uvicorn.Config, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        super().__init__(config)
        self._loop, self._stop = loop, stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._stop.is_set() and sig == signal.SIGINT:
            self.force_exit = True
        self._loop.call_soon_threadsafe(self._stop.set)


def _check_foreground_log(settings: Settings) -> None:
    """Refuse now the log that the embedded cluster would fail on later."""
    if settings.scheduler != "local" or settings.local.swf is None:
        return
    try:
        first = next(foreground_jobs(settings.local), None)
    except LogError as error:
        raise ConfigurationError(f"the foreground jobs cannot be read: {error}") from error
    if first is None:
        raise ConfigurationError(
            f"{settings.local.swf} has no job with a run time and a number of processors: choose another SWF log, "
            "or leave --swf and OAKUM_LOCAL_SWF out for jobs from the workload model"
        )


def _lock_data_dir(data_dir: Path) -> Any:
    """Keep a second service away from the same data; the kernel drops the lock with the process."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (data_dir / "lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the data directory {data_dir} cannot be used: {error.strerror}; choose another OAKUM_DATA_DIR"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        raise ConfigurationError(
            f"another service (pid {file.read().strip() or 'unknown'}) already uses {data_dir.resolve()}: "
            "stop it, or choose another OAKUM_DATA_DIR"
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


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
    # Children must not hold the port open after this process has gone.
    listening.set_inheritable(False)
    return listening


def _url(host: str, port: int) -> str:
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _secret(file: Path) -> bytes:
    """The key from which fragments' tokens are derived; made at the first start."""
    if not file.exists():
        _write_private(file, secrets.token_bytes(32))
    return file.read_bytes()


def _admin_token(begin: Any, client_file: Path) -> str:
    """The token of this machine's own CLI: the one in the client file if it is still good, else a new one."""
    session: Session
    try:
        token = str(json.loads(client_file.read_text(encoding="utf-8"))["token"])
    except (OSError, ValueError, KeyError, TypeError):
        token = ""
    with begin() as session:
        if token and session.get(ApiToken, digest(token)) is not None:
            return token
        return create_token(session, LOCAL_ADMIN, Role.ADMIN)


def _write_private(file: Path, content: bytes) -> None:
    """Replace a file at once, readable by its owner alone: a crash leaves the old one or the new one whole."""
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    Path(temporary).replace(file)
