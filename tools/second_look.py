"""Runs pytest, and runs what failed once more, alone: `python tools/second_look.py PYTEST_ARGUMENTS`.

A test that fails beside many others and passes alone hangs on how busy the machine is. It is a defect, told as
*unsteady* by name and with its first failure, here and in `unsteady-tests.log`, but it does not fail the run.
What fails twice does. More than ten failures, an error while tests are collected and a run that was interrupted
get no second look.

The second look is a pytest process of its own, so that it makes session fixtures anew, without workers. Every
test that it was asked to run has to be seen passing: one that is not collected, is skipped or is not reached
counts as failed.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import replaced_workers
from last_lines import last_lines

MOST_FAILURES = 10
"""More than these are no chance events, and looking at them again would take long."""
LONGEST_LOOK_S = 900.0
"""What a second look has not reached by then counts as failed."""
_LONGEST_END_S = 60.0
LOG = Path("unsteady-tests.log")
_SHOWN_LINES = 60
_RECORD = "--record-outcomes-in"


@dataclass
class Outcomes:
    """What became of a run's tests, each by its node ID without the name of its group."""

    failures: dict[str, str] = field(default_factory=dict)
    """What pytest tells of each test that failed, in its setup, its call or its end."""
    passed: list[str] = field(default_factory=list)
    collection_errors: list[str] = field(default_factory=list)


class Recorder:
    """A pytest plugin that writes a run's outcomes into a file when the run ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes = Outcomes()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for each phase of each test; with workers, in the process that hands out the tests."""
        name = without_group(report.nodeid)
        if report.failed:
            sections = [f"--- {title}\n{text}" for title, text in report.sections]
            told = "\n".join([f"in its {report.when}:", report.longreprtext, *sections])
            self._outcomes.failures.setdefault(name, told)
        elif report.passed and report.when == "call":
            self._outcomes.passed.append(name)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Called for each file that is imported."""
        if report.failed:
            self._outcomes.collection_errors.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Called once, also after an interrupt."""
        self._path.write_text(json.dumps(dataclasses.asdict(self._outcomes)))


def without_group(name: str) -> str:
    """A test's node ID as pytest takes it: `--dist loadgroup` appends `@group`, with which no test is found."""
    at = name.rfind("@")
    return name[:at] if at > name.rfind("]") else name


def main(arguments: Sequence[str]) -> int:
    """Run pytest with these arguments, then what failed; returns the status to end with."""
    status, first = run_recorded(arguments)
    if status != pytest.ExitCode.TESTS_FAILED or first is None or not first.failures:
        return status
    if first.collection_errors:
        _tell("No second look: some tests could not be collected.")
        return status
    if len(first.failures) > MOST_FAILURES:
        _tell(f"No second look at {len(first.failures)} failures: more than {MOST_FAILURES}.")
        return status
    _tell(f"A second look at {_tests(len(first.failures))}, one after the other, nothing else running")
    asked = list(first.failures)
    # Arguments of the first run may choose tests or number workers: the second look has its own.
    _, second = run_recorded(["-n", "0", "-p", "no:cacheprovider", *asked], LONGEST_LOOK_S)
    again = Outcomes() if second is None else second
    unsteady = [name for name in asked if name in again.passed and name not in again.failures]
    for name in unsteady:
        _tell(f"UNSTEADY {name}", last_lines(first.failures[name], _SHOWN_LINES))
    _keep({name: first.failures[name] for name in unsteady})
    failed = [name for name in asked if name not in unsteady]
    for name in failed:
        _tell(f"FAILED TWICE {name}")
    passed = len(set(first.passed) - set(first.failures))
    _tell(f"{passed} passed, {len(unsteady)} unsteady, {len(failed)} failed twice")
    return pytest.ExitCode.TESTS_FAILED if failed else pytest.ExitCode.OK


def run_recorded(arguments: Sequence[str], longest_s: float | None = None) -> tuple[int, Outcomes | None]:
    """Run pytest with these arguments in a process of its own, for `longest_s` at most.

    Returns its exit status, and its outcomes unless it was killed.
    """
    with tempfile.TemporaryDirectory(prefix="second-look-") as folder:
        record = Path(folder, "outcomes.json")
        command = [sys.executable, __file__, _RECORD, str(record), *arguments]
        status = _wait(subprocess.Popen(command, stdin=subprocess.DEVNULL), longest_s)
        return status, Outcomes(**json.loads(record.read_text())) if record.exists() else None


def _wait(process: subprocess.Popen[bytes], longest_s: float | None) -> int:
    """Ctrl-C reaches pytest by itself; it then tells what it has seen and clears away what it has started."""
    ways_to_end = [signal.SIGINT, signal.SIGKILL]
    while True:
        try:
            return process.wait(longest_s)
        except subprocess.TimeoutExpired:
            _tell(f"ended after {longest_s:g} s")
            process.send_signal(ways_to_end.pop(0))
            longest_s = _LONGEST_END_S if ways_to_end else None
        except KeyboardInterrupt:
            continue


def _keep(unsteady: dict[str, str]) -> None:
    if not unsteady:
        return
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with LOG.open("a") as log:
        for name, failure in unsteady.items():
            log.write(f"{now} {name}\n{failure}\n\n")


def _tests(number: int) -> str:
    return "1 test" if number == 1 else f"{number} tests"


def _tell(*lines: str) -> None:
    print("\nsecond look: " + "\n".join(lines), flush=True)


def _record(path: str, arguments: list[str]) -> int:
    sys.path[0] = str(Path.cwd())  # as `python -m pytest` has it
    return int(pytest.main(arguments, plugins=[Recorder(Path(path)), replaced_workers]))


if __name__ == "__main__":
    if sys.argv[1:2] == [_RECORD]:
        sys.exit(_record(sys.argv[2], sys.argv[3:]))
    sys.exit(main(sys.argv[1:]))
