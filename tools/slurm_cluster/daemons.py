"""Starts each daemon of a cluster and waits until it works."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slurm_cluster.configuration import SLURM_USER
from slurm_cluster.errors import ClusterError
from slurm_cluster.folder import Folder, Record

START_WITHIN_S = 60.0
REST_USER = "daemon"
"""Account of slurmrestd, which refuses to run as root or as slurmctld's account."""
_ENTER = 'mount --bind "$1" /etc/hosts || exit 1; [ -z "$2" ] || hostname "$2" || exit 1; shift 2; exec "$@"'
"""Shell script run in new namespaces; arguments: the hosts file, the node's name or nothing, the command line."""
_INSTALLATION = "mariadb-install-db"
_ADMIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "slurmrestd": "slurmrestd",
    "sbatch": "slurm-client",
    "sacctmgr": "slurm-client",
    "mariadbd": "mariadb-server",
    _INSTALLATION: "mariadb-server",
    "unshare": "util-linux",
    "mount": "mount",
}


def check_machine() -> None:
    """Raise `ClusterError` with what is missing on this machine."""
    if os.geteuid() != 0:
        raise ClusterError("a Slurm cluster needs root: its daemons start jobs as other users")
    missing = [program for program in _PACKAGES if shutil.which(program, path=_ADMIN_PATH) is None]
    if missing:
        packages = " ".join(sorted({_PACKAGES[program] for program in missing}))
        raise ClusterError(
            f"not installed: {', '.join(missing)}; `apt-get install {packages}` or `make system-deps`"
        )
    allowed = subprocess.run([program("unshare"), "--mount", "--uts", "true"], capture_output=True, text=True)
    if allowed.returncode != 0:
        raise ClusterError(
            f"no namespaces may be made here: {allowed.stderr.strip()}; in a container, give it CAP_SYS_ADMIN"
        )


def program(name: str) -> str:
    """Full path of an installed program."""
    return shutil.which(name, path=_ADMIN_PATH) or name


class Daemons:
    """Starts the daemons of one cluster. None of them outlives `processes.kill_mark`."""

    def __init__(self, folder: Folder, record: Record) -> None:
        self._folder = folder
        self._record = record
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def environment(self) -> dict[str, str]:
        """Environment of every daemon, without variables of the shell that could name another cluster."""
        return {"PATH": _ADMIN_PATH, "LC_ALL": "C.UTF-8", "SLURM_CONF": str(self._folder.slurm_conf)}

    def start_munged(self) -> None:
        """Start munged, with a key that is valid for this cluster alone."""
        folder = self._folder
        self._start(
            "munged",
            [
                program("munged"),
                "--foreground",
                f"--key-file={folder.munge_key}",
                f"--socket={folder.munge_socket}",
                f"--pid-file={folder.munge_key.parent}/munged.pid",
                f"--log-file={folder.munge_key.parent}/munged.log",
                f"--seed-file={folder.munge_key.parent}/munged.seed",
                "--num-threads=4",
            ],
        )
        self.wait_for("munged", lambda: answers(str(folder.munge_socket)))

    def start_database_installation(self) -> None:
        """Begin to create the database's files; `finish_database_installation` waits for them."""
        self._start(
            _INSTALLATION,
            [
                program(_INSTALLATION),
                "--no-defaults",
                f"--datadir={self._folder.database}",
                # As it starts, it deletes the temporary tables of all others that share the folder of these.
                f"--tmpdir={self._folder.database}",
                "--user=root",
                "--auth-root-authentication-method=socket",
                "--skip-test-db",
                "--innodb-flush-log-at-trx-commit=0",
                "--innodb-log-file-size=8M",
                "--innodb-flush-method=nosync",
            ],
        )

    def finish_database_installation(self) -> None:
        """Wait until the database's files exist. Raises `ClusterError` where that failed."""
        try:
            code = self._children[_INSTALLATION].wait(START_WITHIN_S)
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"{_INSTALLATION} takes longer than {START_WITHIN_S:g} s") from error
        if code != 0:
            raise ClusterError(f"{_INSTALLATION} ended with code {code}:\n{self.log_of(_INSTALLATION)}")

    def start_mariadb(self) -> None:
        """Start the accounting database, which listens on a unix socket alone."""
        folder = self._folder
        first = folder.state / "mariadb.sql"
        first.write_text(
            f"CREATE USER IF NOT EXISTS '{SLURM_USER}'@'localhost' IDENTIFIED VIA unix_socket;\n"
            f"GRANT ALL ON slurm_accounting.* TO '{SLURM_USER}'@'localhost';\n",
            encoding="utf-8",
        )
        self._start(
            "mariadbd",
            [
                program("mariadbd"),
                "--no-defaults",
                "--user=root",
                f"--datadir={folder.database}",
                f"--tmpdir={folder.database}",
                f"--socket={folder.database_socket}",
                f"--pid-file={folder.database}/mariadbd.pid",
                f"--init-file={first}",
                "--skip-networking",
                "--innodb-buffer-pool-size=64M",
                # No file here has to survive a crash of the machine, so nothing is synced to the disk.
                "--innodb-flush-log-at-trx-commit=0",
                "--innodb-flush-method=nosync",
                "--innodb-lock-wait-timeout=900",
            ],
        )
        self.wait_for("mariadbd", lambda: answers(str(folder.database_socket)))

    def start_slurmdbd(self) -> None:
        """Start slurmdbd, the accounting daemon."""
        variables = {"MYSQL_UNIX_PORT": str(self._folder.database_socket)}
        self._start("slurmdbd", [program("slurmdbd"), "-D"], variables=variables)
        self.wait_for("slurmdbd", lambda: answers(("127.0.0.1", self._record.slurmdbd_port)))

    def start_slurmctld(self) -> None:
        """Start slurmctld, the controller; it continues from the state of an earlier run."""
        self._start("slurmctld", [program("slurmctld"), "-D", "-i"])

    def start_slurmd(self, node: str) -> None:
        """Start the slurmd of one node."""
        self._start(node, [program("slurmd"), "-D", "-N", node], hostname=node)

    def start_slurmrestd(self) -> None:
        """Start two slurmrestd processes: one on a port for callers with a JWT, one on a unix socket for its own
        account.

        A single process reaches slurmctld either with its callers' JWT or by munge as itself, not both.
        """
        address = f"127.0.0.1:{self._record.slurmrestd_port}"
        command = [program("slurmrestd"), "-u", REST_USER]
        variables = {"SLURM_JWT": "daemon"}
        self._start("slurmrestd", [*command, "-a", "rest_auth/jwt", address], variables=variables)
        socket_address = f"unix:{self._folder.rest_socket}"
        self._start("slurmrestd-socket", [*command, "-a", "rest_auth/local", socket_address])
        self.wait_for("slurmrestd", lambda: answers(("127.0.0.1", self._record.slurmrestd_port)))
        self.wait_for("slurmrestd-socket", lambda: answers(str(self._folder.rest_socket)))

    def wait_for(self, name: str, probe: Callable[[], bool]) -> None:
        """Wait until `probe` is true. Raises `ClusterError` with the end of the daemon's log if it does not become
        so."""
        deadline_s = time.monotonic() + START_WITHIN_S
        while not probe():
            child = self._children.get(name)
            if child is not None and child.poll() is not None:
                raise ClusterError(f"{name} ended with code {child.returncode}:\n{self.log_of(name)}")
            if time.monotonic() > deadline_s:
                raise ClusterError(f"{name} does not answer within {START_WITHIN_S:g} s:\n{self.log_of(name)}")
            time.sleep(0.05)

    def log_of(self, name: str, lines: int = 15) -> str:
        """The last lines of the daemon's output."""
        path = self._output(name)
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:]) or f"(it has printed nothing into {path})"

    def _output(self, name: str) -> Path:
        return self._folder.logs / f"{name}.out"

    def _start(
        self, name: str, command: Sequence[str], *, hostname: str = "", variables: Mapping[str, str] | None = None
    ) -> None:
        enter = [program("unshare"), "--mount", "--propagation", "slave", "--uts", "--", "/bin/sh", "-c", _ENTER]
        with self._output(name).open("ab") as output:
            self._children[name] = subprocess.Popen(
                [*enter, "sh", str(self._folder.hosts(self._record.mark)), hostname, *command],
                env=self.environment() | dict(variables or {}),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


def answers(address: str | tuple[str, int]) -> bool:
    """Whether something accepts connections there: at a unix socket's path, or a host and port."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as caller:
        caller.settimeout(1.0)
        try:
            caller.connect(address)
        except OSError:
            return False
    return True
