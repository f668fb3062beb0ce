"""The Standard Workload Format, from the definition's own rules to whole logs."""

import gzip
from dataclasses import replace
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
        (LINE.replace("100", "-1"), "submit time -1: expected seconds"),
        (LINE.replace("600", "nan"), "run time nan"),
        (LINE.replace("16", "16.5"), "16.5: expected a whole number"),
        ("node,start_s,end_s", "1 fields: expected 18"),
    ],
)
def test_a_malformed_line_is_named_with_file_line_and_cause(tmp_path: Path, line: str, cause: str) -> None:
    path = tmp_path / "log.swf"
    path.write_text(f"; Version: 2\n{LINE}\n{line}\n")
    with pytest.raises(LogError) as caught:
        read_swf(path)
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert cause in str(caught.value)


@each(
    ("text", "job", "note"),
    [
        ("\ufeff" + LINE.strip() + "\r\n", JOB, "a byte-order mark before the first line, left out: 1"),
        (f"{LINE} 0 x", JOB, "lines with more than 18 fields, of which the others are not read: 1"),
        (
            " ".join(f"{float(field)}" for field in LINE.split()),
            JOB,
            "lines with whole numbers as decimals, read as whole: 1",
        ),
        (LINE.replace(" 30 ", " -3600 "), replace(JOB, wait_s=0.0), "negative wait times, read as 0: 1"),
        (LINE.replace("600", "-7"), replace(JOB, run_s=None), "negative run times, read as unknown: 1"),
        (
            LINE.replace(" 1 3 ", " 6 3 "),
            replace(JOB, status=SwfStatus.UNKNOWN),
            "jobs of a status that the format does not list, read as unknown: 1",
        ),
        (
            "\n".join([LINE] * 9 + [LINE[:30]]),
            JOB,
            "lines that describe no job, left out: 1; the first is line 10: 9 fields: expected 18",
        ),
    ],
)
def test_what_strays_from_the_format_is_read_noted_and_counted(
    tmp_path: Path, text: str, job: Job, note: str
) -> None:
    path = tmp_path / "log.swf"
    path.write_bytes(text.encode())
    log = read_swf(path)
    assert (set(log.jobs), log.notes) == ({job}, (note,))


@each(
    ("told", "size"),
    [
        ("1,152", 1152),
        ("1'152'000", 1152000),
        ("1152.0", 1152),
        ("128 (64 fat)", 128),
        ("1.152", None),
        ("1,15", None),
        ("12k", None),
    ],
)
def test_the_size_in_the_header_is_read_whole_or_not_at_all(tmp_path: Path, told: str, size: int | None) -> None:
    path = tmp_path / "log.swf"
    path.write_text(f"; MaxNodes: {told}\n{LINE}\n")
    assert read_swf(path).max_nodes == size


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
