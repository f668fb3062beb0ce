"""What a run tells of its time: processor time of all that a test has started, by tier."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from processor_time import COST
from times_of_tests import lines_about


def report(name: str, when: str, duration_s: float, cpu_s: float | None = None) -> pytest.TestReport:
    properties = [] if cpu_s is None else [(COST, cpu_s)]
    return pytest.TestReport(
        name, ("", 0, ""), {}, "passed", None, when, duration=duration_s, user_properties=properties
    )


def test_tiers_and_tests_are_told_by_their_processor_time_and_the_rest_apart() -> None:
    cheap, dear = "tests/unit/solver/test_a.py::test_b", "tests/crash/test_c.py::test_d@slurm"
    reports = [
        report(cheap, "call", 2.0),
        report(cheap, "teardown", 0.5, cpu_s=1.0),
        report(dear, "call", 1.0),
        report(dear, "teardown", 0.5, cpu_s=30.0),
    ]
    told = [line.split() for line in lines_about(reports, 35.0)]
    assert told[1:] == [
        ["30.0", "1.5", "1", "tests/crash"],
        ["1.0", "2.5", "1", "tests/unit/solver"],
        ["4.0", "starting,", "collecting,", "handing", "out"],
        ["35.0", "in", "all"],
        ["30.0", "1.5", "tests/crash/test_c.py::test_d"],
        ["1.0", "2.5", cheap],
    ]


def test_what_a_process_starts_is_counted_as_its_own_even_when_nobody_waits_for_it() -> None:
    """In a process of its own, since it enters another control group."""
    busy = "import time\nwhile time.process_time() < 0.2: pass"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, subprocess, sys\n"
            "from processor_time import ProcessorTime\n"
            "time = ProcessorTime()\n"
            f"child = subprocess.Popen([sys.executable, '-c', {busy!r}], stdout=subprocess.PIPE)\n"
            "child.stdout.read()\n"
            "print(time.seconds() if time else 'no group')\n"
            "child.wait()\n"
            "time.close()\n",
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    if done.stdout.strip() == "no group":
        pytest.skip("needs accounting: the right to make a control group")
    assert float(done.stdout) > 0.15
