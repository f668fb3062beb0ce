"""What tests need beyond Oakum's own sources: they are skipped without it, or fail where it is required.

The reason of a skip begins with `needs NAME` if what is lacking has a name here. `OAKUM_TEST_REQUIRE` holds names,
separated by commas, for which a skip is a failure; `all` stands for every reason, named or not, but for those in
`NOT_EVERYWHERE`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_cluster.daemons import check_machine
from slurm_cluster.errors import ClusterError

VARIABLE = "OAKUM_TEST_REQUIRE"
NOT_EVERYWHERE = {
    "accounting": "the right to make a control group, in which the kernel counts processor time",
    "accounts": (
        "root, sudo for other Unix accounts, a system-wide Python of the same version, and sources that they can "
        "read or that lie on the file system of the folder for temporary files"
    ),
    "cuda": "CUDA devices",
    "forks": "a machine without a GPU, since CUDA survives no fork",
    "recordings": "logs and answers of real clusters, which are no part of the repository",
}
"""What `all` does not require: a machine may lack it although `make system-deps` has run."""
_ALL = "all"


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


_FINDERS: dict[str, Callable[[], object]] = {
    "postgres": _find_postgres,
    "browser": lambda: shutil.which("chromium") and shutil.which("chromedriver"),
    "slurm": _find_slurm,
    "spark": lambda: shutil.which("java") and importlib.util.find_spec("pyspark"),
    "lightning": lambda: importlib.util.find_spec("lightning"),
    "hugging-face": lambda: importlib.util.find_spec("transformers") and importlib.util.find_spec("accelerate"),
}
"""What the mark `needs` can name."""


def required() -> frozenset[str]:
    """What must not be lacking: the names in OAKUM_TEST_REQUIRE. Raises `pytest.UsageError` if one is not
    known."""
    names = frozenset(os.environ.get(VARIABLE, "").split(",")) - {""}
    known = {_ALL, *_FINDERS, *NOT_EVERYWHERE}
    if unknown := names - known:
        given, expected = ", ".join(sorted(unknown)), ", ".join(sorted(known))
        raise pytest.UsageError(f"{VARIABLE} names {given}; it may name {expected}, separated by commas")
    return names


def skip_without_needs(item: pytest.Item) -> None:
    """Skip the test if a program or package is lacking that one of its `needs` marks names."""
    for marker in item.iter_markers("needs"):
        name = marker.args[0]
        if not _FINDERS[name]():
            pytest.skip(f"needs {name}, which is not installed, or not for this user: `make system-deps` as root")


def fail_if_required(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn the report of a skip into that of a failure if what was lacking is required."""
    if not report.skipped or not isinstance(report.longrepr, tuple):  # an expected failure counts as skipped, too
        return
    reason = report.longrepr[2].removeprefix("Skipped: ")
    named = re.match(r"needs ([a-z-]+)", reason)
    name = named[1] if named else ""
    names = required()
    if name in names or (_ALL in names and name not in NOT_EVERYWHERE):
        report.outcome = "failed"
        report.longrepr = f"{reason}\n{VARIABLE}={','.join(sorted(names))} has this skip fail."
