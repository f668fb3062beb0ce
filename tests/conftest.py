"""What a test needs beyond Python is named on it; where it is not installed the test is skipped by that name.

`OAKUM_TEST_REQUIRE=postgres,browser` turns such a skip into a failure.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def _find_postgres() -> str | None:
    return shutil.which("initdb") or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), None
    )


_FINDERS = {
    "postgres": _find_postgres,
    "browser": lambda: shutil.which("chromium") and shutil.which("chromedriver"),
    "slurm": lambda: shutil.which("slurmctld"),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        name = marker.args[0]
        if _FINDERS[name]():
            continue
        message = f"needs {name}, which is not installed: `make system-deps` installs it"
        if name in os.environ.get("OAKUM_TEST_REQUIRE", "").split(","):
            pytest.fail(message)
        pytest.skip(message)
