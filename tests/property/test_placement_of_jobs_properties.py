"""Jobs and holes share out the node-time of a machine, whatever the jobs."""

from collections import defaultdict
from itertools import groupby, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from oakum_solver.logs.easy import easy_schedule
from oakum_solver.logs.holes import HoleLog, changes, count_changes
from oakum_solver.logs.jobs import StartedJob, SubmittedJob
from oakum_solver.logs.machine import MachineOccupancy, Placement, place_jobs
from oakum_solver.logs.placement import holes_of_jobs

NUM_NODES = 5
UNIT_S = 600
"""Jobs start and end at multiples of it, so that an oracle can count unit by unit."""
MAINTENANCE_UNITS = 12
PLACEMENTS: st.SearchStrategy[Placement] = st.sampled_from(("first", "fifo"))
JOBS = st.lists(
    st.builds(
        lambda start, run, nodes: StartedJob("j", UNIT_S * start, UNIT_S * (start + run), nodes),
        st.integers(0, 60),
        st.integers(1, 30),
        st.integers(1, NUM_NODES),
    ),
    min_size=1,
    max_size=12,
)


def holes(log: HoleLog) -> set[tuple[int, float, float]]:
    return set(zip(log.node.tolist(), log.start_s.tolist(), log.end_s.tolist(), strict=True))


def schedule(jobs: list[StartedJob]) -> list[tuple[int, int, int]]:
    """(first unit, last unit + 1, nodes) of each job, those that had to wait shifted."""
    jobs = sorted(jobs, key=lambda job: job.start_s)
    start_s, end_s, _ = place_jobs(
        jobs, MachineOccupancy(NUM_NODES, "first", 0.0, sum(job.nodes for job in jobs)), None
    )
    return [
        (int(start) // UNIT_S, int(end) // UNIT_S, job.nodes)
        for start, end, job in zip(start_s, end_s, jobs, strict=True)
    ]


def busy_by_unit(jobs: list[StartedJob]) -> list[int]:
    placed = schedule(jobs)
    busy = [0] * max(end for _, end, _ in placed)
    for start, end, nodes in placed:
        for unit in range(start, end):
            busy[unit] += nodes
    return busy


@settings(deadline=None)
@given(JOBS, PLACEMENTS)
def test_at_any_time_all_nodes_are_busy_or_in_a_hole(jobs: list[StartedJob], placement: Placement) -> None:
    busy = busy_by_unit(jobs)
    log = holes_of_jobs("log", jobs, NUM_NODES, placement=placement, maintenance="keep")
    idle = [0] * len(busy)
    for _, start_s, end_s in holes(log):
        for unit in range(int(start_s) // UNIT_S, int(end_s) // UNIT_S):
            idle[unit] += 1
    assert [b + i for b, i in zip(busy, idle, strict=True)] == [NUM_NODES] * len(busy)
    assert log.duration_s == len(busy) * UNIT_S


@settings(deadline=None)
@given(JOBS)
def test_a_job_starts_no_sooner_than_recorded_and_runs_as_long(jobs: list[StartedJob]) -> None:
    jobs = sorted(jobs, key=lambda job: job.start_s)
    for job, (start, end, _) in zip(jobs, schedule(jobs), strict=True):
        assert start * UNIT_S >= job.start_s - jobs[0].start_s
        assert (end - start) * UNIT_S == job.end_s - job.start_s


@settings(deadline=None)
@given(JOBS, PLACEMENTS)
def test_a_nodes_holes_lie_apart(jobs: list[StartedJob], placement: Placement) -> None:
    of_node = defaultdict(list)
    for node, start_s, end_s in sorted(holes(holes_of_jobs("log", jobs, NUM_NODES, placement=placement))):
        of_node[node].append((start_s, end_s))
        assert start_s < end_s
    assert all(one[1] <= two[0] for ends in of_node.values() for one, two in pairwise(ends))


@settings(deadline=None)
@given(JOBS, PLACEMENTS, st.sampled_from((1.0, 600.0, 5000.0)))
def test_turnover_takes_the_begin_of_each_hole_after_a_job(
    jobs: list[StartedJob], placement: Placement, turnover_s: float
) -> None:
    without = holes_of_jobs("log", jobs, NUM_NODES, placement=placement, maintenance="keep")
    log = holes_of_jobs("log", jobs, NUM_NODES, placement=placement, maintenance="keep", turnover_s=turnover_s)
    assert holes(log) == {
        (node, start_s + turnover_s * (start_s > 0), end_s)
        for node, start_s, end_s in holes(without)
        if start_s + turnover_s * (start_s > 0) < end_s
    }


@settings(deadline=None)
@given(JOBS, PLACEMENTS)
def test_outside_maintenance_jobs_and_holes_share_out_the_node_time(
    jobs: list[StartedJob], placement: Placement
) -> None:
    kept: list[int] = []
    for is_down, units in groupby(busy_by_unit(jobs), key=lambda busy: busy == 0):
        stretch = list(units)
        kept += [] if is_down and len(stretch) >= MAINTENANCE_UNITS else stretch
    whole = holes_of_jobs("log", jobs, NUM_NODES, placement=placement, maintenance="keep")
    log = holes_of_jobs("log", jobs, NUM_NODES, placement=placement)
    assert log.duration_s == len(kept) * UNIT_S
    assert log.duration_s + log.cut_s == whole.duration_s
    assert log.idle_node_s == sum(NUM_NODES - busy for busy in kept) * UNIT_S
    idle = 0
    at_time = {time_s: (idle := idle + len(join) - len(leave)) for time_s, leave, join in changes(log)}
    assert len(at_time) == count_changes(log)
    for time_s, count in at_time.items():
        if time_s < log.duration_s:
            assert count == NUM_NODES - kept[int(time_s) // UNIT_S]


@settings(deadline=None)
@given(JOBS, st.integers(0, 30), st.integers(31, 90))
def test_windows_share_out_the_log(jobs: list[StartedJob], first: int, second: int) -> None:
    log = holes_of_jobs("log", jobs, NUM_NODES, maintenance="keep")
    edges_s = [0.0, *(at * UNIT_S for at in (first, second) if 0 < at * UNIT_S < log.duration_s), log.duration_s]
    windows = [log.between(begin, end) for begin, end in pairwise(edges_s)]
    assert sum(window.idle_node_s for window in windows) == log.idle_node_s
    assert sum(window.duration_s for window in windows) == log.duration_s


@settings(deadline=None)
@given(JOBS, st.sampled_from((0.5, 1.0, 3.0)))
def test_easy_backfilling_never_needs_a_shift(jobs: list[StartedJob], estimate: float) -> None:
    submitted = [
        SubmittedJob(job.id, job.start_s, job.end_s - job.start_s, job.nodes, estimate * (job.end_s - job.start_s))
        for job in jobs
    ]
    started = easy_schedule(submitted, NUM_NODES)
    assert all(start.start_s >= job.submit_s for start, job in zip(started, submitted, strict=True))
    assert not any("later" in note for note in holes_of_jobs("log", started, NUM_NODES).notes)
