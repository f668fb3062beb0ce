"""Compiles `loops.cpp` for this machine's processor, once for each user, source and processor.

The library is kept in the user's cache folder, `~/.cache/oakum/recurrent` or below XDG_CACHE_HOME. Loading a
library runs it, so it is loaded only from a folder that nobody else can write to. Its name has a hash of source,
options and processor: a home folder that machines share holds one for each kind of processor.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from oakum_worker.errors import NoLoopsError, reason_of

SOURCE = Path(__file__).with_name("loops.cpp")
OPTIONS = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-std=c++17", "-fno-math-errno", "-Wno-psabi")
_LONGEST_BUILD_S = 600.0
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def library() -> Path:
    """Path of the compiled loops for this processor. They are compiled first if they are missing, in 3 s to 20 s;
    of several processes that call this at once, one compiles and the others wait.

    Raises `NoLoopsError` where there is no compiler, where compiling fails, or where others could have written to
    the folder.
    """
    folder = private_folder()
    path = folder / f"loops-{build_key()}.so"
    if not path.exists():
        with _locked(folder / "lock"):
            if not path.exists():
                _compile(path)
    _check_own(path)
    return path


def private_folder() -> Path:
    """The folder for compiled loops, made if it is missing, with mode 0700.

    Raises `NoLoopsError` if someone else owns it or may write to it or to a folder above it.
    """
    root = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(root) if root else Path.home() / ".cache") / "oakum" / "recurrent"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NoLoopsError(
            f"{folder} cannot be made ({reason_of(error)}): set XDG_CACHE_HOME to a folder of your own"
        ) from error
    folder = folder.resolve()
    for parent in folder.parents:
        _check_above(parent)
    _check_own(folder)
    return folder


def build_key() -> str:
    """A hash that names the compiled library: it changes with the source, the compiler's options and the
    processor."""
    parts = (SOURCE.read_bytes(), " ".join(OPTIONS).encode(), processor().encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


@functools.cache
def processor() -> str:
    """Text with the processor's model and features, as the kernel reports them."""
    with contextlib.suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        fields = ("model name", "flags", "Features", "CPU implementer", "CPU part")
        return "\n".join(line for line in first if line.startswith(fields))
    return f"{platform.machine()} {platform.processor()}"


def _compile(path: Path) -> None:
    command = shlex.split(os.environ.get("CXX") or "g++")
    if not command or shutil.which(command[0]) is None:
        raise NoLoopsError(
            f"no C++ compiler: {command[0] if command else 'CXX'!r} was not found; install g++ or set "
            "CXX to a compiler"
        )
    descriptor, library = tempfile.mkstemp(dir=path.parent, suffix=".so")
    os.close(descriptor)
    try:
        subprocess.run(
            [*command, *OPTIONS, str(SOURCE), "-o", library],
            check=True,
            capture_output=True,
            text=True,
            timeout=_LONGEST_BUILD_S,
        )
        Path(library).chmod(0o700)
        Path(library).replace(path)
    except subprocess.CalledProcessError as error:
        raise NoLoopsError(f"{command[0]} could not compile the fused loops: {error.stderr[-2000:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoLoopsError(f"the fused loops could not be compiled: {error}") from error
    finally:
        Path(library).unlink(missing_ok=True)


def _check_own(path: Path) -> None:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & _OTHERS_MAY_WRITE:
        raise NoLoopsError(
            f"{path} is not yours alone to write to, so nothing is loaded from it: remove it, or set "
            "XDG_CACHE_HOME to a folder of your own"
        )


def _check_above(folder: Path) -> None:
    status = folder.stat()
    is_sticky = status.st_mode & stat.S_ISVTX
    if status.st_uid not in (0, os.geteuid()) or (status.st_mode & _OTHERS_MAY_WRITE and not is_sticky):
        raise NoLoopsError(
            f"others may write to {folder}, so nothing below it is loaded: run `chmod go-w {folder}`, or set "
            "XDG_CACHE_HOME to a folder of your own"
        )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        lock = path.open("a")
    except OSError as error:
        raise NoLoopsError(f"{path} cannot be written: {reason_of(error)}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
