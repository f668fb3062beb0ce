"""Starts fragments of the embedded cluster: forked from a fork server, or as separate processes where there is
none.

The fork server loads in the background and is started again when it ends. It ends with this process, whatever ends
that, since its control socket closes. Its children have sessions of their own and go on.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from oakum_worker.errors import ForkError
from oakum_worker.fragment.config_files import write_config
from oakum_worker.fragment.forking import ForkRequest, ForkServer, node_has_accelerator
from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.launch import submit_local
from oakum_worker.user_environment import passed_on

_log = logging.getLogger("oakum.local")
_LOADING_S = 30.0
"""Longest time in seconds that a launch waits for the fork server to load."""
_SHORT_LIFE_S = 20.0
_MOST_SHORT_LIVES = 3
"""After this many short lives in a row the fork server is given up."""
_ROOM = " " * 160
"""Reserves space in the server's command line for those of its children, which are longer."""


class FragmentStarter:
    """Starts fragments' processes on this machine, and keeps a fork server for that."""

    def __init__(self, fragments_dir: Path, *, forks: bool) -> None:
        """Without `forks` every fragment is started as a separate process."""
        self._fragments_dir = fragments_dir
        self._forks = forks and not node_has_accelerator()
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._server: ForkServer | None = None
        self._loading = False
        self._closed = False

    def open(self) -> None:
        """Begin to load a fork server in the background."""
        if self._forks:
            self._loading = True
            threading.Thread(target=self._keep_server, name="fork-server", daemon=True).start()

    def prepare(self) -> None:
        """Wait until the fork server has loaded, at most 30 s. Returns at once if there is none."""
        with self._changed:
            self._changed.wait_for(lambda: not self._loading, timeout=_LOADING_S)

    def start(self, config: FragmentConfig) -> int:
        """Start the fragment and return the id of its first process. Raises `OSError` if it cannot be started."""
        folder = self._fragments_dir / config.fragment
        server = self._server
        if server is not None:
            try:
                return _fork(server, folder, config)
            except ForkError as error:
                _log.warning("%s: %s's fragment is started as a process of its own", error, config.node)
                self._replace(server)
        return submit_local(folder, config)

    def close(self) -> None:
        """End the fork server. Fragments go on."""
        with self._changed:
            self._closed = True
            if self._server is not None:
                self._server.close()

    def _replace(self, server: ForkServer) -> None:
        """Kill a fork server that does not answer; another one is then started."""
        with self._changed:
            if self._server is server and self._process is not None:
                self._process.kill()

    def _keep_server(self) -> None:
        short_lives = 0
        while not self._closed and short_lives < _MOST_SHORT_LIVES:
            began_s = time.monotonic()
            status = self._live()
            short_lives = short_lives + 1 if time.monotonic() - began_s < _SHORT_LIFE_S else 0
            if not self._closed:
                _log.warning("the fork server ended with status %s", status)
        with self._changed:
            self._loading = False
            self._changed.notify_all()
        if not self._closed:
            _log.warning(
                "no fork server runs on this machine: fragments start as separate processes, which takes seconds"
            )

    def _live(self) -> int | str:
        """Start one fork server and wait until it has ended. Returns its exit status, or the error's text if it
        could not be started."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                process = self._load(theirs)
        except OSError as error:
            ours.close()
            return error.strerror or str(error)
        self._stand_by(process, ForkServer(ours))
        status = process.wait()
        with self._changed:
            self._server, self._loading = None, True
        ours.close()
        return status

    def _stand_by(self, process: subprocess.Popen[bytes], server: ForkServer) -> None:
        """Wait until the fork server has loaded, and then let fragments be forked from it. A server that does not
        load is killed."""
        try:
            server.wait_until_ready()
        except ForkError as error:
            _log.warning("%s", error)
            process.kill()
        with self._changed:
            if self._closed:
                server.close()
            elif process.poll() is None:
                self._process, self._server, self._loading = process, server, False
            self._changed.notify_all()

    def _load(self, control: socket.socket) -> subprocess.Popen[bytes]:
        self._fragments_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        command = [sys.executable, "-P", "-u", "-m", "oakum_worker.fragment.fork_server"]
        command += [str(self._fragments_dir), str(control.fileno()), _ROOM]
        # Libraries read this when they load, to start their threads; a rank with more threads is not forked.
        # Whoever is forked from it can read its first environment.
        environment = passed_on(os.environ) | {"OMP_NUM_THREADS": "1"}
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(control.fileno(),),
            start_new_session=True,
            env=environment,
        )


def _fork(server: ForkServer, folder: Path, config: FragmentConfig) -> int:
    """Fork the fragment from the server. Raises `ForkError` if the server is gone, in which case the fragment
    has not begun. Returns the process id."""
    write_config(folder, config)
    request = ForkRequest(
        "oakum_worker.payload",
        (str(folder),),
        # As submitit's local executor does for a job without GPUs.
        passed_on(os.environ) | {"CUDA_VISIBLE_DEVICES": ""},
        str(Path.cwd()),
        log=str(folder / "{pid}_0_log.out"),
    )
    process = server.start(request)
    process.forget()
    return process.pid
