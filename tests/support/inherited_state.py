"""Replaces what the tests inherit from the shell, the script or the CI runner that starts them, so that none of it
decides whether a test passes.

`tests/conftest.py` calls `replace_inherited_state` before any test is collected, in each worker too. What tests
start inherits the replaced state in its turn.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import locale
import os
import re
import resource
import shutil
import signal
import tempfile
import time
from pathlib import Path

HOME_VARIABLE = "OAKUM_TEST_HOME"
"""Names the run's home folder to the run's workers, which share it, and so to all that they start."""
RUN_PREFIX = "oakum-tests-"
"""Of the run's folder, which holds its home folder and its lock."""
LOCK = "lock"
"""A file that the run's first process has locked for as long as it lives."""
_KEPT = frozenset({"OAKUM_TEST_REQUIRE", HOME_VARIABLE})
_DROPPED = re.compile(
    r"(OAKUM|SLURM|SLURMD|SBATCH|SRUN|SALLOC|SQUEUE|SINFO|SCONTROL|MUNGE|SUBMITIT|XDG|LC|GIT|GITHUB|HF|SPARK)_.*"
    r"|(ACCELERATE|GLOO|NCCL|TORCH|PYTORCH)_.*|PG[A-Z]+"
    r"|(HTTP|HTTPS|FTP|ALL|NO)_PROXY"
    r"|MASTER_ADDR|MASTER_PORT|RANK|LOCAL_RANK|WORLD_SIZE|OMP_NUM_THREADS"
    r"|LANG|LANGUAGE|COLUMNS|LINES|TERMINAL_WIDTH|NO_COLOR|FORCE_COLOR|PY_COLORS|CI|PAGER|EDITOR"
    r"|PYTHONOPTIMIZE|PYTHONWARNINGS|ARGS|WORKERS|MAKEFLAGS|MFLAGS|MAKELEVEL",
    re.IGNORECASE,
)
_OPEN_FILES = 4096
_LONGEST_TMPDIR = 40
"""Characters. The path of a Unix socket may have 107, and pytest and the tests need the rest for their folders."""


def replace_inherited_state() -> None:
    """Give this process signals, mode mask, standard input, limits, environment, home and folder for temporary
    files that do not hang on who started it."""
    _heed_signals()
    os.umask(0o022)
    _open_standard_input()
    _limit_open_files()
    _clear_environment()
    _shorten_temporary_folder()
    _move_home()
    # Threads that wait for parts of small products spin, and take the cores from everything else.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TZ"] = "UTC"
    time.tzset()
    os.environ["LANG"] = "C.UTF-8"
    with contextlib.suppress(locale.Error):  # where the system has no such locale, Python's own stays
        locale.setlocale(locale.LC_ALL, "")


def _heed_signals() -> None:
    """A shell has what a script puts into the background ignore SIGINT and SIGQUIT; their children inherit that.

    SIGHUP stays ignored where `nohup` has it ignored: such a run is meant to outlive its terminal.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _open_standard_input() -> None:
    """Where standard input is closed, the first file that is opened would become that of every child."""
    try:
        os.fstat(0)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)


def _limit_open_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _clear_environment() -> None:
    for name in [name for name in os.environ if _DROPPED.fullmatch(name)]:
        if name not in _KEPT:
            del os.environ[name]


def drop_options_of_pytest() -> None:
    """Keep `PYTEST_ADDOPTS` from pytest processes that tests start.

    A run's own workers read it when they start, so only a process that runs tests itself drops it.
    """
    os.environ.pop("PYTEST_ADDOPTS", None)


def _shorten_temporary_folder() -> None:
    if len(os.environ.get("TMPDIR", "")) > _LONGEST_TMPDIR:
        os.environ["TMPDIR"] = "/tmp"
    tempfile.tempdir = None  # to be found anew


def _move_home() -> None:
    """An empty home folder for the whole run: what the user has cached or configured is neither seen nor
    changed."""
    os.environ["HOME"] = str(folder_of_run() / "home")


def folder_of_run() -> Path:
    """The folder of the run that this process belongs to; the process begins a run if it belongs to none."""
    if HOME_VARIABLE not in os.environ:
        run = Path(tempfile.mkdtemp(prefix=RUN_PREFIX))
        home = run / "home"
        home.mkdir(mode=0o700)
        _lock(run)
        os.environ[HOME_VARIABLE] = str(home)
        atexit.register(_remove, run, os.getpid())
    return Path(os.environ[HOME_VARIABLE]).parent


def _lock(run: Path) -> None:
    """Lock a file of the run's folder until this process ends, however it ends.

    By `lockf`: a forked process shares what `flock` locks, and would keep the lock of a run that was killed.
    """
    unlocked = run / f"{LOCK}.new"
    fcntl.lockf(os.open(unlocked, os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX)
    unlocked.rename(run / LOCK)  # so that no other run ever finds it unlocked


def _remove(run: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked process has inherited the registration
        shutil.rmtree(run, ignore_errors=True)
