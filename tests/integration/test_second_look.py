"""What fails among many tests is run once more alone, and is then unsteady or failed twice."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import second_look
from waiting import DEADLINE_S

_PROGRAM = Path(__file__).parents[2] / "tools" / "second_look.py"
_HEAD = """
import os, time
from pathlib import Path
import pytest

def is_first(name):
    seen = Path(__file__).with_name(f"seen-{name}")
    if seen.exists():
        return False
    seen.touch()
    return True

@pytest.fixture(scope="session")
def server():
    assert not is_first("server"), "the server did not start"

"""
_FAILS_ONCE = """
@pytest.mark.xdist_group("a group")
@pytest.mark.parametrize("name", ["plain", "with@sign"])
def test_fails_once(name):
    assert not is_first(name), f"{name} failed first"

def test_needs_the_server(server):
    pass

@pytest.mark.timeout(1)
def test_hangs_once():
    if is_first("hanging"):
        time.sleep(60)

@pytest.mark.parametrize("number", range(20))
def test_passes(number):
    pass

# Last: its replacement waited for ever for a second test.
def test_ends_its_worker_once():
    if is_first("worker"):
        os._exit(3)
"""
_NEVER_PASSES = """
@pytest.mark.xdist_group("another group")
def test_always_fails():
    assert False

def test_ends_the_second_look(ends_the_second_look):
    assert not is_first("look")

@pytest.fixture
def ends_the_second_look():
    is_second = Path(__file__).with_name("seen-look").exists()
    yield
    if is_second:
        os._exit(3)

@pytest.mark.parametrize("place", [os.environ.get("PYTEST_XDIST_WORKER") and "a worker" or "alone"])
def test_has_another_name_alone(place):
    assert False

def test_passes_only_by_being_skipped():
    if is_first("skipped"):
        assert False
    pytest.skip("no longer here")

def test_fails_at_its_end_once(fails_at_its_end):
    pass

@pytest.fixture
def fails_at_its_end():
    yield
    assert not is_first("end")
"""
_INTERRUPTED = """
import signal

def test_fails_once():
    assert not is_first("once")

def test_presses_ctrl_c():
    if not is_first("ctrl-c"):
        os.killpg(0, signal.SIGINT)
    assert False

def test_comes_later():
    assert not is_first("later")
"""
_MARKED = """
import warnings

pytestmark = pytest.mark.soak

def test_fails_once():
    assert not is_first("once")

def test_warns():
    warnings.warn("of this", RuntimeWarning)

def test_is_not_chosen():
    assert not is_first("not chosen")
"""
_FAILS_FIRST = """
def test_fails_once():
    assert not is_first("once")

def test_comes_later():
    pass
"""
_FAILS_AND_ENDS = """
def test_fails_once():
    assert not is_first("once")

def test_ends_pytest():
    os._exit(1)
"""
_FAILS_ELEVEN_TIMES = """
@pytest.mark.parametrize("number", range(11))
def test_fails_once(number):
    assert not is_first(number)
"""
_THREAD_FAILS = """
import threading

goes_on = threading.Event()

def fail():
    goes_on.wait()
    raise ValueError("the thread failed")

thread = threading.Thread(target=fail)

def test_starts_a_thread():
    thread.start()

@pytest.fixture
def ended_thread():
    if is_first("thread"):
        goes_on.set()
        thread.join()

def test_is_charged(ended_thread):
    pass
"""
_HANGS = """
import threading

def test_hangs():
    threading.Event().wait()
"""
_ADDED = "-p no:hypothesispytest -p no:pytest_cov -p no:anyio"
_UNSTEADY = {
    "test_fails_once[plain]",
    "test_fails_once[with@sign]",
    "test_needs_the_server",
    "test_ends_its_worker_once",
    "test_hangs_once",
}


@dataclass(frozen=True)
class Run:
    """A finished run of tests in a folder of their own."""

    status: int
    told: str

    def names(self, verdict: str) -> set[str]:
        """The tests of which this was said."""
        beginning = f"second look: {verdict} test_those.py::"
        return {line.removeprefix(beginning) for line in self.told.splitlines() if line.startswith(beginning)}


def run(folder: Path, tests: str, *arguments: str) -> Run:
    """Run the tests with two workers, as `make test` does."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = soak\naddopts = -m 'not soak'\n")
    (folder / "test_those.py").write_text(tests)
    ended = subprocess.run(
        [sys.executable, str(_PROGRAM), "-n", "2", "--dist", "loadgroup", *arguments],
        cwd=folder,
        env=os.environ | {"PYTEST_ADDOPTS": _ADDED, "PYTEST_XDIST_WORKER": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        start_new_session=True,  # as from a terminal: what is sent to its processes reaches no others
    )
    return Run(ended.returncode, ended.stdout)


def test_what_passes_alone_is_told_as_unsteady_with_its_first_failure(tmp_path: Path) -> None:
    ended = run(tmp_path, _HEAD + _FAILS_ONCE)
    assert ended.names("UNSTEADY") == _UNSTEADY
    assert ended.names("FAILED TWICE") == set()
    assert "second look: 20 passed, 5 unsteady, 0 failed twice, 0 failed, 0 not reached" in ended.told
    assert ended.status == 0
    kept = (tmp_path / "unsteady-tests.log").read_text()
    for first_failure in ("with@sign failed first", "the server did not start", "crashed", "Timeout"):
        assert first_failure in kept


def test_what_fails_twice_or_is_not_seen_passing_fails_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, _HEAD + _NEVER_PASSES)
    assert ended.names("UNSTEADY") == {"test_fails_at_its_end_once"}
    assert ended.names("FAILED TWICE") == {
        "test_always_fails",
        "test_ends_the_second_look",
        "test_passes_only_by_being_skipped",
    }
    assert ended.names("NOT REACHED") == {"test_has_another_name_alone[a worker]"}
    assert "0 passed, 1 unsteady, 3 failed twice, 0 failed, 1 not reached" in ended.told
    assert ended.status == 1


def test_ctrl_c_in_the_second_look_ends_it_as_an_interrupted_run(tmp_path: Path) -> None:
    ended = run(tmp_path, _HEAD + _INTERRUPTED, "-n", "0")
    assert ended.names("UNSTEADY") == {"test_fails_once"}
    assert ended.names("FAILED TWICE") == set()
    assert ended.names("NOT REACHED") == {"test_presses_ctrl_c", "test_comes_later"}
    assert "second look: Interrupted." in ended.told
    assert ended.status == pytest.ExitCode.INTERRUPTED


def test_a_run_that_has_not_reached_all_tests_fails_though_what_failed_passes_alone(tmp_path: Path) -> None:
    ended = run(tmp_path, _HEAD + _FAILS_FIRST, "-n", "0", "-x")
    assert ended.names("UNSTEADY") == {"test_fails_once"}
    assert "second look: 1 of 2 tests were not reached" in ended.told
    assert ended.status == 1


def test_a_test_that_is_charged_with_a_failed_thread_is_not_cleared_by_passing_alone(tmp_path: Path) -> None:
    is_error = "-W", "error::pytest.PytestUnhandledThreadExceptionWarning"
    ended = run(tmp_path, _HEAD + _THREAD_FAILS, "-n", "0", *is_error)
    assert ended.names("FAILED") == {"test_is_charged"}
    assert "may be an earlier test's" in ended.told
    assert ended.status == 1


def test_a_run_that_hangs_is_ended_and_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(second_look, "LONGEST_RUN_S", 0.0)
    (tmp_path / "test_those.py").write_text(_HANGS)
    assert second_look.main(["-n", "0", "--rootdir", str(tmp_path), str(tmp_path)]) == pytest.ExitCode.INTERRUPTED
    assert "ended after 0 s" in capsys.readouterr().out


def test_the_second_look_has_the_options_of_the_first(tmp_path: Path) -> None:
    chosen = "-m", "soak", "-k", "once or warns", "--lf", "--junitxml=first.xml", "test_those.py"
    ended = run(tmp_path, _HEAD + _MARKED, "-n", "0", *chosen, "-W", "error")
    assert ended.names("UNSTEADY") == {"test_fails_once"}
    assert ended.names("FAILED TWICE") == {"test_warns"}
    assert 'failures="2"' in (tmp_path / "first.xml").read_text()


@pytest.mark.parametrize(
    ("tests", "told"),
    [
        ("import no_such_module", "error"),
        (_FAILS_AND_ENDS, "second look: No second look: a test has ended pytest."),
        (_FAILS_ELEVEN_TIMES, "second look: No second look at 11 failures: more than 10."),
    ],
    ids=["not collected", "ended", "eleven failures"],
)
def test_there_is_no_second_look_where_it_could_not_tell_anything(tmp_path: Path, tests: str, told: str) -> None:
    ended = run(tmp_path, _HEAD + tests, "-n", "0")
    assert ended.status != 0
    assert told in ended.told
    assert not ended.names("UNSTEADY")


def test_a_run_that_passes_ends_as_pytest_does(tmp_path: Path) -> None:
    ended = run(tmp_path, "def test_passes(): pass", "-n", "0")
    assert ended.status == 0
    assert "second look" not in ended.told
