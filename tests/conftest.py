"""What a test needs beyond Python is named on it; where it is not installed the test is skipped by that name.

`OAKUM_TEST_REQUIRE=postgres,browser,slurm` turns such a skip into a failure.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from slurm_cluster.daemons import check_machine
from slurm_cluster.errors import ClusterError

# What an example takes is no property of the code: on a busy machine any may take long.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def _find_postgres() -> str | None:
    return shutil.which("initdb") or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), None
    )


def _find_slurm() -> bool:
    try:
        check_machine()
    except ClusterError:
        return False
    return True


_FINDERS = {
    "postgres": _find_postgres,
    "browser": lambda: shutil.which("chromium") and shutil.which("chromedriver"),
    "slurm": _find_slurm,
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        name = marker.args[0]
        if _FINDERS[name]():
            continue
        message = f"needs {name}, which is not installed, or not for this user: `make system-deps` as root"
        if name in os.environ.get("OAKUM_TEST_REQUIRE", "").split(","):
            pytest.fail(message)
        pytest.skip(message)
