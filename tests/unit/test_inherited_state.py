"""Nothing that a test run inherits from the shell that starts it decides whether tests pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import DEADLINE_S

pytestmark = pytest.mark.xdist_group("inherited state")  # so that one worker alone makes `told`
_SUPPORT = Path(__file__).parents[1] / "support"
_INNER_TESTS = """
import locale, os, resource, signal, subprocess, sys, tempfile, time
from pathlib import Path

def test_interrupts_are_heeded():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL
    assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, [])

def test_new_files_can_be_read_by_others(tmp_path):
    (tmp_path / "new").touch()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o644

def test_home_is_an_empty_folder():
    assert os.listdir(Path.home()) == []

def test_text_is_utf8_and_time_is_utc():
    assert locale.getpreferredencoding(False).upper() == "UTF-8"
    assert time.localtime(0).tm_hour == 0

def test_settings_of_a_shell_are_gone():
    assert not {HINDRANCES} & {*os.environ}

def test_files_can_be_opened():
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1024

def test_standard_input_of_what_is_started_is_open():
    code = "import os; os.fstat(0); raise SystemExit(os.read(0, 1) != b'')"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_paths_of_sockets_are_short(tmp_path):
    assert len(tempfile.gettempdir()) < 41
    assert len(str(tmp_path)) < 90
"""
_INNER_CONFTEST = """
import inherited_state

inherited_state.replace_inherited_state()

def pytest_collection_modifyitems():
    inherited_state.drop_options_of_pytest()
"""
_STARTER = """
import os, resource, signal, sys
for number in (signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.umask(0o077)
os.nice(5)
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
os.close(0)
os.execv(sys.executable, [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "-n1", *sys.argv[1:]])
"""
_SETTINGS = {
    "OAKUM_URL": "http://127.0.0.1:1",
    "SLURM_CONF": "/nowhere/slurm.conf",
    "XDG_CACHE_HOME": "/nowhere",
    "http_proxy": "http://127.0.0.1:1",
    "NO_COLOR": "1",
    "CI": "true",
    "GITHUB_ACTIONS": "true",
    "GLOO_SOCKET_IFNAME": "no-such-interface",
    "ACCELERATE_USE_FSDP": "true",
    "PGSSLROOTCERT": "/nowhere",
    "PYTEST_ADDOPTS": "--deselect=test_inner.py::test_that_options_leave_out",
    "PYTHONWARNINGS": "default",
    "MAKEFLAGS": "n",
}
_PROMISES = [line[4:].partition("(")[0] for line in _INNER_TESTS.splitlines() if line.startswith("def ")]
_LEFT_OUT = """
def test_that_options_leave_out():
    pass
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run of the inner tests tells that inherits everything that could hinder it."""
    folder = tmp_path_factory.mktemp("inner")
    long = folder / ("long" * 40)
    long.mkdir()
    (folder / "test_inner.py").write_text(_INNER_TESTS.replace("{HINDRANCES}", repr({*_SETTINGS})) + _LEFT_OUT)
    (folder / "conftest.py").write_text(_INNER_CONFTEST)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {_SUPPORT}")
    hindrances = {
        "HOME": str(folder / "no-such-home"),
        "TMPDIR": str(long),
        "LC_ALL": "C",
        "TZ": "Asia/Kathmandu",
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OAKUM_")}
    ended = subprocess.run(
        [sys.executable, "-c", _STARTER, str(folder)],
        env=inherited | hindrances | _SETTINGS,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    return ended.stdout + ended.stderr


def test_a_worker_heeds_the_options_of_its_run(told: str) -> None:
    assert f"{len(_PROMISES)} passed" in told, told
    assert "test_that_options_leave_out" not in told


@pytest.mark.parametrize("promise", _PROMISES)
def test_what_is_inherited_decides_nothing(told: str, promise: str) -> None:
    assert f"PASSED test_inner.py::{promise}" in told, told
