"""Runs the tests on what stands in for GPUs in a process of its own.

torch is told of such a device for good. A process that has computed gradients beside it cannot copy itself, which
rehearsals do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline_ranks import STAND_IN

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "tests", [("nccl_stand_in_cases.py",), ("void_results_cases.py",), ("test_devices.py", "-k", "stand_in")]
)
def test_what_stands_in_for_gpus_passes(tests: tuple[str, ...]) -> None:
    file, *options = tests
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", str(HERE / file), *options]
    ran = subprocess.run(
        command,
        env=os.environ | {STAND_IN: "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
