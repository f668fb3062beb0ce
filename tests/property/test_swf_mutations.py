"""Whatever bytes a log is made of: jobs, or a LogError."""

import contextlib
import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oakum_solver.errors import LogError
from oakum_solver.logs.swf import Job, read_swf

LOG = b"""; Version: 2.2
; MaxNodes: 100
    1        0 964980  97225   56     -1    -1   56 210000    -1  1   1   1  -1 -1 -1 -1 -1
    2   327952 291900   9382   80   12.5    -1   80  14400    -1  0   2   2  -1 -1 -1 -1 -1
"""
PLACES = st.integers(0, len(LOG) - 1)
NOISE = st.one_of(st.binary(max_size=6), st.sampled_from((b"nan", b"1e999", b"-2", b";", b"\n", b"9" * 5000)))


def read(content: bytes, path: Path) -> None:
    """Read the log; its own error is all it may raise."""
    path.write_bytes(content)
    with contextlib.suppress(LogError):
        log = read_swf(path)
        assert all(isinstance(job, Job) for job in log.jobs)
        assert log.max_nodes is None or log.max_nodes > 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(place=PLACES, removed=st.integers(0, 20), noise=NOISE)
def test_a_mutated_log_raises_nothing_else(folder: Path, place: int, removed: int, noise: bytes) -> None:
    read(LOG[:place] + noise + LOG[place + removed :], folder / "log.swf")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(place=st.integers(0, 120), removed=st.integers(0, 20), noise=NOISE)
def test_a_mutated_archive_raises_nothing_else(folder: Path, place: int, removed: int, noise: bytes) -> None:
    packed = gzip.compress(LOG, mtime=0)
    read(packed[:place] + noise + packed[place + removed :], folder / "log.swf.gz")
