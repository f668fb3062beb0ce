"""The folder that holds all files of a cluster."""

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
"""Largest number of characters in the path of a unix socket."""


@dataclass(frozen=True)
class Record:
    """Facts of a cluster that are written to its folder before anything is started."""

    mark: str
    """Name of the file that is mounted over /etc/hosts in the cluster's namespaces; identifies its processes."""
    slurmctld_port: int
    slurmdbd_port: int
    slurmrestd_port: int
    node_ports: tuple[int, ...]
    options: ClusterOptions


class Folder:
    """Paths of a cluster's files."""

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
        """Path of the file that the cluster's daemons and jobs see as /etc/hosts."""
        return self.path / "etc" / f"hosts.{mark}"

    def check(self) -> None:
        """Raise `ClusterError` where the folder cannot hold a cluster."""
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
        """The cluster's record, or None where there is no cluster."""
        try:
            document = json.loads(self._record.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ClusterError(f"{self._record} cannot be read ({error}): remove {self.path} by hand") from error
        options = ClusterOptions(**_with_tuples(document.pop("options")))
        return Record(**_with_tuples(document), options=options)

    def write_record(self, record: Record) -> None:
        """Write the record atomically."""
        temporary = self._record.with_suffix(".new")
        temporary.write_text(json.dumps(dataclasses.asdict(record), indent=1), encoding="utf-8")
        temporary.replace(self._record)

    def empty(self) -> None:
        """Remove the folder's contents, the record last, so that an interrupted removal can be repeated."""
        for entry in sorted(self.path.iterdir(), key=lambda entry: entry == self._record):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def remove(self) -> None:
        """Remove the empty folder."""
        self.path.rmdir()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock that lets one process at a time make or end this cluster; others wait."""
        while True:
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
            try:
                descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:  # the process that held the lock has just removed the folder
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # The process that held the lock may have removed the folder; then this lock protects nothing.
                if self.path.exists() and self.path.stat().st_ino == os.fstat(descriptor).st_ino:
                    yield
                    return
            finally:
                os.close(descriptor)


def _with_tuples(document: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in document.items()}


def new_mark() -> str:
    """A mark that no other cluster has."""
    return f"oakum-{secrets.token_hex(8)}"
