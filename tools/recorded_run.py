"""A run of pytest in a process of its own, and what became of its tests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_LONGEST_END_S = 60.0


@dataclass
class Outcomes:
    """What became of a run's tests, each by its node ID without the name of its group."""

    begun: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    """Torn down, or crashed with their worker. One that has begun only was run when pytest itself was ended."""
    called: set[str] = field(default_factory=set)
    """Their calls did not fail. Their ends may have, or may have been what ended pytest."""
    failures: dict[str, str] = field(default_factory=dict)
    """What pytest tells of each test that failed, in its setup, its call or its end."""
    collection_errors: list[str] = field(default_factory=list)
    num_collected: int | None = None
    """Tests that were to be run. None if pytest did not come to its end, be it an interrupt's."""

    @property
    def passed(self) -> set[str]:
        """The tests that were seen to pass in setup, call and teardown."""
        return (self.called & self.ended) - self.failures.keys()

    def note(self, kind: str, name: str, told: str) -> None:
        """Take in one line of a `Recorder`: what was seen, of which test or file, and what pytest told."""
        if kind == "begun":
            self.begun.add(name)
        elif kind == "ended":
            self.ended.add(name)
        elif kind == "called":
            self.called.add(name)
        elif kind == "failed":
            self.failures.setdefault(name, told)
        elif kind == "collected":
            self.num_collected = int(told)
        else:
            self.collection_errors.append(name)


def run_recorded(
    arguments: Sequence[str], longest_s: float | None = None, only: Sequence[str] | None = None
) -> tuple[int, Outcomes]:
    """Run pytest with these arguments in a process of its own, for `longest_s` at most.

    Of the tests that the arguments choose, those named in `only` are run; by default all. Returns pytest's exit
    status, which is that of an interrupted run where the time was over, and what was seen of the tests.
    """
    with tempfile.TemporaryFile("r", encoding="utf-8") as record:  # without a name: nothing stays after a SIGKILL
        file = record.fileno()
        command = [sys.executable, __file__, f"/proc/self/fd/{file}", json.dumps(only), *arguments]
        status = _wait(subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[file]), longest_s)
        outcomes = Outcomes()
        for line in record:
            outcomes.note(*json.loads(line))
        return status, outcomes


def _wait(process: subprocess.Popen[bytes], longest_s: float | None) -> int:
    """Wait for pytest to end, which is interrupted after `longest_s` and killed a minute later; returns its exit
    status, or that of an interrupted run if it was ended.

    Ctrl-C reaches pytest by itself: it then tells what it has seen and clears away what it has started.
    """
    ways_to_end = [signal.SIGINT, signal.SIGKILL]
    interrupted = False
    while True:
        try:
            status = process.wait(longest_s)
            return pytest.ExitCode.INTERRUPTED if interrupted else status
        except subprocess.TimeoutExpired:
            interrupted = True
            print(f"\nended after {longest_s:g} s", flush=True)
            process.send_signal(ways_to_end.pop(0))
            longest_s = _LONGEST_END_S if ways_to_end else None
        except KeyboardInterrupt:
            interrupted = True


class Recorder:
    """A pytest plugin that writes what is seen of each test at once: the next moment may end the process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Called before each test; with workers, in the process that hands out the tests, as the others are."""
        self._write("begun", without_group(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called after each phase of each test, and for the test whose worker has crashed."""
        name = without_group(report.nodeid)
        if report.failed:
            sections = [f"--- {title}\n{text}" for title, text in report.sections]
            self._write("failed", name, "\n".join([f"in its {report.when}:", report.longreprtext, *sections]))
        elif report.passed and report.when == "call":
            self._write("called", name)
        if report.when not in ("setup", "call"):
            self._write("ended", name)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Called for each file that is imported."""
        if report.failed:
            self._write("not collected", report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Called once, also after an interrupt; with workers, each of them has collected as many tests."""
        self._write("collected", "", str(session.testscollected))

    def _write(self, kind: str, name: str, told: str = "") -> None:
        with self._path.open("a", encoding="utf-8") as record:
            record.write(json.dumps([kind, name, told]) + "\n")


class _Only:
    """A pytest plugin that leaves out all tests but the named ones. Unlike paths it can name one that is gone."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._files = {Path(name.partition("::")[0]).name for name in names}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out files that have none of the named tests: to import them would take long."""
        return True if collection_path.is_file() and collection_path.name not in self._files else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Of the tests that the arguments choose, leave out all but the named ones."""
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self._names])
        items[:] = [item for item in items if item.nodeid in self._names]


def without_group(name: str) -> str:
    """A test's node ID as it is without workers: `--dist loadgroup` appends `@group`."""
    at = name.rfind("@")
    return name[:at] if at > name.rfind("]") else name


def _record(path: str, only: list[str] | None, arguments: list[str]) -> int:
    sys.path.insert(0, str(Path.cwd()))  # as `python -m pytest` has it
    plugins: list[object] = [Recorder(Path(path))]
    if only is not None:
        plugins.append(_Only(only))
    # Named, not imported here: it imports xdist, of which pytest would warn, and `-W error` makes that an error.
    return int(pytest.main(["-p", "replaced_workers", *arguments], plugins=plugins))


if __name__ == "__main__":
    sys.exit(_record(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]))
