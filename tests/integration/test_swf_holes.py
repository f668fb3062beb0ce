"""From an SWF file, or any log file, to its holes."""

from pathlib import Path
from typing import Any

import pytest

from oakum_solver.errors import LogError, ProblemError
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.placement import read_swf_holes
from oakum_solver.logs.reading import read_log

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def line(submit_s: int, wait_s: int, run_s: int, procs: int, requested_s: int = -1, status: int = 1) -> str:
    return f"1 {submit_s} {wait_s} {run_s} {procs} -1 -1 -1 {requested_s} -1 {status} 1 1 -1 -1 -1 -1 -1"


def swf(folder: Path, *lines: str, header: str = "; MaxNodes: 2") -> Path:
    path = folder / "log.swf"
    path.write_text("\n".join((header, *lines)))
    return path


def holes(log: HoleLog) -> list[tuple[str, float, float]]:
    """In order of node, then of start."""
    rows = zip(log.node, log.start_s.tolist(), log.end_s.tolist(), strict=True)
    return sorted((log.nodes[node], start_s, end_s) for node, start_s, end_s in rows)


def test_a_job_runs_from_submit_plus_wait_for_its_run_time(tmp_path: Path) -> None:
    log = read_swf_holes(swf(tmp_path, line(100, 5, 20, 1), line(90, 35, 25, 2)))
    assert (holes(log), log.duration_s) == ([("n1", 0.0, 20.0)], 45.0)


def test_processors_are_rounded_up_to_whole_nodes(tmp_path: Path) -> None:
    path = swf(tmp_path, line(0, 0, 10, 9), header="; MaxProcs: 17")
    log = read_swf_holes(path, procs_per_node=8)
    assert (log.nodes, holes(log)) == (("n0", "n1", "n2"), [("n2", 0.0, 10.0)])


@pytest.mark.parametrize(
    ("header", "options", "num_nodes"),
    [
        ("; MaxNodes: 7\n; MaxProcs: 64", {}, 7),
        ("; MaxNodes: 7\n; MaxProcs: 64", {"procs_per_node": 8}, 7),
        ("; MaxNodes: -1\n; MaxProcs: 65", {"procs_per_node": 8}, 9),
        ("; MaxNodes: 7\n; MaxProcs: 64", {"nodes": 5, "procs_per_node": 8}, 5),
    ],
)
def test_the_size_is_the_given_one_else_the_headers(
    tmp_path: Path, header: str, options: dict[str, Any], num_nodes: int
) -> None:
    path = swf(tmp_path, line(0, 0, 10, 3), header=header)
    assert len(read_swf_holes(path, **options).nodes) == num_nodes


@pytest.mark.parametrize("header", ["", "; MaxNodes: many", "; MaxNodes: 99999999"])
def test_a_header_without_a_usable_size_asks_for_it(tmp_path: Path, header: str) -> None:
    with pytest.raises(LogError, match=r"MaxNodes is '.*' and MaxProcs is 'missing': .*--nodes"):
        read_swf_holes(swf(tmp_path, line(0, 0, 10, 1), header=header))


@pytest.mark.parametrize(
    ("header", "options", "busy", "note"),
    [
        ("; MaxNodes: 64\n; MaxProcs: 1536", {}, 2, "processors of a node: 24, as 1,536 on 64 nodes"),
        ("; MaxProcs: 1536", {"nodes": 64}, 2, "processors of a node: 24, as 1,536 on 64 nodes"),
        (
            "; MaxNodes: 64\n; MaxProcs: 128",
            {},
            24,
            "processors of a node: 2, as 128 on 64 nodes; no job has more than 64: if the log counts nodes, give "
            "--procs-per-node 1",
        ),
        ("; MaxNodes: 64\n; MaxProcs: 1536", {"procs_per_node": 1}, 48, None),
        ("; MaxNodes: 64\n; MaxProcs: 64", {}, 48, None),
    ],
)
def test_nodes_and_processors_of_the_header_make_the_size_of_a_node(
    tmp_path: Path, header: str, options: dict[str, Any], busy: int, note: str | None
) -> None:
    path = swf(tmp_path, line(0, 0, 10, 48), header=header)
    if "1536" in header and not options.get("procs_per_node"):
        path = swf(tmp_path, line(0, 0, 10, 48), line(20, 0, 10, 1536), header=header)
    log = read_swf_holes(path, **options)
    assert sum(start_s == 0.0 for _, start_s, _ in holes(log)) == 64 - busy
    assert [text for text in log.notes if text.startswith("processors")] == ([note] if note else [])


@pytest.mark.parametrize("easy", [False, True])
def test_a_replay_of_another_machine_than_the_logs_says_so_first(tmp_path: Path, easy: bool) -> None:
    """Jobs that ran side by side on 8 nodes cannot run side by side on 2."""
    lines = [line(number, 5, 7200, 2) for number in range(4)]
    log = read_swf_holes(swf(tmp_path, *lines), easy=easy)
    assert log.notes[0].startswith("NOT TO BE BELIEVED: ")
    assert "is the machine larger than 2 nodes (--nodes)" in log.notes[0]
    whole = read_swf_holes(swf(tmp_path, *lines, header="; MaxNodes: 8"), easy=easy)
    assert not any("BELIEVED" in note for note in whole.notes)


def test_jobs_that_cannot_be_placed_are_skipped_and_counted_by_cause(tmp_path: Path) -> None:
    path = swf(
        tmp_path,
        line(0, 0, 10, 1),
        line(0, 0, 0, 1, status=5),
        line(0, -1, -1, 1, status=5),
        line(0, 0, -1, 1),
        line(0, 0, 0, 1),
        line(0, -1, 10, 1),
        line(0, 0, 10, -1),
        line(0, 0, 10, 3),
        line(0, 0, 10, 1, status=2),
        line(0, 0, 10, 1, status=3),
    )
    log = read_swf_holes(path)
    assert holes(log) == [("n1", 0.0, 10.0)]
    assert log.notes[:-2] == (
        "jobs skipped, cancelled before the start: 2",
        "jobs skipped, run time unknown: 1",
        "jobs skipped, run time 0: 1",
        "jobs skipped, start unknown: 1",
        "jobs skipped, size unknown: 1",
        "jobs skipped, larger than the machine's 2 processors: 1",
        "jobs skipped, a part of one that the log lists as a whole: 2",
    )


def test_a_job_cancelled_while_it_ran_was_there(tmp_path: Path) -> None:
    log = read_swf_holes(swf(tmp_path, line(0, 0, 10, 1), line(0, 0, 4, 1, status=5)))
    assert holes(log) == [("n1", 4.0, 10.0)]


def test_with_easy_the_recorded_waits_are_ignored(tmp_path: Path) -> None:
    path = swf(tmp_path, line(0, 70, 10, 2), line(0, -1, 20, 1, requested_s=30), line(1, 5, 20, 2))
    log = read_swf_holes(path, easy=True)
    assert holes(log) == [("n1", 10.0, 30.0)]
    assert log.notes[0] == "recorded waits ignored: FCFS and EASY backfilling, mean wait 13 s"


def test_progress_covers_scheduling_and_placing(tmp_path: Path) -> None:
    told: list[float] = []
    path = swf(tmp_path, line(0, 0, 10, 1), line(0, 0, 10, 1))
    read_swf_holes(path, easy=True, progress=told.append)
    assert told == [0.25, 0.5, 0.75, 1.0]


def test_a_node_without_processors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="0 processors per node"):
        read_swf_holes(swf(tmp_path, line(0, 0, 10, 1)), procs_per_node=0)


def test_a_log_is_read_by_its_name(tmp_path: Path) -> None:
    jobs, idle = swf(tmp_path, line(0, 0, 10, 1)), tmp_path / "idle.CSV"
    idle.write_text("node,start_s,end_s\nn1,5,15\n")
    assert holes(read_log(jobs)) == holes(read_log(idle)) == [("n1", 0.0, 10.0)]
    assert read_log(jobs, nodes=1, turnover_s=5.0).num_holes == 0


def test_options_that_an_idle_log_does_not_need_are_named(tmp_path: Path) -> None:
    path = tmp_path / "idle.csv"
    path.write_text("node,start_s,end_s\nn1,5,15\n")
    assert read_log(path, nodes=4, easy=True).notes == (
        "an idle log lists the holes itself: the number of nodes, EASY backfilling not used",
    )
    assert read_log(path).notes == ()


@pytest.mark.parametrize("name", ["log.txt", "swf", "log.csv.zip"])
def test_a_file_of_another_name_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("node,start_s,end_s\nn1,5,15\n")
    with pytest.raises(LogError, match=r"expected a name in \.swf, \.swf\.gz \(jobs\), \.csv or \.csv\.gz"):
        read_log(path)


@pytest.mark.parametrize(
    ("name", "placement", "idle", "under_10_min", "under_1_h"),
    [
        ("theta-2022.swf.gz", "first", 0.179, 0.04, 0.13),
        ("kth-sp2-1996-raw.swf.gz", "first", 0.286, 0.03, 0.16),
        ("kth-sp2-1996-raw.swf.gz", "fifo", 0.286, 0.02, 0.23),
        ("sdsc-sp2-1998-easy.swf.gz", "first", 0.167, 0.01, 0.10),
        ("sdsc-sp2-1998-easy.swf.gz", "fifo", 0.167, 0.01, 0.15),
    ],
)
def test_the_holes_of_a_real_log_are_as_published(
    name: str, placement: Any, idle: float, under_10_min: float, under_1_h: float
) -> None:
    """Idle fraction outside outages, and the shares of idle node-time in short holes."""
    if not (DATA / name).exists():
        pytest.skip(f"needs recordings: {name} is not in {DATA}")
    log = read_log(DATA / name, placement=placement)
    length_s = log.end_s - log.start_s
    assert log.idle_node_s / (len(log.nodes) * log.duration_s) == pytest.approx(idle, abs=0.01)
    assert length_s[length_s < 600].sum() / log.idle_node_s == pytest.approx(under_10_min, abs=0.01)
    assert length_s[length_s < 3600].sum() / log.idle_node_s == pytest.approx(under_1_h, abs=0.01)
