"""The logs of jobs of Seren and Kalos, in small excerpts made by hand, and jobs packed on nodes in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cells import each
from oakum_solver.errors import LogError, ProblemError
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.reading import read_log

SEREN = "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
KALOS = (
    "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,"
    "end_time,fail_time,stop_time,duration,queue,gpu_time\n"
)


def job(gpus: object, begin: str, end: str) -> str:
    """A row of Seren; times are minutes and seconds."""
    at = "2023-03-01 00:{}+08:00"
    began, ended = (at.format(time) if time else "" for time in (begin, end))
    return f"1,u1,1,{gpus},16,Other,COMPLETED,{at.format('00:00')},{began},{ended},1,1,8.0\n"


def read(folder: Path, text: str, name: str = "trace.csv", **options: Any) -> HoleLog:
    (folder / name).write_text(text, encoding="utf-8")
    return read_log(folder / name, **{"maintenance": "keep"} | options)


def busy(log: HoleLog, at_s: float) -> list[int]:
    """For each node how many of its slots a job has then."""
    assert log.parts is not None
    left = log.parts.slots.tolist()
    for slot, start_s, end_s in zip(log.node.tolist(), log.start_s.tolist(), log.end_s.tolist(), strict=True):
        left[log.parts.host[slot]] -= start_s <= at_s < end_s
    return left


def test_jobs_are_packed_on_nodes_of_eight_gpus(tmp_path: Path) -> None:
    rows = [
        job(3, "00:00", "01:00"),
        job(10, "00:10", "00:40"),  # a node, and the rest beside the three
        job(4, "00:20", "01:00"),  # the fullest node has no room for it
        job(2, "00:50", "01:00"),
        job(8, "00:55", "01:00"),
    ]
    log = read(tmp_path, SEREN + "".join(rows), nodes=3)
    assert [busy(log, at_s) for at_s in (5, 15, 25, 45, 52, 57)] == [
        [3, 0, 0],
        [5, 8, 0],
        [5, 8, 4],
        [3, 0, 4],
        [3, 0, 6],
        [3, 8, 6],
    ]
    assert log.nodes[:2] == ("n0:0", "n0:1")
    assert log.notes[:2] == (
        "the log of jobs of Seren or Kalos: 5 jobs with GPUs",
        "each job packed on nodes of 8 slots: wholly free ones, and the fullest for the rest",
    )


def test_a_job_for_which_no_nodes_are_whole_is_scattered(tmp_path: Path) -> None:
    rows = [job(3, "00:00", "00:10"), job(2, "00:00", "01:00"), job(3, "00:20", "00:30"), job(4, "00:20", "00:30")]
    log = read(tmp_path, SEREN + "".join(rows), nodes=2, procs_per_node=5)
    assert [busy(log, at_s) for at_s in (5, 15, 25)] == [[5, 0], [2, 0], [5, 4]]
    log = read(tmp_path, SEREN + job(1, "00:00", "00:10") + job(7, "00:00", "00:10"), nodes=2, procs_per_node=4)
    assert busy(log, 5) == [4, 4]


def test_what_cannot_be_used_is_told_and_the_size_is_what_jobs_filled(tmp_path: Path) -> None:
    rows = [
        job(16, "00:00", "00:30"),
        job("8.0", "00:10", "00:20"),
        job(9, "00:30", "01:00"),
        job(0, "00:00", "1"),
    ]
    rows += [job(8, "", "00:10"), job(8, "00:20", "00:10"), job(1, "00:40", "00:50")]
    kalos = "dlc1,uf794,8,8,960,1000,100.0,Other,FAILED,2023-02-28 16:00:00+00:00,2023-02-28 16:00:00+00:00,"
    kalos += "2023-02-28 16:01:00+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0\n"
    log = read(tmp_path, SEREN + "".join(rows), easy=True)
    assert [busy(log, at_s) for at_s in (15, 25, 45)] == [[8, 8, 8], [8, 8, 0], [8, 2, 0]]
    assert log.notes[1:5] == (
        "jobs skipped without GPUs: 1",
        "jobs skipped that never began, or whose end is not told: 1",
        "jobs skipped that end before they start: 1",
        "the log does not tell the machine's size: 3 nodes of 8 GPUs, as jobs filled at once; if it has more, "
        "give --nodes",
    )
    assert log.notes[-1] == "jobs are packed: EASY backfilling not used"
    log = read(tmp_path, SEREN + "".join(rows), nodes=1)
    assert "jobs skipped, larger than the machine's 8 GPUs: 2" in log.notes
    assert read(tmp_path, KALOS + kalos, nodes=2).idle_node_s == 8 * 60.0


@each(
    ("text", "options", "said"),
    [
        (SEREN, {}, "0 of 0 rows are no job with GPUs: expected rows with job_id, gpu_num, start_time"),
        (SEREN + job("many", "00:00", "00:10"), {}, "1 of 1 rows are no job with GPUs"),
        (SEREN + job(1, "00:00", "noon"), {}, "1 of 1 rows are no job with GPUs"),
        ("job_id,gpu_num,start\n", {}, "the header 'job_id,gpu_num,start'"),
        (
            SEREN + job(1, "00:00", "00:10"),
            {"procs_per_node": 0, "nodes": 1},
            "0 slots of a node: expected at least",
        ),
    ],
)
def test_other_files_and_impossible_machines_are_refused(
    tmp_path: Path, text: str, options: dict[str, int], said: str
) -> None:
    with pytest.raises((LogError, ProblemError)) as refused:
        read(tmp_path, text, **options)
    assert said in str(refused.value)
