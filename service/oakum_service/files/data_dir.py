"""The data directory: who may use it at the same time, and that nobody else reads what is in it."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sqlite3
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path

from oakum_service.errors import ConfigurationError
from oakum_service.files import owners

_log = logging.getLogger("oakum")
_OTHERS = 0o077
"""What accounts beside the owner may do."""
_OURS = {"secret", "oakum.db", "client.json", "service.json", "lock", "checkpoints", "fragments"}
"""Files and folders by any of which a data directory is known; the folders may have been made before it was, as
other disks."""
_OF_A_DISK = {"lost+found"}
_MADE = _OURS | {"database", "oakum.db-wal", "oakum.db-shm", "oakum.db-journal"}
"""Files that a start makes."""
_PATIENCE_S = 20.0
_LOOK_S = 0.1


class DataDirLock:
    """This process's claim to the data directory, alone or shared with other processes of the service. The kernel
    releases it when the process ends."""

    def __init__(self, data_dir: Path, *, may_share: bool) -> None:
        """Lock the directory, and make it if it is missing. One that others may read is closed to them, with what
        is in it.

        The first process has the directory for itself until it calls `share`; a process that `may_share` waits for
        that for at most 20 s. Raises `ConfigurationError` where another process keeps the directory to itself, or
        the directory cannot be used.
        """
        self._folder = data_dir
        self._file = _open(data_dir)
        self.is_first = True
        """Whether no other process uses the directory yet."""
        deadline_s = time.monotonic() + (_PATIENCE_S if may_share else 0.0)
        while not self._lock(fcntl.LOCK_EX):
            if may_share and self._lock(fcntl.LOCK_SH):
                self.is_first = False
                return
            if time.monotonic() >= deadline_s:
                raise ConfigurationError(
                    f"another service (pid {self._pid()}) already uses {data_dir.resolve()}: "
                    "stop it, or choose another OAKUM_DATA_DIR"
                )
            time.sleep(_LOOK_S)
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def share(self, database: str) -> None:
        """Let other processes in that use the same database, of which `database` is the random name. Raises
        `ConfigurationError` if those that are in already use another one."""
        known = self._folder / "database"
        if self.is_first:
            write_private(known, database.encode())
            fcntl.flock(self._file, fcntl.LOCK_SH)
        elif known.read_text(encoding="utf-8") != database:
            raise ConfigurationError(
                f"another service uses {self._folder.resolve()} with another database: give both the same "
                "OAKUM_DATABASE_URL, or this one an OAKUM_DATA_DIR of its own"
            )

    def release(self) -> None:
        """Release the directory."""
        self._file.close()

    def _lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _pid(self) -> str:
        self._file.seek(0)
        return self._file.read().strip() or "unknown"


def check_unnamed(data_dir: Path) -> None:
    """Raise `ConfigurationError` where another account may have made the data directory, or may put another in
    its place: what is in it decides who is an administrator, and what runs. For the one that is in the working
    folder by default; whoever names one has chosen whose it is."""
    above = data_dir.absolute().parent
    strangers = {above: owners.may_replace(above.stat())}
    with suppress(FileNotFoundError):
        # Of a link both the link and where it leads to.
        strangers[data_dir] = owners.other_owner(data_dir.lstat()) or owners.stranger(data_dir.stat())
    for folder, stranger in strangers.items():
        if stranger is not None:
            raise ConfigurationError(
                f"the data directory would be {data_dir} in the working folder {above}, and {folder} is not yours "
                f"alone: {stranger}: choose an OAKUM_DATA_DIR of your own, or, if you trust who may write there, "
                f"name this one, OAKUM_DATA_DIR={data_dir}"
            )


def _open(data_dir: Path) -> TextIOWrapper:
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        _close_to_others(data_dir)
        descriptor = os.open(data_dir / "lock", os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return os.fdopen(descriptor, "a+", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the data directory {data_dir} cannot be used: {error.strerror}; choose another OAKUM_DATA_DIR"
        ) from error


def _close_to_others(data_dir: Path) -> None:
    """Take every right of other accounts to the directory, and to the files and folders right in it. Raises
    `ConfigurationError` where that is not ours to do: the directory is another account's, or more than a data
    directory."""
    entries = [*data_dir.iterdir()]
    was_open = bool(data_dir.stat().st_mode & _OTHERS)
    if was_open:
        names = {entry.name for entry in entries} - _OF_A_DISK
        if names and not _OURS & names:
            raise ConfigurationError(
                f"other accounts may read the data directory {data_dir.resolve()}, and it has other files than "
                "Oakum's: choose an OAKUM_DATA_DIR of its own, or `chmod 700` it"
            )
        keep_private(data_dir)
    for entry in entries:
        try:
            state = entry.lstat()
        except FileNotFoundError:  # another process's temporary file
            continue
        is_ours = state.st_uid == os.geteuid() and not stat.S_ISLNK(state.st_mode)
        if is_ours and (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
            keep_private(entry, warn=was_open)


def keep_private(path: Path, *, warn: bool = True) -> None:
    """Take every right of other accounts to a file or folder, and log that there were some, with `warn` as a
    warning. Raises `ConfigurationError` where this account cannot."""
    state = path.stat()
    if not state.st_mode & _OTHERS:
        return
    wanted = stat.S_IMODE(state.st_mode) & ~_OTHERS
    try:
        path.chmod(wanted)
        refusal = "the file system keeps no modes" if path.stat().st_mode & _OTHERS else None
    except OSError as error:
        refusal = str(error.strerror)
    if refusal is not None:
        raise ConfigurationError(
            f"other accounts may read {path.resolve()}, and that cannot be changed here: {refusal}: have its "
            f"owner (uid {state.st_uid}) run `chmod go= {path.resolve()}`, or choose another OAKUM_DATA_DIR"
        )
    level = logging.WARNING if warn else logging.DEBUG  # in a closed folder nobody could
    _log.log(level, "other accounts could read %s: its mode is %04o from now on", path.resolve(), wanted)


def write_private(file: Path, content: bytes) -> None:
    """Replace a file atomically, readable by its owner only: after a crash it has the old or the new content,
    never a part. What cannot be written leaves nothing."""
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def nothing_left_on_a_full_disk(data_dir: Path, close: Callable[[], None]) -> Iterator[None]:
    """Context of the service's start. Where the disk is full, the files that the start has made are removed, after
    `close` has been called, and the error becomes a `ConfigurationError` that says so."""
    before: set[str] | None = None  # None: there is no such directory
    with suppress(OSError):
        before = {entry.name for entry in data_dir.iterdir()}
    try:
        yield
    except Exception as error:
        if (reason := _fullness(error)) is None:
            raise
        close()
        for name in _MADE - (before or set()):
            (data_dir / name).unlink(missing_ok=True)
        if before is None:
            with suppress(OSError):
                data_dir.rmdir()
        raise ConfigurationError(
            f"the service cannot start in {data_dir.resolve()}: {reason}: free space there, or choose another "
            "OAKUM_DATA_DIR; nothing of this start is left behind"
        ) from error


def _fullness(error: BaseException | None) -> str | None:
    """Text on the full disk that an error comes from; None if it has another cause."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return str(error.strerror)
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            return "the disk is full" if code == sqlite3.SQLITE_FULL else "the disk fails, or is full"
        error = error.__cause__
    return None
