"""Philly's log of jobs, in a small excerpt made by hand, and what is said of files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cells import each
from oakum_solver.errors import LogError
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.reading import read_log

HOUR = "2017-10-07 01:"


def attempt(start: str | None, end: str | None, **servers: tuple[int, ...]) -> dict[str, Any]:
    """An attempt; times are minutes and seconds."""
    return {
        "start_time": start and HOUR + start,
        "end_time": end and HOUR + end,
        "detail": [{"ip": ip, "gpus": [f"gpu{number}" for number in gpus]} for ip, gpus in servers.items()],
    }


def job(*attempts: Any) -> dict[str, Any]:
    return {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1506638472019_14199",
        "attempts": list(attempts),
        "submitted_time": "2017-10-07 01:00:00",
        "user": "ce2f4c",
    }


JOBS = [
    job(attempt("00:00", "00:10", m1=(0, 1)), attempt("00:20", "00:40", m1=(1,), m2=(0,))),
    job(attempt("00:15", None, m2=(0, 1)), attempt("00:18", "00:30", m2=(1,))),
    job(attempt("00:50", "01:40", m1=(0, 1, 2))),
    job(attempt("01:20", None, m2=(1,))),
    job(),
    job(attempt(None, "00:05", m1=(2,)), attempt("00:30", "00:25", m1=(2,))),
    *[job(attempt("00:00", "00:00", m1=(0,)))] * 20,
]


def read(folder: Path, jobs: Any, machines: str = "", **options: Any) -> HoleLog:
    (folder / "cluster_job_log").write_text(json.dumps(jobs), encoding="utf-8")
    if machines:
        (folder / "cluster_machine_list").write_text(machines, encoding="utf-8")
    return read_log(folder / "cluster_job_log", **{"maintenance": "keep"} | options)


def idle(log: HoleLog) -> dict[str, list[tuple[float, float]]]:
    spans: dict[str, list[tuple[float, float]]] = {}
    for node, start, end in zip(log.node.tolist(), log.start_s.tolist(), log.end_s.tolist(), strict=True):
        spans.setdefault(log.nodes[node], []).append((start, end))
    return dict(sorted(spans.items()))


def test_each_gpu_is_idle_while_no_attempt_has_it(tmp_path: Path) -> None:
    log = read(tmp_path, JOBS, "machineId,number of GPUs,single GPU mem\nm1,4, 24GB\nm2,2, 12GB\nm3,8, 24GB\n")
    assert idle(log) == {
        "m1:0": [(10.0, 50.0)],
        "m1:1": [(10.0, 20.0), (40.0, 50.0)],
        "m1:2": [(0.0, 50.0)],
        "m1:3": [(0.0, 100.0)],
        "m2:0": [(0.0, 15.0), (18.0, 20.0), (40.0, 100.0)],
        "m2:1": [(0.0, 15.0), (30.0, 80.0)],
    }
    assert log.parts is not None
    assert dict(zip(log.parts.names, log.parts.slots.tolist(), strict=True)) == {"m1": 4, "m2": 2}
    assert (log.duration_s, log.notes[0]) == (100.0, "Philly's log: 26 attempts on 2 servers with 6 GPUs")
    assert log.notes[2:] == (
        "attempts without an end, read as ended when the next one of the job started: 1",
        "attempts skipped without a start or without GPUs: 1",
        "attempts skipped that end before they start: 1",
        "servers of cluster_machine_list left out, on which no job ran: 1",
    )


def test_without_a_list_of_servers_their_gpus_are_those_that_jobs_had(tmp_path: Path) -> None:
    log = read(tmp_path, JOBS, turnover_s=5.0, nodes=3)
    assert "m1:3" not in idle(log)
    assert idle(log)["m1:0"] == [(15.0, 50.0)]
    assert log.notes[-2:] == (
        "no cluster_machine_list beside the log: a server has the GPUs that jobs had there at some time",
        "the log says where jobs ran: the number of nodes not used",
    )
    log = read(tmp_path, JOBS, "m1,2,24GB\nm2,2,24GB\n")
    assert log.notes[-1].startswith("servers on which jobs had more GPUs than cluster_machine_list says")


def test_long_times_in_which_hardly_anything_ran_are_cut_out(tmp_path: Path) -> None:
    jobs = [job({**attempt("00:00", "10:00", m1=(0,)), "end_time": "2017-10-07 02:00:00"})]
    jobs += [
        job({**attempt("00:00", None, m1=(0,)), "start_time": f"2017-10-07 0{hour}:00:00"}) for hour in (7, 8)
    ]
    jobs[1]["attempts"][0]["end_time"] = "2017-10-07 09:00:00"
    log = read(tmp_path, jobs, maintenance="cut")
    assert (log.duration_s, log.cut_s) == (3 * 3600.0, 5 * 3600.0)


@each(
    ("text", "said"),
    [
        ("[1, 2]", "expected Philly's cluster_job_log, a JSON list of jobs, each an object"),
        ("[{]", "expected Philly's cluster_job_log, a JSON list of jobs"),
        ('[{"jobid": "a"}]', "job 1: no list of attempts"),
        ("[]", "0 of 0 attempts cannot be used: expected start_time"),
        (json.dumps([job({"start_time": "yesterday"})]), "1 of 1 attempts cannot be used"),
        (json.dumps([job(attempt("00:00", None, m1=(0,)))]), "no attempt in it ends"),
        ('{"trainers": []}', "expected a name in .swf"),
        ("", "expected a name in .swf"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "log.json").write_text(text, encoding="utf-8")
    with pytest.raises(LogError) as refused:
        read_log(tmp_path / "log.json")
    assert said in str(refused.value)


def test_a_list_of_servers_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="expected lines machineId,number of GPUs,single GPU mem"):
        read(tmp_path, JOBS, "m1;4\n")
