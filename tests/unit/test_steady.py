"""Tests are run beside endless loops, and which of them ever failed is told."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence

import psutil
import pytest

import steady
from recorded_run import Outcomes


@pytest.fixture
def _a_fork_server_starts_processes() -> Iterator[None]:
    """As by default from Python 3.14 on."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("forkserver", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.usefixtures("_a_fork_server_starts_processes")
def test_a_test_is_told_with_how_often_it_failed_beside_loops(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others, loops = set(multiprocessing.active_children()), []

    def run(arguments: Sequence[str]) -> tuple[int, Outcomes]:
        assert arguments == ["-n", "2", "tests/crash"]
        loops.append([psutil.Process(loop.pid).ppid() for loop in set(multiprocessing.active_children()) - others])
        return 1, Outcomes(failures={"test_hangs_on_time": "what it told"})

    monkeypatch.setattr(steady, "run_recorded", run)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert steady.main(["--times", "2", "--", "-n", "2", "tests/crash"]) == 1
    own = os.getpid()  # a loop ends with its parent
    assert loops == [[own], [own], [own, own], [own, own]]
    assert "steady: failed in 4 of 4 runs: test_hangs_on_time\n" in capsys.readouterr().out


def test_no_run_at_all_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        steady.main(["--times", "0"])
    assert "--times has to be at least 1, not 0" in capsys.readouterr().err
