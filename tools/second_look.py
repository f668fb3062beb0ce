"""Runs pytest, and runs what failed once more, alone: `python tools/second_look.py PYTEST_ARGUMENTS`.

A test that fails beside many others and passes alone hangs on how busy the machine is. It is a defect, told as
*unsteady* by name and with its first failure, here and in `unsteady-tests.log`, but it does not fail the run.
What fails twice does. More than ten failures, an error while tests are collected and a run that was interrupted
get no second look.

The second look is a pytest process of its own, so that it makes session fixtures anew, without workers and with
a cache of its own, from which `--last-failed` can choose nothing. Otherwise it has the first run's arguments: with
other warnings, examples or marks a test may pass for another reason than that it runs alone. Every test that it
was asked to run has to be seen passing: one that is not collected, is skipped or is not reached counts as failed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from last_lines import last_lines
from recorded_run import Outcomes, run_recorded

MOST_FAILURES = 10
"""More than these are no chance events, and looking at them again would take long."""
LONGEST_LOOK_S = 900.0
"""What a second look has not reached by then counts as failed."""
LOG = Path("unsteady-tests.log")
_ALONE = ["-n", "0", "--maxfail", "0", "--junitxml="]
"""After the first run's arguments: without workers, to the end, and without replacing the first run's report."""
_SHOWN_LINES = 60


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
    with tempfile.TemporaryDirectory(prefix="second-look-") as cache:
        _, second = run_recorded([*arguments, *_ALONE, "-o", f"cache_dir={cache}"], LONGEST_LOOK_S, asked)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
