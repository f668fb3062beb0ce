"""The Standard Workload Format, from the definition's own rules to whole logs."""

import gzip
from pathlib import Path

import pytest

from cells import each
from oakum_solver.errors import LogError
from oakum_solver.logs.swf import Job, SwfStatus, read_swf

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
LINE = "  7 100 30 600 -1 59.5 -1 16 900 -1 1 3 -1 -1 2 -1 -1 -1"
JOB = Job(
    id=7,
    submit_s=100.0,
    wait_s=30.0,
    run_s=600.0,
    procs=16,
    requested_s=900.0,
    status=SwfStatus.COMPLETED,
    user=3,
    queue=2,
    partition=None,
)


def test_header_and_jobs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_text(
        f"; Version: 2.2\n;MaxNodes: 32 (two are down)\n; MaxProcs: -1\n; Note: a\n; Note: b: c\n;\n\n{LINE}\n"
    )
    log = read_swf(path)
    assert log.header == {"Version": "2.2", "MaxNodes": "32 (two are down)", "MaxProcs": "-1", "Note": "a\nb: c"}
    assert (log.max_nodes, log.max_procs) == (32, None)
    assert log.jobs == (JOB,)


def test_start_and_end_follow_from_wait_and_run_time() -> None:
    assert (JOB.start_s, JOB.end_s) == (130.0, 730.0)


def test_unknown_times_stay_unknown(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_text("7 100 -1 -1 4 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1")
    (job,) = read_swf(path).jobs
    assert (job.wait_s, job.run_s, job.start_s, job.end_s, job.requested_s) == (None, None, None, None, None)
    assert (job.procs, job.status) == (4, SwfStatus.UNKNOWN)


def test_a_compressed_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.swf.gz"
    path.write_bytes(gzip.compress(LINE.encode()))
    assert read_swf(path).jobs == (JOB,)


@each(
    ("line", "cause"),
    [
        ("1 2 3", "3 fields: expected 18"),
        (LINE.replace("600", "fast"), "fast"),
        (LINE.replace("100", "-1"), "submit time is unknown"),
        (LINE.replace("600", "-7"), "run time -7: expected seconds >= 0"),
        (LINE.replace("600", "nan"), "run time nan"),
        (LINE.replace(" 1 3 ", " 9 3 "), "9 is not a valid SwfStatus"),
    ],
)
def test_a_malformed_line_is_named_with_file_line_and_cause(tmp_path: Path, line: str, cause: str) -> None:
    path = tmp_path / "log.swf"
    path.write_text(f"; Version: 2\n{LINE}\n{line}\n")
    with pytest.raises(LogError) as caught:
        read_swf(path)
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert cause in str(caught.value)


def test_a_missing_file_is_a_log_error(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="absent"):
        read_swf(tmp_path / "absent.swf")


def test_a_truncated_archive_is_a_log_error(tmp_path: Path) -> None:
    path = tmp_path / "log.swf.gz"
    path.write_bytes(gzip.compress(LINE.encode() * 100)[:-20])
    with pytest.raises(LogError):
        read_swf(path)


@pytest.mark.parametrize(
    ("name", "num_jobs", "max_procs"),
    [
        ("kth-sp2-1996-raw.swf.gz", 28_489, 100),
        ("sdsc-sp2-1998-easy.swf.gz", 54_006, 128),
        ("theta-2022.swf.gz", 23_911, 4_360),
    ],
)
def test_a_real_log_is_read_whole(name: str, num_jobs: int, max_procs: int) -> None:
    if not (DATA / name).exists():
        pytest.skip(f"needs recordings: {name} is not in {DATA}")
    log = read_swf(DATA / name)
    assert (len(log.jobs), log.max_procs) == (num_jobs, max_procs)
    assert all(job.procs and job.procs <= max_procs for job in log.jobs)
