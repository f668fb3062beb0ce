"""The one folder that holds everything of a cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_cluster.errors import ClusterError
from slurm_cluster.options import ClusterOptions

_LONGEST_SOCKET = 107
"""Characters that the address of a unix socket may have."""


@dataclass(frozen=True)
class Record:
    """What is written down of a cluster before anything is started."""

    mark: str
    """Names the file that is mounted over /etc/hosts in each of its namespaces, and so its processes."""
    slurmctld_port: int
    slurmdbd_port: int
    slurmrestd_port: int
    node_ports: tuple[int, ...]
    options: ClusterOptions


class Folder:
    """Where each file of a cluster is."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.slurm_conf = self.path / "etc" / "slurm.conf"
        self.slurmdbd_conf = self.path / "etc" / "slurmdbd.conf"
        self.jwt_key = self.path / "etc" / "jwt.key"
        self.munge_key = self.path / "munge" / "munge.key"
        self.munge_socket = self.path / "munge" / "socket"
        self.database = self.path / "mariadb"
        self.database_socket = self.path / "run" / "mariadb.socket"
        self.rest_socket = self.path / "run" / "rest.socket"
        self.state = self.path / "state"
        self.spool = self.path / "spool"
        self.logs = self.path / "log"
        self._record = self.path / "cluster.json"

    def hosts(self, mark: str) -> Path:
        """The file that is /etc/hosts for the cluster's daemons and jobs."""
        return self.path / "etc" / f"hosts.{mark}"

    def check(self) -> None:
        """Raise `ClusterError` where no cluster can live."""
        if len(str(self.database_socket)) > _LONGEST_SOCKET:
            raise ClusterError(f"{self.path} is too long a path for unix sockets: choose a shorter --folder")
        for parent in self.path.parents:
            if parent.exists() and not parent.stat().st_mode & 0o001:
                raise ClusterError(
                    f"{parent} is closed to other users, and the daemons are not all root: "
                    f"`chmod o+x {parent}`, or choose another --folder"
                )
        if self.path.exists() and not self._record.exists() and any(self.path.iterdir()):
            raise ClusterError(f"{self.path} holds other things than a cluster: choose another --folder")

    def record(self) -> Record | None:
        """What was written down, or None where there is no cluster."""
        try:
            document = json.loads(self._record.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ClusterError(f"{self._record} cannot be read ({error}): remove {self.path} by hand") from error
        options = ClusterOptions(**_with_tuples(document.pop("options")))
        return Record(**_with_tuples(document), options=options)

    def write_record(self, record: Record) -> None:
        """Write it down, whole or not at all."""
        temporary = self._record.with_suffix(".new")
        temporary.write_text(json.dumps(dataclasses.asdict(record), indent=1), encoding="utf-8")
        temporary.replace(self._record)

    def empty(self) -> None:
        """Take away what is in it, the record last: until then a next attempt knows what this is."""
        for entry in sorted(self.path.iterdir(), key=lambda entry: entry == self._record):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def remove(self) -> None:
        """Take it away, empty."""
        self.path.rmdir()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time makes or ends this cluster; the others wait."""
        while True:
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # Whoever had the lock may have removed the folder: then this is the lock of nothing.
                if self.path.exists() and self.path.stat().st_ino == os.fstat(descriptor).st_ino:
                    yield
                    return
            finally:
                os.close(descriptor)


def _with_tuples(document: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in document.items()}


def new_mark() -> str:
    """One that no other cluster has."""
    return f"oakum-{secrets.token_hex(8)}"
